"""What remembering a reference takes and saves: bytes, arithmetic, and pictures of both."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, cycle, product
from statistics import median, quantiles
from time import perf_counter

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from snapref.config import DiTConfig, ModelConfig
from snapref.lab.plots import BLUE, GREEN, ORANGE, PINK, SKY, YELLOW, figure

# Published times of one picture, seconds on an A100, 832×1216, 28 steps, each at its own defaults.
# Never measured here.
PUBLISHED_SECONDS = {
    "no reference": 7.7, "SnapRef v1a": 8.9, "Role-Ref-KV": 12.5, "Anima Reference Adapter v2": 14.4,
}  # fmt: skip

FILLS = (BLUE, SKY, PINK, GREEN, ORANGE, YELLOW)


def cache_bytes(dit: DiTConfig, tokens: int, bytes_per_number: int) -> int:
    """Bytes of keys and values: 2 · blocks · width · tokens · bytes per number."""
    return 2 * dit.blocks * dit.width * tokens * bytes_per_number


def pass_flops(dit: DiTConfig, tokens: int, keys: int, context_rows: int, blocks: int | None = None) -> int:
    """Floating-point operations of `tokens` tokens through the blocks, each token attending to `keys` keys.

    A product of an (m, k) and a (k, n) matrix counts 2·m·k·n. Left out: norms, modulation, the patch layers.
    blocks: None for all.
    """
    width, hidden = dit.width, dit.mlp_ratio * dit.width
    linear = 4 * width**2 + 2 * width**2 + 2 * width * hidden  # self q,k,v,o; cross q,o; MLP
    attention = 2 * width * (keys + context_rows)  # logits, then values
    text = 2 * context_rows * dit.context_width * width  # keys and values of the context, once per pass
    return 2 * (dit.blocks if blocks is None else blocks) * (tokens * (linear + attention) + text)


def encode_flops(dit: DiTConfig, tokens: int, context_rows: int) -> int:
    """The way of a reference: all blocks but the last, of which only k and v are wanted."""
    whole = pass_flops(dit, tokens, tokens, context_rows, dit.blocks - 1)
    return whole + 2 * tokens * 2 * dit.width**2


def route_flops(config: ModelConfig, target: int, reference: int, steps: int) -> dict[str, int]:
    """Operations of a whole guided picture by route; target, reference: tokens. Two passes a step, one reads.

    "one sequence" has the reference beside the target in both passes, everybody attending to everybody.
    """
    dit, rows = config.dit, config.text.context_rows
    plain = 2 * steps * pass_flops(dit, target, target, rows)
    reading = plain + steps * 2 * dit.blocks * target * 2 * dit.width * reference
    encode = encode_flops(dit, reference, rows)
    both = target + reference
    return {
        "no reference": plain,
        "read once": reading + encode,
        "read at every step": reading + steps * encode,
        "one sequence": 2 * steps * pass_flops(dit, both, both, rows),
    }


def interleaved(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call in every round. They take turns, so that a busy moment hits all of them alike."""
    names, times = list(calls), {name: [] for name in calls}
    for round_ in range(-1, rounds):  # the first round warms up and is not counted
        for name in names if round_ % 2 else names[::-1]:
            start = perf_counter()
            calls[name]()
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # a GPU answers before it is done
            if round_ >= 0:
                times[name].append(perf_counter() - start)
    return times


