"""The one training loop. A task says what a batch and a loss are; Accelerate does processes and precision.

A step's data and noise are drawn from (seed, step) alone, never from what ran before, so a resumed run continues
exactly: the state is weights, EMA, optimizers and a step number.
"""

import math
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel
from tqdm.auto import tqdm

from snapref.training import checkpoints
from snapref.training.ahead import Ahead
from snapref.training.config import RunConfig
from snapref.training.log import Log
from snapref.training.optimizers import make_optimizers
from snapref.training.resume import agreed_start
from snapref.training.stopping import SIGNALS, Interrupted, asked_to_stop


class Task(Protocol):
    """What differs between codec, text, base, tagger and adapter."""

    model: nn.Module  # what learns; called as model(**batch) -> {"loss": scalar, other numbers}

    def batch(self, step: int, rank: int, world: int) -> dict[str, Tensor]:
        """This process's share of the step's batch, the same for the same step."""

    def export(self, model: nn.Module, path: Path) -> None:
        """Write the learnt weights as the package ships them."""

    # A task may also have
    #   reads_disk: bool: a batch is read, not computed, so the next one is fetched meanwhile;
    #   check(batch): called once before the first step; raises where training would learn something else;
    #   watch(model, run, step) -> numbers: called by one process after each checkpoint, with the EMA weights.


class NotFinite(ArithmeticError):
    """The loss was NaN or infinite; the last checkpoint is untouched."""


class NotSaved(OSError):
    """A checkpoint could not be written; the one before is untouched."""


class NoData(OSError):
    """A batch could not be read; the last checkpoint is untouched."""


def train(task: Task, config: RunConfig, runs: Path, until: int | None = None) -> Path:
    """Train to `config.steps` (or stop early at step `until`), resuming a run of that name; returns the run folder.

    Leaves `log.csv`, `config.json`, checkpoints, and `export.safetensors` (EMA weights, fp16) in runs/<name>.
    Raises NotFinite at the first loss that is not a number, NotSaved where the disk is full, NoData where a batch
    cannot be read and Interrupted after Ctrl-C or SIGTERM, each in one sentence that says where the run goes on;
    ValueError for a run that was begun with other settings, and for a batch that cannot be split.
    """
    if until is not None and until < 1:
        raise ValueError(f"until is {until}; give the step to stop at, from 1 to {config.steps}")
    accelerator = Accelerator(
        mixed_precision=config.precision, cpu=not torch.cuda.is_available(),
        gradient_accumulation_steps=config.accumulate,
    )
    run = runs / config.name
    rank, world, device = accelerator.process_index, accelerator.num_processes, accelerator.device
    refuse_uneven(config, world)
    last = agreed_start(accelerator, run, config)
    start = checkpoints.step_of(last) if last else 0
    stop, interrupted = min(config.steps, until or config.steps), 0
    if start < stop and (check := getattr(task, "check", None)):
        check(send_to_device(task.batch(start, rank, world), device))

    ema = AveragedModel(task.model, device=device, multi_avg_fn=ema_with_warmup(config.ema), use_buffers=True)
    optimizers = make_optimizers(task.model, config)
    peaks = [o.defaults["lr"] for o in optimizers]
    model, *optimizers = accelerator.prepare(task.model, *optimizers)
    accelerator.register_for_checkpointing(ema)
    if last:
        load(accelerator, last)

    log = Log(run / "log.csv", start, config.tensorboard) if accelerator.is_main_process else None
    bar = tqdm(total=stop, initial=start, desc=config.name, disable=log is None, mininterval=5)
    watched: dict[str, float] = {}
    began, step = time.monotonic(), start
    ahead = Ahead(lambda s: task.batch(s, rank, world), stop, getattr(task, "reads_disk", False))
    with asked_to_stop() as asked, ahead:
        while step < stop:
            outs = []
            for part in parts(read(ahead, step, run), config.accumulate):
                with accelerator.accumulate(model):
                    out = model(**send_to_device(part, device))
                    accelerator.backward(out["loss"])
                    outs.append(out)
                    if accelerator.sync_gradients:
                        norm = full(accelerator.clip_grad_norm_(model.parameters(), config.clip))
                    for optimizer, peak in zip(optimizers, peaks, strict=True):
                        for group in optimizer.param_groups:  # a function of the step, without a state to save
                            group["lr"] = peak * config.rate(step)
                        optimizer.step()
                        optimizer.zero_grad()
            ema.update_parameters(whole(accelerator.unwrap_model(model)))
            step += 1
            numbers, interrupted = _agree(accelerator, outs, asked())
            # With fp16 Accelerate lowers its loss scale and leaves out a step whose gradient is not finite.
            finite = {"loss": numbers["loss"], "gradient": 0.0 if config.precision == "fp16" else float(norm)}
            for what, value in finite.items():
                if not math.isfinite(value):
                    raise NotFinite(f"the {what} is {value} at step {step}; {ways_on(run, config)}")
            if log:
                seconds = time.monotonic() - began
                share = ahead.waited / max(seconds, 1e-9)
                log.row(step, step * config.batch, seconds, float(norm), config.rate(step - 1), numbers, share)
                told = {"gap": f"{watched['gap']:.4f}"} if "gap" in watched else {}
                bar.set_postfix(loss=f"{log.smooth:.4f}", **told, refresh=False)
                bar.update()
            if step % config.save_every == 0 or step == stop or interrupted:
                watched = _save(accelerator, task, ema.module, run, step, config.keep)
                if log:
                    log.scalars(step, {f"heldout/{name}": number for name, number in watched.items()})
            if interrupted:
                break
    bar.close()
    if log:
        log.close()
    accelerator.wait_for_everyone()
    accelerator.end_training()
    if interrupted and step < stop:
        name = signal.Signals(interrupted).name
        raise Interrupted(f"{config.name} was stopped by {name} and kept at step {step} of {stop}; the same command "
                          "goes on from there", interrupted)
    return run


