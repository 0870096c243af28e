"""Where the two branches sit: every linear of a block with its low-rank matrices, drawn to scale."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from snapref.config import AdapterConfig, DiTConfig
from snapref.lab import plots
from snapref.reference.branches import linear_shapes

SIDES = (("reference", plots.ORANGE), ("target", plots.BLUE))


def carried(config: AdapterConfig, dit: DiTConfig) -> dict[str, dict[str, int]]:
    """Per linear of one block: {"reference", "target"} → parameters of the pair beside it, 0 where there is none."""
    return {
        name: {
            side: rank * (outputs + inputs) if name in modules else 0
            for side, rank, modules in (
                ("reference", config.reference_rank, config.reference_targets),
                ("target", config.target_rank, config.target_targets),
            )
        }
        for name, (outputs, inputs) in linear_shapes(dit).items()
    }


def table(config: AdapterConfig, dit: DiTConfig) -> str:
    """One line a linear of a block: its shape, its own size, what each branch adds; and the sum."""
    shapes, added = linear_shapes(dit), carried(config, dit)
    lines = [f"{'linear':24}{'out × in':>14}{'weights':>13}{'reference':>12}{'target':>12}"]
    for name, (outputs, inputs) in shapes.items():
        own = f"{outputs} × {inputs}"
        counts = (f"{added[name][side]:,}" if added[name][side] else "·" for side, _ in SIDES)
        lines.append(f"{name:24}{own:>14}{outputs * inputs:>13,}" + "".join(f"{count:>12}" for count in counts))
    sums = (sum(one[side] for one in added.values()) for side, _ in SIDES)
    whole = sum(outputs * inputs for outputs, inputs in shapes.values())
    lines.append(f"{'together':38}{whole:>13,}" + "".join(f"{count:>12,}" for count in sums))
    return "\n".join(lines)


def kinds(config: AdapterConfig, dit: DiTConfig) -> list[list[str]]:
    """The linears of a block, those together that are alike: part of the block, shape, and what stands beside them."""
    shapes, added = linear_shapes(dit), carried(config, dit)
    found: dict[tuple, list[str]] = {}
    for name, shape in shapes.items():
        found.setdefault((name.split(".")[0], shape, *added[name].values()), []).append(name)
    return list(found.values())


def to_scale(config: AdapterConfig, dit: DiTConfig) -> Figure:
    """One grey rectangle for each kind of linear, out high and in wide; B to its right, A above it, a rank thick."""
    shapes, added = linear_shapes(dit), carried(config, dit)
    ranks = {"reference": config.reference_rank, "target": config.target_rank}
    high, space, x = max(outputs for outputs, _ in shapes.values()), dit.width * 0.45, 0.0
    figure = plots.figure(8.4, 4.4)
    axes = figure.subplots()
    for names in kinds(config, dit):
        outputs, inputs = shapes[names[0]]
        axes.add_patch(Rectangle((x, 0), inputs, outputs, facecolor="#D9D9D9", edgecolor="#8C8C8C", linewidth=0.6))
        beside = 0.0
        for side, colour in SIDES:
            if added[names[0]][side]:
                rank = ranks[side]
                b, a = ((x + inputs + beside, 0), rank, outputs), ((x, outputs + beside), inputs, rank)
                for corner, width, height in (b, a):
                    axes.add_patch(Rectangle(corner, width, height, facecolor=colour, linewidth=0))
                beside += rank
        axes.text(x + inputs / 2, -space / 4, label(names), ha="center", va="top", fontsize=8.5)
        x += inputs + beside + space
    for side, colour in SIDES:
        axes.add_patch(Rectangle((0, 0), 0, 0, facecolor=colour, label=f"{side} branch, rank {ranks[side]}"))
    axes.legend(loc="upper left", frameon=False, fontsize=10)
    axes.set(xlim=(-space / 2, x), ylim=(-1.7 * space, high * 1.05), aspect="equal")
    axes.set_axis_off()
    return figure


def label(names: list[str]) -> str:
    """Like "self_attn\nq k v output", without what all of them have in common."""
    part = names[0].split(".")[0]
    last = " ".join(name.split(".")[1].removesuffix("_proj") for name in names)
    return f"{part}\n{last}" + (f"\n{len(names)} alike" if len(names) > 1 else "")
