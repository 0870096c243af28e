"""What a training run will take, before anything starts: parameters, memory by part, time. All of it computed.

Weights and states are counted; activations and arithmetic come from the step itself, run without content
(`footprint`) on a few blocks and carried on to all of them, for every further block adds the same.
"""

import math
from dataclasses import asdict, dataclass, replace

import torch

from snapref.anima.model import AnimaDiT
from snapref.config import AdapterConfig, ModelConfig
from snapref.reference.branches import Adapter
from snapref.training.adapter_task import adapter_config, freeze_unread
from snapref.training.config import RunConfig
from snapref.training.footprint import Footprint, step_footprint
from snapref.training.options import DTYPES, MODELS, check_options

# GB of memory → what a card of that size is, and its published dense matrix rate in half precision, TFLOP/s.
CARDS = {16: ("T4", 65), 24: ("RTX 4090", 165), 40: ("A100", 312), 48: ("L40S", 362), 80: ("H100", 989),
         141: ("H200", 989)}
REACHED = 0.4  # share of that rate that a well-fed training step usually gets; an assumption, to be replaced by a run
STATE = {"muon": 4, "adamw": 8, "adamw8bit": 2}  # bytes per learning parameter


@dataclass(frozen=True)
class TrainPlan:
    """Bytes per card, seconds of computed time. `memory` sums to `total`."""

    config: str
    model: str
    trainable: int  # parameters of the two branches
    unread: int  # of these: of the reference's last block, which nothing reads; they get no gradient and no state
    memory: dict[str, int]
    total: int
    card: str
    card_bytes: int
    fits: bool
    pairs_per_card: int  # that go through the model at once
    tflop_per_pair: float
    tflops: float  # assumed to be reached by a card
    seconds_per_step: float
    pairs_per_second: float
    steps: int
    hours: float
    card_hours: float

    def to_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        rows = [f"{self.config}: {self.trainable:,} trainable parameters in two branches on {self.model}"]
        rows.append(f"  ({self.unread:,} of them are never read and stay as they are: the reference's last block)")
        rows.append(f"memory per card, {self.pairs_per_card} pairs at once, computed:")
        rows += [f"  {name:<24}{size / 1e9:8.2f} GB" for name, size in self.memory.items()]
        rest = f"fits {self.card}" if self.fits else f"does NOT fit {self.card}: take recompute, or accumulate more"
        rows.append(f"  {'together':<24}{self.total / 1e9:8.2f} GB, {rest} ({self.card_bytes / 1e9:.0f} GB)")
        rows.append(
            f"time, computed at {self.tflops:.0f} TFLOP/s ({REACHED:.0%} of the card's published rate unless given): "
            f"{self.tflop_per_pair:.1f} TFLOP a pair, {self.seconds_per_step:.2f} s a step, "
            f"{self.pairs_per_second:.2f} pairs/s, {self.steps:,} steps in {self.hours:.1f} h = "
            f"{self.card_hours:.0f} card hours"
        )
        return "\n".join(rows)


def plan_training(
    config: RunConfig, card: float = 80, cards: int = 1, tflops: float | None = None,
    size: tuple[int, int] | None = None, ref_size: tuple[int, int] | None = None,
) -> TrainPlan:
    """The plan of an adapter config on `cards` cards of `card` GB.

    tflops: what a card reaches, instead of the assumption; size, ref_size: (height, width) in pixels of target and
    reference (None: the model's own size). Raises ValueError for what is no adapter, for cards that cannot be, and for
    a batch that cannot be split over them.
    """
    if config.task != "adapter":
        raise ValueError(f"{config.name} trains {config.task}; a plan is made for adapters, such as v1a")
    check_options(config)
    for name, value, unit in (("card", card, " GB of memory"), ("tflops", tflops, ""), ("cards", cards, "")):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value:g}; it must be above 0{unit}")
    options, model = config.options, MODELS[config.options.get("model", "nano")]
    adapter, dtype = adapter_config(options), DTYPES[options.get("dtype", "float32")]
    at_once, left = divmod(config.batch, cards * config.accumulate)
    if left or not at_once:
        raise ValueError(
            f"a batch of {config.batch} cannot be split over {cards} cards in {config.accumulate} parts; "
            f"make it a multiple of {cards * config.accumulate}"
        )
    trainable, unread = counted(adapter, model)
    learning = trainable - unread
    sizes = {"latent": size or model.default_size, "reference": ref_size or model.default_size}
    rows = {name: tuple(side // model.codec.factor for side in value) for name, value in sizes.items()}
    step = carried_on(
        model, adapter, **rows, batch=at_once, dtype=dtype, recompute=options.get("recompute", False),
        context_rows=model.text.context_rows, precision=config.precision,
    )
    memory = memory_of(model, config.optimizer, trainable, learning, step, dtype, cards)
    named, rate = card_of(card)
    reached = tflops or rate * REACHED
    per_pair = step.flops / at_once / 1e12
    seconds = per_pair * at_once * config.accumulate / reached
    hours = seconds * config.steps / 3600
    total = sum(memory.values())
    return TrainPlan(
        config.name, model.name, trainable, unread, memory, total, named, int(card * 1e9), total < card * 1e9,
        at_once, per_pair, reached, seconds, config.batch / seconds, config.steps, hours, hours * cards,
    )


def memory_of(
    model: ModelConfig, optimizer: str, trainable: int, learning: int, step: Footprint, dtype: torch.dtype, cards: int
) -> dict[str, int]:
    """Bytes by part at the moment when most is needed."""
    return {
        "frozen base": base_parameters(model) * dtype.itemsize,
        "branches": 4 * trainable,
        "average (EMA)": 4 * trainable,
        "optimizer state": STATE[optimizer] * learning,
        "gradients": 4 * learning,
        "exchange of gradients": 4 * learning if cards > 1 else 0,
        "kept for the backward": step.kept,
        "working memory": max(0, step.peak - step.kept - step.gradients),
    }


def counted(adapter: AdapterConfig, model: ModelConfig) -> tuple[int, int]:
    """(parameters of both branches, those of them that get no gradient)."""
    with torch.device("meta"):
        branches = Adapter(adapter, model)
    freeze_unread(branches)
    unread = sum(p.numel() for p in branches.parameters() if not p.requires_grad)
    return branches.parameter_count, unread


def base_parameters(model: ModelConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in AnimaDiT(model).parameters())


def carried_on(model: ModelConfig, adapter: AdapterConfig, few: tuple[int, int] = (4, 6), **options) -> Footprint:
    """The footprint of a step of all blocks, from those of two smaller numbers of blocks."""
    blocks = model.dit.blocks
    if blocks <= few[1]:
        return step_footprint(model, adapter, **options)
    one, two = (
        step_footprint(replace(model, dit=replace(model.dit, blocks=count)), adapter, **options) for count in few
    )
    return Footprint(**{
        name: value + (getattr(two, name) - value) * (blocks - few[0]) // (few[1] - few[0])
        for name, value in asdict(one).items()
    })


def card_of(gigabytes: float) -> tuple[str, float]:
    """(name, TFLOP/s) of the largest known card of at most that memory."""
    fitting = [size for size in CARDS if size <= gigabytes] or [min(CARDS)]
    return CARDS[max(fitting)]