def refuse_uneven(config: RunConfig, world: int) -> None:
    """Raises ValueError for a batch that the processes and their parts cannot share."""
    if config.batch % (world * config.accumulate):
        raise ValueError(
            f"a batch of {config.batch} cannot be split over {world} processes in {config.accumulate} parts each; make "
            f"it a multiple of {world * config.accumulate}"
        )


def ways_on(run: Path, config: RunConfig) -> str:
    """What to do when the numbers have run away: the same run would run away again."""
    rates = f"adamw_lr {config.adamw_lr:g}"
    if config.optimizer == "muon":
        rates = f"muon_lr {config.muon_lr:g} and {rates}"
    step, onward = last_step(run), ""
    if step:
        onward = (f" under another --name with {run / 'export.safetensors'} as init (unchanged, this one continues "
                  f"from step {step})")
    return f"lower the learning rate, in a copy of the config with less than {rates}, and begin{onward or ' again'}"


def load(accelerator: Accelerator, checkpoint: Path) -> None:
    """Raises ValueError for a checkpoint of other parameters than these."""
    try:
        accelerator.load_state(str(checkpoint))
    except (RuntimeError, KeyError) as error:
        said = str(error).strip().splitlines()[-1].strip()
        raise ValueError(
            f"{checkpoint} does not fit what is trained here ({said}); train it with what it was begun with, or give "
            "another --name for a new run"
        ) from error


def read(ahead: Ahead, step: int, run: Path) -> dict[str, Tensor]:
    """The step's batch. Raises NoData, saying where the run goes on once the data are back."""
    try:
        return ahead.batch(step)
    except (OSError, SafetensorError, ValueError) as error:
        raise NoData(f"{error}; the run stopped at step {step} and continues from step {last_step(run)}") from error


def last_step(run: Path) -> int:
    last = checkpoints.newest(run)
    return checkpoints.step_of(last) if last else 0


