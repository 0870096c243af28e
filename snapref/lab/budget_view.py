"""Where the weights of the diffusion model are: counted by part, to the last one, and drawn."""

from collections.abc import Mapping
from itertools import accumulate, cycle
from math import prod

import torch
from matplotlib.figure import Figure

from snapref.anima.model import AnimaDiT
from snapref.config import ModelConfig
from snapref.lab.plots import BLUE, GREEN, ORANGE, PINK, RED, SKY, YELLOW, figure

# How a weight's name starts, after "blocks.N." has been taken off → the part it counts for.
IN_A_BLOCK = {
    "self_attn.": "self-attention",
    "cross_attn.": "cross-attention",
    "mlp.": "MLP",
    "adaln_modulation_": "AdaLN-LoRA",
}
OUTSIDE = {
    "x_embedder.": "patch embedding",
    "t_embedder.": "sigma MLP",
    "t_embedding_norm.": "sigma norm",
    "final_layer.": "final layer",
    "llm_adapter.embed.": "adapter: T5 embedding",
    "llm_adapter.blocks.": "adapter: blocks",
    "llm_adapter.": "adapter: output",
}
COLOURS = {"MLP": BLUE, "self-attention": ORANGE, "cross-attention": GREEN, "AdaLN-LoRA": PINK}
OTHERS = (SKY, YELLOW, RED)


def budget(config: ModelConfig) -> dict[str, int]:
    """Weights per part, all blocks together, in the order of the forward pass. Adds up to the whole model.

    Counted on the meta device: no memory is taken. Raises ValueError for a weight that belongs to no part.
    """
    with torch.device("meta"):
        names = AnimaDiT(config).state_dict()
    counts = dict.fromkeys([*IN_A_BLOCK.values(), *OUTSIDE.values()], 0)
    for name, weight in names.items():
        counts[part_of(name)] += prod(weight.shape)
    return {part: count for part, count in counts.items() if count}


def part_of(name: str) -> str:
    """The part that a weight belongs to, by its official name. Raises ValueError for one that has none."""
    inside, parts = name, OUTSIDE
    if name.startswith("blocks."):
        inside, parts = name.split(".", 2)[2], IN_A_BLOCK
    for start, part in parts.items():
        if inside.startswith(start):
            return part
    raise ValueError(f"the weight {name} belongs to no part of the budget; the parts are {', '.join(parts)}")


def budget_lines(counts: Mapping[str, int]) -> str:
    """The counts as a table: part, weights, share; the sum below a rule."""
    total = sum(counts.values())
    rows = [f"{part:24}{count:>16,}{count / total:>9.2%}" for part, count in counts.items()]
    return "\n".join([*rows, "─" * 49, f"{'together':24}{total:>16,}{1:>9.2%}"])


def budget_picture(config: ModelConfig) -> Figure:
    """Two bars on the same scale of shares: every part of the model; then one block, taken apart."""
    counts = budget(config)
    inside = {part: counts[part] for part in COLOURS}
    adapter = sum(count for part, count in counts.items() if part.startswith("adapter"))
    rest = sum(counts.values()) - sum(inside.values()) - adapter
    whole = {f"{config.dit.blocks} blocks": sum(inside.values()), "LLM adapter": adapter, "the rest": rest}
    drawn = figure(8.6, 3.4)
    axes = drawn.subplots()
    stack(axes, 1, whole, cycle(OTHERS))
    stack(axes, 0, inside, [COLOURS[part] for part in inside])
    axes.set_yticks([1, 0], ["the whole\nmodel", "inside\na block"])
    axes.set(xlim=(0, 100), ylim=(-0.55, 1.75), xlabel="share of the weights, %")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return drawn


def stack(axes, height: float, counts: Mapping[str, int], colours) -> None:
    """One bar of shares at `height`; a name inside its piece where it fits, above the bar where not."""
    total = sum(counts.values())
    ends = list(accumulate(counts.values()))
    lift = 0
    for (name, count), end, colour in zip(counts.items(), ends, colours, strict=False):
        share, left = 100 * count / total, 100 * (end - count) / total
        axes.barh(height, share, left=left, height=0.5, color=colour, edgecolor="white")
        if share > 12:
            place = {"x": left + share / 2, "y": height, "ha": "center", "va": "center"}
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
            axes.text(**place, s=f"{name}\n{share:.1f} %", fontsize=9, bbox=box)
        else:
            axes.text(100, height + 0.3 + 0.17 * lift, f"{name} {share:.1f} %", ha="right", fontsize=9)
            lift += 1
