"""The training loop against the least time its arithmetic takes, and its memory against the plan's.

Full-width blocks with random weights, one pair of a bucket of the real size, through `train` itself: data read from
a file, forward, backward with gradient checkpointing, clipping, optimizer and average. Neither text encoder nor VAE is
there. Memory is measured in a process of its own for two numbers of blocks and carried on to all of them.
"""

import csv
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import torch
from safetensors import safe_open
from torch import Tensor

from snapref.anima.init import initialise
from snapref.anima.model import AnimaDiT
from snapref.config import BASE, V1A, AdapterConfig, ModelConfig
from snapref.evaluation.bench_forward import randomised
from snapref.evaluation.floor import Stopwatch, flops, step_products
from snapref.evaluation.in_run import InRun, seen
from snapref.files.weights import save_weights
from snapref.reference.branches import Adapter
from snapref.training.adapter_task import AdapterStep, freeze_unread
from snapref.training.config import RunConfig
from snapref.training.footprint import step_footprint
from snapref.training.loop import train
from snapref.training.train_plan import carried_on, counted, memory_of

ROWS = 8  # pairs in the file that the data are read from


@dataclass(frozen=True)
class Job:
    """What is timed: `model`'s first blocks, one target and one reference of these sizes in pixels."""

    model: ModelConfig = BASE
    adapter: AdapterConfig = V1A
    blocks: int = 2
    size: tuple[int, int] = BASE.default_size  # (height, width)
    ref_size: tuple[int, int] = BASE.default_size
    steps: int = 5  # the first one is not counted, and the last one has no end

    @property
    def small(self) -> ModelConfig:
        return self.model_of(self.blocks)

    def model_of(self, blocks: int) -> ModelConfig:
        return replace(self.model, text=None, dit=replace(self.model.dit, blocks=blocks))

    @property
    def latents(self) -> dict[str, tuple[int, int]]:
        """{"latent", "reference"} → (h, w) in latent pixels."""
        factor = self.model.codec.factor
        return {"latent": (self.size[0] // factor, self.size[1] // factor),
                "reference": (self.ref_size[0] // factor, self.ref_size[1] // factor)}

    @property
    def tokens(self) -> tuple[int, int]:
        patch = self.model.dit.patch
        return tuple(h // patch * (w // patch) for h, w in self.latents.values())

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if torch.cuda.is_available() else torch.float32


@dataclass(frozen=True)
class TrainBench:
    """Seconds are the quickest of all rounds, a step and each product once in every round, which a busy machine
    disturbs least; memory in bytes. `…_all` is for the model's own number of blocks, computed."""

    in_run: float  # a step over the floor's operations at the pace of its own products; median of the steps
    in_run_low: float  # of the best step
    in_run_high: float  # of the worst
    flops_over_floor: float  # operations of a step over the floor's
    seconds: float
    floor_seconds: float  # the products of the floor by themselves, between the steps
    ratio: float
    ratio_low: float  # of the best round by itself
    ratio_high: float  # of the worst
    floor_seconds_all: float
    over_plain: float  # the floor as a multiple of the plain target's forward and backward, checkpointed alike
    data_share: float  # of the loop's time, spent waiting for a batch
    flops: int
    measured_peaks: dict[int, int]  # blocks → bytes
    predicted_peaks: dict[int, int]
    measured_peak_all: int  # carried on from the measured ones
    predicted_peak_all: int
    blocks: int
    all_blocks: int
    width: int
    tokens: tuple[int, int]
    steps: int
    device: str
    threads: int

    def to_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        pairs = [(n, self.measured_peaks[n], self.predicted_peaks[n]) for n in self.measured_peaks]
        pairs.append((self.all_blocks, self.measured_peak_all, self.predicted_peak_all))
        peaks = "; ".join(
            f"{n} blocks {a / 1e9:.2f} GB, predicted {b / 1e9:.2f} ({b / a - 1:+.1%})" for n, a, b in pairs if a
        )
        return (
            f"{self.blocks} blocks of width {self.width}, {self.tokens[0]} target and {self.tokens[1]} reference "
            f"tokens, {self.device}, {self.threads} threads: {self.seconds:.2f} s a step, "
            f"{self.in_run:.3f} × the floor at the pace of its own products ({self.in_run_low:.3f} to "
            f"{self.in_run_high:.3f}, {self.steps} steps), of whose operations it does {self.flops_over_floor:.3f}\n"
            f"the floor's products by themselves {self.floor_seconds:.2f} s, quickest over quickest {self.ratio:.3f} "
            f"(round by round {self.ratio_low:.3f} to {self.ratio_high:.3f})\n"
            f"floor of {self.all_blocks} blocks {self.floor_seconds_all:.1f} s, {self.over_plain:.2f} times the plain "
            f"target's forward and backward; waiting for data {self.data_share:.2%} of the loop\n"
            f"peak memory above the start (the last one carried on): {peaks or 'not measured'}"
        )


class BenchTask:
    """Random blocks on random pairs that are read from a file, as a prepared set is."""

    reads_disk = True

    def __init__(self, job: Job, folder: Path, between: Callable[[], object] | None = None):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dit = randomised(initialise(AnimaDiT(job.small)), torch.Generator().manual_seed(0))
        dit = dit.to(device, job.dtype).requires_grad_(False)
        adapter = Adapter(job.adapter, job.small)
        freeze_unread(adapter)
        self.model = AdapterStep(dit, adapter, recompute=True)
        self.between = between  # called before every step, outside of its time; None: steps are not looked into
        self.device = device
        self.steps: list[InRun] = []
        self.step = ExitStack()
        self.model.register_forward_pre_hook(self.note)
        self.path = folder / "pairs.safetensors"
        save_weights(pairs_of(job), self.path, torch.float16)

    def note(self, *_) -> None:
        """A step begins, and the one before has ended."""
        if self.between is not None:
            self.step.close()
            self.between()
            self.steps.append(self.step.enter_context(seen(self.device)))

    def batch(self, step: int, rank: int, world: int) -> dict[str, Tensor]:
        row = slice(step % ROWS, step % ROWS + 1)
        with safe_open(self.path, "pt") as file:
            batch = {name: file.get_slice(name)[row].float() for name in file.keys()}
        return {**batch, "sigma": torch.tensor([0.7]), "reads": torch.tensor([True])}

    def export(self, model: AdapterStep, path: Path) -> None:
        """Nothing is kept of a bench."""


def pairs_of(job: Job) -> dict[str, Tensor]:
    channels, rows = job.model.dit.latent_channels, job.model.text.context_rows
    sizes = {"latent": job.latents["latent"], "noise": job.latents["latent"], "reference": job.latents["reference"]}
    pictures = {name: torch.randn(ROWS, channels, 1, *size) for name, size in sizes.items()}
    width = job.model.dit.context_width
    return {**pictures, **{name: torch.randn(ROWS, rows, width) for name in ("context", "reference_context")}}


def run(job: Job, folder: Path, between: Callable[[], object] | None = None) -> tuple[list[InRun], float]:
    """(each step but the first and the last, share of waiting for data) of the loop."""
    task = BenchTask(job, folder, between)
    settings = RunConfig(
        task="adapter", name="bench", steps=job.steps, batch=1, warmup=1, save_every=job.steps, optimizer="adamw",
        adamw_lr=1e-4,
    )
    train(task, settings, folder, until=job.steps)
    with (folder / "bench/log.csv").open() as file:
        share = float([*csv.DictReader(file)][-1]["data"])
    task.step.close()
    return task.steps[1:-1], share


def bench_train(job: Job | None = None, memory: tuple[int, ...] = (2, 4), rounds: int = 2) -> TrainBench:
    """The whole bench. memory: numbers of blocks to measure the peak for; () for none."""
    job = job or Job()
    rows, model = job.model.text.context_rows, job.model
    watch = Stopwatch(job.dtype, torch.device("cuda" if torch.cuda.is_available() else "cpu"), rounds)

    def products(blocks: int, adapter: AdapterConfig | None = job.adapter):
        return step_products(job.model_of(blocks).dit, adapter, *job.tokens, rows)

    floors: list[float] = []  # as they are when the step before has ended
    with tempfile.TemporaryDirectory() as folder:
        steps, share = run(job, Path(folder), lambda: floors.append(watch.round(products(job.blocks))))
    seconds, needed = [step.seconds for step in steps], flops(products(job.blocks))
    ratios = [step / floor for step, floor in zip(seconds, floors[2:], strict=False)]
    in_run = [step.seconds / (step.products * needed / step.flops) for step in steps]
    floor, floor_all = (watch.seconds(products(n)) for n in (job.blocks, model.dit.blocks))
    plain = watch.seconds(products(model.dit.blocks, None))
    measured = {n: measured_peak(replace(job, blocks=n, steps=2)) for n in memory}
    predicted = {n: predicted_peak(job, n) for n in (*memory, model.dit.blocks)}
    return TrainBench(
        in_run=median(in_run), in_run_low=min(in_run), in_run_high=max(in_run),
        flops_over_floor=steps[0].flops / needed, seconds=min(seconds), floor_seconds=floor,
        ratio=min(seconds) / floor, ratio_low=min(ratios), ratio_high=max(ratios), floor_seconds_all=floor_all,
        over_plain=floor_all / plain, data_share=share, flops=needed, measured_peaks=measured,
        predicted_peaks={n: predicted[n] for n in memory}, measured_peak_all=line(measured, model.dit.blocks),
        predicted_peak_all=predicted[model.dit.blocks], blocks=job.blocks, all_blocks=model.dit.blocks,
        width=model.dit.width, tokens=job.tokens, steps=len(ratios), device=watch.device.type,
        threads=torch.get_num_threads(),
    )


def line(peaks: dict[int, int], blocks: int) -> int:
    """The straight line through the first and last measured number of blocks, at `blocks`; 0 without two."""
    if len(peaks) < 2:
        return 0
    low, high = min(peaks), max(peaks)
    return peaks[low] + (peaks[high] - peaks[low]) * (blocks - low) // (high - low)


def predicted_peak(job: Job, blocks: int) -> int:
    """What the plan says of a run of that many blocks, the text side left out as in the bench."""
    model = job.model_of(blocks)
    options = {**job.latents, "context_rows": job.model.text.context_rows, "dtype": job.dtype}
    step = (carried_on if blocks > 6 else step_footprint)(model, job.adapter, **options)
    trainable, unread = counted(job.adapter, model)
    return sum(memory_of(model, "adamw", trainable, trainable - unread, step, job.dtype, 1).values())


def measured_peak(job: Job) -> int:
    """Bytes that a run needs above what its process had before, at the worst moment."""
    # glibc would keep freed memory for later and count it as used; from this size on it is given back at once.
    before = os.environ.get("MALLOC_MMAP_THRESHOLD_")
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    try:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_tell_peak, args=(job, theirs))
        process.start()
        theirs.close()
        try:
            return mine.recv()
        except EOFError:
            raise MemoryError(f"the run of {job.blocks} blocks was ended before it could tell its memory") from None
        finally:
            process.join()
    finally:
        if before is None:
            del os.environ["MALLOC_MMAP_THRESHOLD_"]
        else:
            os.environ["MALLOC_MMAP_THRESHOLD_"] = before


def _tell_peak(job: Job, pipe) -> None:
    with tempfile.TemporaryDirectory() as folder:
        before = 0 if torch.cuda.is_available() else status("VmRSS")
        run(job, Path(folder))
        pipe.send((torch.cuda.max_memory_allocated() if torch.cuda.is_available() else status("VmHWM")) - before)


def status(name: str) -> int:
    """A number of /proc/self/status in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(next(row for row in text.splitlines() if row.startswith(name)).split()[1]) * 1024
