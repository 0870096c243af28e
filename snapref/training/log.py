"""What a run tells while it goes: log.csv, TensorBoard where asked for, and the numbers beside the progress bar."""

import csv
import warnings
from pathlib import Path


class Log:
    """log.csv, a row a step; rows past the step that a resumed run starts from are dropped.

    tensorboard: the same numbers as TensorBoard events in `tensorboard/` beside the file, if it is installed.
    """

    def __init__(self, path: Path, start: int, tensorboard: bool = False):
        self.path, self.smooth, self._names = path, float("nan"), None
        kept = []
        if path.exists() and start:
            with path.open() as f:
                kept = [r for r in csv.DictReader(f) if int(r["step"]) <= start]
        self.before = float(kept[-1]["seconds"]) if kept else 0.0  # the run's seconds so far
        self._file = path.open("w", newline="")
        if kept:
            self._open(list(kept[0]))
            self._writer.writerows(kept)
        self._events = events(path.parent / "tensorboard", start) if tensorboard else None

    def _open(self, names: list[str]):
        self._writer = csv.DictWriter(self._file, names, extrasaction="ignore", lineterminator="\n")
        self._writer.writeheader()
        self._names = names

    def row(self, step, samples, seconds, norm, rate, numbers: dict[str, float], data: float = 0.0):
        """data: of the seconds, the share spent waiting for data."""
        row = {"step": step, "samples": samples, "seconds": f"{self.before + seconds:.1f}", "norm": f"{norm:.4f}"}
        row["rate"] = f"{rate:.4f}"
        row |= {k: f"{v:.6f}" for k, v in numbers.items()}
        row["data"] = f"{data:.4f}"
        if self._names is None:
            self._open(list(row))
        self._writer.writerow(row)
        self._file.flush()
        loss = numbers["loss"]
        self.smooth = loss if self.smooth != self.smooth else 0.98 * self.smooth + 0.02 * loss
        self.scalars(step, {**numbers, "norm": norm, "rate": rate, "data": data})

    def scalars(self, step: int, numbers: dict[str, float]) -> None:
        """To TensorBoard alone."""
        if self._events:
            for name, value in numbers.items():
                self._events.add_scalar(name, value, step)

    def close(self) -> None:
        self._file.close()
        if self._events:
            self._events.close()


def events(folder: Path, start: int):
    """A TensorBoard writer whose later steps are dropped; None, said once, where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        warnings.warn("tensorboard is not installed, so only log.csv is written; pip install tensorboard", stacklevel=2)
        return None
    return SummaryWriter(str(folder), purge_step=start + 1)


def append_row(path: Path, row: dict) -> None:
    """Add a row to a small CSV file, in place of an older row of the same step; written aside, then renamed."""
    rows = []
    if path.exists():
        with path.open() as f:
            rows = [r for r in csv.DictReader(f) if int(r["step"]) < int(row["step"])]
    aside = path.with_name(f".{path.name}")
    with aside.open("w", newline="") as f:
        writer = csv.DictWriter(f, list(row), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, row])
    aside.replace(path)