def parts(batch: dict[str, Tensor], count: int) -> Iterator[dict[str, Tensor]]:
    """A batch in `count` equal parts, row after row; what is no tensor goes into each of them."""
    rows = next(len(value) for value in batch.values() if isinstance(value, Tensor))
    for part in range(count) if count > 1 else ():
        mine = my_rows(rows, part, count, "parts (accumulate)")
        yield {k: v[mine] if isinstance(v, Tensor) else v for k, v in batch.items()}
    if count == 1:
        yield batch


def whole(model: nn.Module) -> nn.Module | SimpleNamespace:
    """The model with its whole parameters, where FSDP has split them over the processes."""
    if not any(isinstance(p, DTensor) for p in model.parameters()):
        return model
    gathered = [full(p) for p in model.parameters()]
    return SimpleNamespace(parameters=lambda: iter(gathered), buffers=model.buffers)


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _agree(accelerator: Accelerator, outs: list[dict[str, Tensor]], asked: int) -> tuple[dict[str, float], int]:
    """(numbers averaged over parts and processes, the signal that any of them was asked to stop by, or 0)."""
    numbers = [torch.stack([out[name].detach().float() for out in outs]).mean() for name in outs[0]]
    asks = [torch.tensor(float(asked == number), device=accelerator.device) for number in SIGNALS]
    *means, one, other = accelerator.reduce(torch.stack([*numbers, *asks]), "mean").tolist()
    found = [number for number, share in zip(SIGNALS, (one, other), strict=True) if share]
    return dict(zip(outs[0], means, strict=True)), max(found, default=0)


def ema_with_warmup(decay: float):
    """An average over the last 1/(1 - decay) steps, over fewer at the start: the first weights are soon forgotten."""

    @torch.no_grad()
    def update(averaged: list[Tensor], current: list[Tensor], count: Tensor) -> None:
        keep = min(decay, (1 + int(count)) / (10 + int(count)))
        for old, new in zip(averaged, current, strict=True):
            old.lerp_(new, 1 - keep) if old.is_floating_point() else old.copy_(new)

    return update


def my_rows(batch: int, rank: int, world: int, sharing: str = "processes") -> slice:
    """Which rows of the global batch this process computes."""
    if batch % world:
        raise ValueError(f"a batch of {batch} cannot be split over {world} {sharing}; make it a multiple of {world}")
    return slice(rank * batch // world, (rank + 1) * batch // world)


def _save(accelerator: Accelerator, task: Task, averaged: nn.Module, run: Path, step: int, keep: int) -> dict:
    """A checkpoint and the exported weights; returns what `task.watch` saw. Raises NotSaved in every process."""
    aside, watched, failure = run / f"aside-{step}", {}, None
    try:
        accelerator.save_state(str(aside))
    except (OSError, RuntimeError, SafetensorError) as error:  # each library has its own word for a full disk
        failure = error
    _all_well(accelerator, failure, run, step)
    if accelerator.is_main_process:
        try:
            checkpoints.finish(aside, run, step, keep)
            task.export(averaged, run / "export.safetensors")
            if watch := getattr(task, "watch", None):
                watched = watch(averaged, run, step)
        except (OSError, SafetensorError) as error:
            failure = error
    _all_well(accelerator, failure, run, step)
    return watched


def _all_well(accelerator: Accelerator, failure: Exception | None, run: Path, step: int) -> None:
    """Raises NotSaved in every process if there was a failure in any, having removed what was half written."""
    failed = torch.tensor(float(failure is not None), device=accelerator.device)
    if accelerator.reduce(failed, "sum").item() == 0:
        return
    if accelerator.is_main_process:
        checkpoints.clear(run)
    reason = f"{failure}".split("\n")[0] if failure else "another process failed"
    free = shutil.disk_usage(run).free / 1e9
    raise NotSaved(
        f"the checkpoint of step {step} cannot be written to {run} ({reason}; {free:.2f} GB are free); make room and "
        f"run again, it continues from step {last_step(run)}"
    ) from failure
