"""Checkpoint folders of a run: written aside, renamed when whole, the newest good one found again."""

import shutil
from pathlib import Path

MARK = "complete"  # a file that only a whole checkpoint has


def folder(run: Path, step: int) -> Path:
    return run / f"checkpoint-{step:08d}"


def newest(run: Path) -> Path | None:
    """The last whole checkpoint of a run folder, or None."""
    whole = [p for p in run.glob("checkpoint-*") if (p / MARK).exists()]
    return max(whole, default=None)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def finish(aside: Path, run: Path, step: int, keep: int = 2) -> Path:
    """Move a checkpoint written at `aside` to its place and drop all but the last `keep`."""
    (aside / MARK).touch()
    place = folder(run, step)
    shutil.rmtree(place, ignore_errors=True)
    aside.rename(place)
    for old in sorted(p for p in run.glob("checkpoint-*") if (p / MARK).exists())[:-keep]:
        shutil.rmtree(old)
    return place
