"""The one training loop. A task says what a batch and a loss are; Accelerate does processes and precision.

A step's data and noise are drawn from (seed, step) alone, never from what ran before, so a resumed run continues
exactly: the state is weights, EMA, optimizers and a step number.
"""

import csv
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from tqdm.auto import tqdm

from snapref.training import checkpoints
from snapref.training.config import RunConfig
from snapref.training.optimizers import make_optimizers


class Task(Protocol):
    """What differs between codec, text, base, tagger and adapter."""

    model: nn.Module  # what learns; called as model(**batch) -> {"loss": scalar, other numbers}

    def batch(self, step: int, rank: int, world: int) -> dict[str, Tensor]:
        """This process's share of the step's batch, the same for the same step."""

    def export(self, model: nn.Module, path: Path) -> None:
        """Write the learnt weights as the package ships them."""


class NotFinite(RuntimeError):
    """The loss was NaN or infinite; the last checkpoint is untouched."""


def train(task: Task, config: RunConfig, runs: Path, until: int | None = None) -> Path:
    """Train to `config.steps` (or stop early at step `until`), resuming a run of that name; returns the run folder.

    Leaves `log.csv`, checkpoints, and `export.safetensors` (EMA weights, fp16) in runs/<name>.
    Raises NotFinite at the first loss that is not a number.
    """
    accelerator = Accelerator(mixed_precision=config.precision, cpu=not torch.cuda.is_available())
    run = runs / config.name
    run.mkdir(parents=True, exist_ok=True)
    ema = AveragedModel(task.model, multi_avg_fn=ema_with_warmup(config.ema), use_buffers=True)
    optimizers = make_optimizers(task.model, config)
    peaks = [o.defaults["lr"] for o in optimizers]
    model = accelerator.prepare(task.model)
    optimizers = [accelerator.prepare_optimizer(o) for o in optimizers]
    accelerator.register_for_checkpointing(ema)

    start = 0
    if last := checkpoints.newest(run):
        accelerator.load_state(str(last))
        start = checkpoints.step_of(last)

    stop = min(config.steps, until or config.steps)
    log = Log(run / "log.csv", start) if accelerator.is_main_process else None
    bar = tqdm(total=stop, initial=start, desc=config.name, disable=log is None, mininterval=5)
    began, step = time.monotonic(), start
    with _asked_to_stop() as asked:
        while step < stop:
            batch = task.batch(step, accelerator.process_index, accelerator.num_processes)
            out = model(**send_to_device(batch, accelerator.device))
            accelerator.backward(out["loss"])
            norm = accelerator.clip_grad_norm_(model.parameters(), config.clip)
            for optimizer, peak in zip(optimizers, peaks, strict=True):
                for group in optimizer.param_groups:  # the rate is a function of the step and has no state to save
                    group["lr"] = peak * config.rate(step)
                optimizer.step()
                optimizer.zero_grad()
            ema.update_parameters(accelerator.unwrap_model(model))
            step += 1
            numbers, interrupted = _agree(accelerator, out, asked())
            if not torch.isfinite(torch.tensor(numbers["loss"])):
                last = checkpoints.newest(run)
                raise NotFinite(
                    f"the loss is {numbers['loss']} at step {step}; lower the learning rate and run again, "
                    f"it continues from step {checkpoints.step_of(last) if last else 0}"
                )
            if log:
                seconds = time.monotonic() - began
                log.row(step, step * config.batch, seconds, float(norm), config.rate(step - 1), numbers)
                bar.set_postfix(loss=f"{log.smooth:.4f}", refresh=False)
                bar.update()
            if step % config.save_every == 0 or step == stop or interrupted:
                _save(accelerator, run, step)
                if accelerator.is_main_process:
                    task.export(ema.module, run / "export.safetensors")
            if interrupted:
                break
    bar.close()
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return run


def _agree(accelerator: Accelerator, out: dict[str, Tensor], asked: bool) -> tuple[dict[str, float], bool]:
    """(numbers averaged over the processes, whether any of them was asked to stop), in one exchange."""
    numbers = [v.detach().float() for v in out.values()]
    asks = torch.tensor(float(asked), device=accelerator.device)
    *means, stops = accelerator.reduce(torch.stack([*numbers, asks]), "mean").tolist()
    return dict(zip(out, means, strict=True)), stops > 0


def ema_with_warmup(decay: float):
    """An average over the last 1/(1 - decay) steps, over fewer at the start: the first weights are soon forgotten."""

    @torch.no_grad()
    def update(averaged: list[Tensor], current: list[Tensor], count: Tensor) -> None:
        keep = min(decay, (1 + int(count)) / (10 + int(count)))
        for old, new in zip(averaged, current, strict=True):
            old.lerp_(new, 1 - keep) if old.is_floating_point() else old.copy_(new)

    return update


def my_rows(batch: int, rank: int, world: int) -> slice:
    """Which rows of the global batch this process computes."""
    if batch % world:
        raise ValueError(f"a batch of {batch} cannot be split over {world} processes; make it a multiple of {world}")
    return slice(rank * batch // world, (rank + 1) * batch // world)


def _save(accelerator: Accelerator, run: Path, step: int) -> None:
    aside = run / f"aside-{step}"
    accelerator.save_state(str(aside))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        checkpoints.finish(aside, run, step)
    accelerator.wait_for_everyone()


@contextmanager
def _asked_to_stop():
    """A function that says whether Ctrl-C or SIGTERM came; the loop ends at the next step with a checkpoint."""
    came = []
    before = {s: signal.signal(s, lambda *_: came.append(1)) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(came)
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


class Log:
    """log.csv, a row a step; rows past the step that a resumed run starts from are dropped."""

    def __init__(self, path: Path, start: int):
        self.path, self.smooth, self._names = path, float("nan"), None
        kept = []
        if path.exists() and start:
            with path.open() as f:
                kept = [r for r in csv.DictReader(f) if int(r["step"]) <= start]
        self._file = path.open("w", newline="")
        if kept:
            self._open(list(kept[0]))
            self._writer.writerows(kept)

    def _open(self, names: list[str]):
        self._writer = csv.DictWriter(self._file, names, extrasaction="ignore", lineterminator="\n")
        self._writer.writeheader()
        self._names = names

    def row(self, step, samples, seconds, norm, rate, numbers: dict[str, float]):
        row = {"step": step, "samples": samples, "seconds": f"{seconds:.1f}", "norm": f"{norm:.4f}"}
        row["rate"] = f"{rate:.4f}"
        row |= {k: f"{v:.5f}" for k, v in numbers.items()}
        if self._names is None:
            self._open(list(row))
        self._writer.writerow(row)
        self._file.flush()
        loss = numbers["loss"]
        self.smooth = loss if self.smooth != self.smooth else 0.98 * self.smooth + 0.02 * loss
