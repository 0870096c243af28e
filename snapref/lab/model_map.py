"""The whole diffusion model as one drawing: what goes in, what happens to it, what comes out."""

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from snapref.config import ModelConfig
from snapref.lab.plots import BLUE, GREEN, ORANGE, PINK, figure

PALE = 0.18  # how much of its colour a box is filled with


def model_map(config: ModelConfig) -> Figure:
    """Latent, sigma and prompt on the left; one block in the middle; the velocity on the right.

    Sizes are the config's, for a picture of its default size.
    """
    dit, text = config.dit, config.text
    height, width = (side // config.codec.factor for side in config.default_size)
    tokens = height * width // dit.patch**2
    drawn = figure(8.6, 4.0)
    axes = drawn.subplots()
    axes.set(xlim=(-1, 95), ylim=(-0.5, 43.5))
    axes.axis("off")

    box(axes, (0, 31), (15, 9), BLUE, f"noisy latent\n{dit.latent_channels} × {height} × {width}")
    box(axes, (20, 31), (15, 9), BLUE, f"patches\n{tokens} tokens\nof {dit.width}")
    box(axes, (0, 17), (15, 7), PINK, "sigma\none number")
    box(axes, (20, 17), (15, 7), PINK, f"sinusoid\n{dit.width} numbers")
    box(axes, (0, 2), (15, 9), GREEN, "prompt\nQwen reads,\nT5 ids ask")
    box(axes, (20, 2), (15, 9), GREEN, f"LLM adapter\n{text.context_rows} rows\nof {dit.context_width}")

    frame = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": "black"}
    axes.add_patch(FancyBboxPatch((42, 0.5), 31, 41.5, **frame))
    axes.text(57.5, 40.3, f"{dit.blocks} × block", ha="center", va="center", fontsize=10, weight="bold")
    sublayers = ((28, "self-attention", BLUE), (15, "cross-attention", GREEN), (2, "MLP", ORANGE))
    for bottom, name, colour in sublayers:
        box(axes, (54, bottom), (17, 9), colour, name)
        box(axes, (43.5, bottom), (8.5, 9), PINK, "shift\nscale\ngate", fontsize=8)
        road(axes, [(40, 20.5), (40, bottom + 4.5), (43.3, bottom + 4.5)], PINK)
        road(axes, [(52.2, bottom + 4.5), (53.8, bottom + 4.5)], PINK)
    for top in (28, 15):
        road(axes, [(66, top), (66, top - 3.8)], BLUE)

    box(axes, (78, 31), (16, 9), ORANGE, f"final layer\n{dit.latent_channels * dit.patch**2} numbers\nper token")
    box(axes, (78, 15), (16, 9), BLUE, f"velocity\n{dit.latent_channels} × {height} × {width}")
    road(axes, [(15.2, 35.5), (19.8, 35.5)], BLUE)
    road(axes, [(35.2, 38.7), (66, 38.7), (66, 37.2)], BLUE)
    road(axes, [(15.2, 20.5), (19.8, 20.5)], PINK)
    road(axes, [(35.2, 20.5), (40, 20.5)], PINK, head=False)
    road(axes, [(15.2, 6.5), (19.8, 6.5)], GREEN)
    road(axes, [(35.2, 6.5), (37.5, 6.5), (37.5, 13), (58, 13), (58, 14.8)], GREEN)
    road(axes, [(71.2, 6.5), (75.7, 6.5), (75.7, 35.5), (77.8, 35.5)], BLUE)
    road(axes, [(86, 30.8), (86, 24.2)], BLUE)
    return drawn


def box(axes, corner, size, colour: str, label: str, fontsize: int = 9) -> None:
    patch = FancyBboxPatch(corner, *size, boxstyle="round,pad=0.2", facecolor=(colour, PALE), edgecolor=colour)
    axes.add_patch(patch)
    middle = [start + length / 2 for start, length in zip(corner, size, strict=True)]
    axes.text(*middle, label, ha="center", va="center", fontsize=fontsize)


def road(axes, corners, colour: str, head: bool = True) -> None:
    """A line from corner to corner, with an arrow's head at its end."""
    axes.plot(*zip(*corners[: -1 if head and len(corners) > 2 else None], strict=True), color=colour, linewidth=1.6)
    if head:
        style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", xy=corners[-1], xytext=corners[-2], arrowprops=style)
