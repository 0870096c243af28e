"""The plan of memory as bars: what lies on the card in each phase of a run, by kind."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure

from snapref.config import BASE, ModelConfig
from snapref.lab.plots import BLUE, GREEN, ORANGE, PINK, RED, SKY, figure
from snapref.sampling.memory import GB, Ask, Plan, make_plan

# How a part's name in the plan begins -> the kind it is drawn as, from the axis outwards.
KINDS = {
    "CUDA": "CUDA itself",
    "model:": "model",
    "two visiting blocks": "model",
    "text encoder": "text encoder",
    "codec": "codec",
    "adapter": "adapter",
    "target branch": "adapter",
    "reference cache": "reference cache",
}
ACTIVATIONS = "activations"  # and what rounding adds: all that is left of a phase's peak
COLOURS = {
    "CUDA itself": "#999999", "model": BLUE, "text encoder": SKY, "codec": GREEN, "adapter": ORANGE,
    "reference cache": RED, ACTIVATIONS: PINK,
}  # fmt: skip
HATCHES = {"reference cache": "//", ACTIVATIONS: ".."}  # a second sign beside the colour
PHASES = (
    "reading the prompt", "encoding the picture", "reading the reference", "drawing", "decoding",
)  # fmt: skip


@dataclass(frozen=True)
class Card:
    """A card and how Anima is held on it. gb: its memory; half, single: published dense TFLOP/s of matrix products
    with fp32 sums, in 16 bits and in fp32."""

    name: str
    gb: float
    dtype: torch.dtype
    half: float
    single: float
    fp8: bool = False
    offload: bool = False

    @property
    def words(self) -> str:
        held = "fp8 file" if self.fp8 else str(self.dtype).removeprefix("torch.").replace("float16", "fp16")
        held = held.replace("bfp16", "bf16")
        return f"{self.name}, {held}{', offload' if self.offload else ''}"

    def ask(self, config: ModelConfig = BASE, **changes) -> Ask:
        """Returns what the plan is asked for: one picture of the model's own size with one reference."""
        ask = Ask(config, self.dtype, config.default_size, fp8=self.fp8, offload=self.offload)
        return dataclasses.replace(ask, **{"ref_megapixels": config.default_ref_megapixels, **changes})


CARDS = (
    Card("T4, 15 GB", 15, torch.float16, 65, 8.1),
    Card("8 GB card", 8, torch.bfloat16, 30, 15, fp8=True),
    Card("8 GB card", 8, torch.bfloat16, 30, 15, offload=True),
    Card("24 GB card", 24, torch.bfloat16, 165, 83),
)


def kind_of(name: str) -> str:
    """Returns the kind of a part of the plan. Raises KeyError for one that has no colour."""
    for start, kind in KINDS.items():
        if name.startswith(start):
            return kind
    raise KeyError(f"the plan has a part {name!r} that no kind of the figure takes; add it to KINDS")


def stacks(plan: Plan) -> dict[str, dict[str, int]]:
    """Returns {phase: {kind: bytes on the card}}; the kinds of a phase add up to its peak in the plan.

    Raises ArithmeticError if what lies there is more than the peak.
    """
    found = {}
    for phase, peak in plan.phases.items():
        kinds = dict.fromkeys(COLOURS, 0)
        for part in plan.parts:
            if is_there(part.name, part.where, phase):
                kinds[kind_of(part.name)] += part.bytes
        rest = peak - sum(kinds.values())
        if rest < 0:
            raise ArithmeticError(f"parts exceed the peak of {phase!r} by {-rest:,} bytes; is_there is behind the plan")
        found[phase] = {**kinds, ACTIVATIONS: rest}
    return found


def is_there(name: str, where: str, phase: str) -> bool:
    """Whether a part lies on the card while a phase has its peak."""
    kind = kind_of(name)
    if where == "host":
        return False
    if kind == "text encoder":
        return phase == PHASES[0]
    if kind == "reference cache":
        return PHASES.index(phase) >= 2
    return not name.startswith("target branch") or phase == "drawing"


def memory_bars(asks: Mapping[str, Ask], gb: Sequence[float]) -> Figure:
    """Returns one panel per ask, a bar per phase. gb: where the line of each card stands."""
    drawn = figure(7.6, 0.9 + 1.55 * len(asks))
    panels = drawn.subplots(len(asks), 1, sharex=True, squeeze=False)[:, 0]
    widest = 0.0
    for axes, (name, ask), room in zip(panels, asks.items(), gb, strict=True):
        bars = stacks(make_plan(ask))
        for row, kinds in enumerate(bars.values()):
            left = 0.0
            for kind, size in kinds.items():
                axes.barh(row, size / GB, left=left, color=COLOURS[kind], hatch=HATCHES.get(kind), height=0.78,
                          edgecolor="white", linewidth=0.5)  # fmt: skip
                left += size / GB
            axes.text(left + 0.12, row, f"{left:.1f}", va="center", fontsize=8,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}, zorder=4)  # fmt: skip
            widest = max(widest, left + 1)
        axes.axvline(room, color="black", linewidth=1.5)
        axes.set_yticks(range(len(bars)), list(bars), fontsize=8)
        axes.invert_yaxis()
        if name:
            axes.set_title(name, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        widest = max(widest, room + 1)
    panels[-1].set(xlabel="GB on the card; black line: what the card has", xlim=(0, widest))
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=c, hatch=HATCHES.get(k), edgecolor="white", label=k) for k, c in COLOURS.items()]
    drawn.legend(handles=patches, loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return drawn