def ratio(times: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """(median, lower, upper quartile) of times / base, round by round."""
    ratios = [a / b for a, b in zip(times, base, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return median(ratios), low, high


def mask_picture(target: int, pictures: Sequence[int]) -> Figure:
    """Who reads whom in the joint sequence: a row for each reading token, a column for each token read."""
    sizes = [target, *pictures]
    names = ["target", *(f"picture {i}" for i in range(1, len(sizes)))]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    drawn = figure(5.2, 4.6)
    axes = drawn.subplots()
    for reader, read in product(range(len(sizes)), repeat=2):
        colour, label = kind_of(reader, read)
        left, top, width, height = starts[read], starts[reader], sizes[read], sizes[reader]
        field = Rectangle((left, top), width, height, facecolor=colour, edgecolor="black", linewidth=1.5)
        axes.add_patch(field)
        axes.text(
            left + width / 2, top + height / 2, label, ha="center", va="center", fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2},
        )  # fmt: skip
    total = sum(sizes)
    axes.hlines(range(1, total), 0, total, color="white", linewidth=0.4)
    axes.vlines(range(1, total), 0, total, color="white", linewidth=0.4)
    middles = [start + size / 2 for start, size in zip(starts, sizes, strict=True)]
    axes.set_xticks(middles, names)
    axes.set_yticks(middles, names)
    axes.tick_params(length=0)
    axes.set(xlim=(0, total), ylim=(total, 0), aspect="equal", xlabel="is read", ylabel="reads")
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)
    return drawn


def kind_of(reader: int, read: int) -> tuple[str, str]:
    """(colour, text) of a field of the mask; part 0 is the target."""
    if reader == 0:
        return (ORANGE, "at every step,\nfrom the cache") if read else (SKY, "at every step")
    return (GREEN, "once") if reader == read else ("white", "never")


def timeline_picture(config: ModelConfig, target: int, reference: int, steps: int) -> Figure:
    """Three roads to one picture on one scale: green encodes, blue steps, orange what reading adds to a step.

    target, reference: tokens. The thin line is the memory, kept from the encoding to the last step.
    """
    dit, rows = config.dit, config.text.context_rows
    step = 2 * pass_flops(dit, target, target, rows)
    encode = encode_flops(dit, reference, rows) / step
    reading = 2 * dit.blocks * target * 2 * dit.width * reference / step
    drawn_step = [(BLUE, 1.0), (ORANGE, reading)]
    lanes = {
        "no reference": [(BLUE, 1.0)] * steps,
        "read once": [(GREEN, encode), *drawn_step * steps],
        "read at\nevery step": [(GREEN, encode), *drawn_step] * steps,
    }
    drawn = figure(9.0, 2.9)
    axes = drawn.subplots()
    for height, pieces in enumerate(lanes.values()):
        ends = list(accumulate(length for _, length in pieces))
        for (colour, length), end in zip(pieces, ends, strict=True):
            axes.barh(height, length, left=end - length, height=0.5, color=colour)
        # A hairline before each step where nothing else parts it from the one before.
        axes.vlines(range(1, steps) if not height else [], -0.25, 0.25, color="white", linewidth=0.7)
        axes.text(ends[-1] + 0.4, height, f"{ends[-1] / steps:.2f} ×", va="center")
    end = encode + (1 + reading) * steps
    axes.plot([encode, end], [1.4, 1.4], color=GREEN, linewidth=3)
    axes.text(end + 0.4, 1.4, "remembered", va="center", fontsize=8)
    axes.set_yticks(range(3), lanes)
    axes.set(ylim=(2.5, -0.5), xlim=(0, 1.1 * (1 + reading + encode) * steps))
    axes.set_xlabel(f"arithmetic of one picture, in guided steps without a reference ({config.name})")
    names = {"the reference is encoded": GREEN, "a step of the target": BLUE, "reading the memory": ORANGE}
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in names.values()]
    drawn.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return drawn


def bytes_picture(parts: Mapping[str, float], room: float, device: str) -> Figure:
    """What lies in memory, in bytes, as one stacked bar in GB, and a dashed line at what the device has."""
    drawn = figure(9.0, 2.3)
    axes = drawn.subplots()
    ends = list(accumulate(parts.values()))
    for (name, size), end, colour in zip(parts.items(), ends, cycle(FILLS), strict=False):
        length, left, label = size / 1e9, (end - size) / 1e9, f"{name} {size / 1e9:.2f}"
        axes.barh(0, length, left=left, height=0.5, color=colour, edgecolor="white", label=label)
    axes.axvline(room / 1e9, color="black", linestyle="--", linewidth=1)
    axes.text(room / 1e9 - 0.1, 0.42, f"{device}: {room / 1e9:.0f} GB", ha="right", va="center")
    axes.set(xlabel="GB", yticks=[], ylim=(-0.35, 0.6), xlim=(0, 1.02 * max(ends[-1], room) / 1e9))
    axes.spines[["top", "right", "left"]].set_visible(False)
    drawn.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return drawn
