"""Where a picture sits, in pictures: closeness of places, seats on the map, and a slider over them."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from torch import Tensor

from snapref.anima.rope import Place, axis_frequencies
from snapref.config import DiTConfig
from snapref.lab import plots
from snapref.lab.place_runs import Trial, attention, losses, moved
from snapref.reference.cache import ReferenceCache
from snapref.sampling.pipeline import Pipeline

ROWS = (0, 4, 8, 16, 24, 30, 32, 34, 40, 64)  # places that the slider stops at


def closeness(config: DiTConfig, t, h, w) -> Tensor:
    """Mean cosine over all pairs of a head at a displacement of (t, h, w) patches; 1 at none.

    This is q·k / |q||k| for q = k with all pairs equally long. t, h, w: numbers or arrays that broadcast.
    """
    angles = [
        torch.as_tensor(step, dtype=torch.float64)[..., None] * speed
        for step, speed in zip((t, h, w), axis_frequencies(config), strict=True)
    ]
    return sum(angle.cos().sum(-1) for angle in angles) / (config.head_dim // 2)


def toy_shares(config: DiTConfig, token: tuple[int, int], grid: tuple[int, int], place: Place) -> Tensor:
    """What share of its attention a target token gives to each reference token, by closeness alone: (h, w).

    token: (row, column) of the target grid, which starts at (0, 0, 0); `grid` is the size of both grids.
    q and k are of length √d, as the norms make them, and alike everywhere.
    """
    rows, columns = torch.arange(grid[0])[:, None], torch.arange(grid[1])
    own = closeness(config, 0, rows - token[0], columns - token[1])
    other = closeness(config, place[0], place[1] + rows - token[0], place[2] + columns - token[1])
    logits = torch.stack((own, other)) * config.head_dim**0.5
    return logits.flatten().softmax(0).unflatten(0, (2, *grid))[1]


def arrows(q, k, step: float, places: Sequence[tuple[int, int]]) -> Figure:
    """The pairs q and k turned to each (place of q, place of k), `step` radians per place."""
    figure = plots.figure(2.5 * len(places), 2.7)
    reach = 1.35 * max(np.hypot(*q), np.hypot(*k))
    for axes, (at_q, at_k) in zip(np.atleast_1d(figure.subplots(1, len(places))), places, strict=True):
        for pair, at, colour, name in ((q, at_q, plots.BLUE, "q"), (k, at_k, plots.RED, "k")):
            turn = (pair[0] + 1j * pair[1]) * np.exp(1j * step * at)
            arrow = {"color": colour, "lw": 2, "arrowstyle": "-|>", "mutation_scale": 14, "shrinkA": 0}
            axes.annotate("", (turn.real, turn.imag), (0, 0), arrowprops=arrow)
            axes.text(1.15 * turn.real, 1.15 * turn.imag, name, color=colour, ha="center", va="center")
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
        axes.set_title(f"q at {at_q}, k at {at_k}", fontsize=10)
    return figure


def wavelengths(config: DiTConfig) -> Figure:
    """Patches per full turn of every pair of a head, by axis."""
    figure = plots.figure(5.6, 2.6, dpi=80)
    axes, first = figure.subplots(), 0
    marks = (("time t", plots.ORANGE, "o"), ("row h", plots.BLUE, "s"), ("column w", plots.GREEN, "^"))
    for (name, colour, mark), speed in zip(marks, axis_frequencies(config), strict=True):
        axes.semilogy(range(first, first + len(speed)), 2 * np.pi / speed, mark, color=colour, label=name)
        first += len(speed)
    axes.set(xlabel=f"pair (features i and i + {first})", ylabel="patches per full turn")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def neighbours(config: DiTConfig, token: tuple[int, int], grid: tuple[int, int], places: dict) -> Figure:
    """`toy_shares` of one target token as a map over the reference, for each named place."""
    figure = plots.figure(2.3 * len(places) + 0.6, 3.0)
    shares = {name: 100 * toy_shares(config, token, grid, place) for name, place in places.items()}
    top = max(float(share.max()) for share in shares.values())
    panels = np.atleast_1d(figure.subplots(1, len(places)))
    for axes, (name, share) in zip(panels, shares.items(), strict=True):
        image = axes.imshow(share.numpy(), cmap=plots.SEQUENTIAL, vmin=0, vmax=top)
        axes.add_patch(Rectangle((token[1] - 0.5, token[0] - 0.5), 1, 1, fill=False, color=plots.RED, lw=2))
        axes.set_title(f"{name}\n{float(share.sum()):.0f} % in all", fontsize=10)
        axes.set(xticks=[], yticks=[])
    figure.colorbar(image, ax=list(panels), label="% of the attention", shrink=0.85)
    return figure


def seats(grid: tuple[int, int], places: Sequence[Place], axes=None) -> Figure:
    """A plan: the target's grid at (0, 0, 0), and a reference of the same size at each place (t, h, w)."""
    figure = None
    if axes is None:
        figure = plots.figure(2.6, 3.4)
        axes = figure.subplots()
    height, width = grid
    lowest = max(height, *(place[1] + height for place in places))
    seated = [((0, 0, 0), plots.BLUE, "target")] + [(place, plots.RED, "reference") for place in places]
    for (t, h, w), colour, name in seated:
        left, top = w + 1.6 * width * t, h  # a later frame is drawn beside
        axes.add_patch(Rectangle((left, top), width, height, facecolor=colour, alpha=0.55, edgecolor=colour))
        above = name == "target"
        label = f"{name}, t = {t:g}" if t else name
        y, anchor = (top - 0.5, "bottom") if above else (top + height + 0.7, "top")
        axes.text(left, y, label, color=colour, va=anchor, fontsize=9)
    axes.set(xlim=(-1, 5 * width), ylim=(lowest + 5, -4), aspect="equal", ylabel="row h", xticks=[])
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    return figure


@dataclass(frozen=True)
class Stop:
    """One place of the slider: what is drawn there and what was measured there."""

    row: int  # place (0, row, 0)
    picture: Image.Image
    share: float  # of the self-attention that goes to the reference, mean over blocks and characters
    right: float  # loss with her own picture at this place
    wrong: float  # loss with another character's


def stops(
    pipe: Pipeline, cache: ReferenceCache, prompt: str, t: Trial, rows: Sequence[int] = ROWS, seed: int = 0,
    **settings
) -> list[Stop]:
    """Returns a stop per row. The cache is read once: at every stop its keys are turned to that place."""
    here = cache.fingerprint.pictures[0].place
    caches = [moved(cache, pipe.config.dit, (-here[0], row - here[1], -here[2])) for row in rows]
    height, width = (side // pipe.codec.factor for side in pipe.config.default_size)
    shape = (1, pipe.config.dit.latent_channels, 1, height, width)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).repeat(len(rows), 1, 1, 1, 1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the reference sits at place")  # which is what is shown here
        images = pipe([prompt] * len(rows), references=caches, noise=noise, quiet=True, **settings).images
    found = []
    for row, image in zip(rows, images, strict=True):
        place = (0.0, float(row), 0.0)
        right, wrong = (float(losses(pipe, t, place, other).mean()) for other in (False, True))
        found.append(Stop(row, image, attention(pipe, t, place), right, wrong))
    return found


def curves(found: Sequence[Stop], none: float, trained: float, axes=None, row: int | None = None) -> Figure:
    """Loss against place, with her own and another's picture; `none`: the loss without any."""
    figure = None
    if axes is None:
        figure = plots.figure(5.6, 2.8, dpi=80)
        axes = figure.subplots()
    places = [stop.row for stop in found]
    axes.plot(places, [stop.right for stop in found], "o-", color=plots.BLUE, label="her own picture")
    axes.plot(places, [stop.wrong for stop in found], "s-", color=plots.RED, label="another's")
    axes.axhline(none, color=plots.BLACK, ls=":", label="none")
    axes.axvline(trained, color="0.6", lw=5, alpha=0.4, label="trained place")
    if row is not None:
        axes.axvline(row, color=plots.BLACK, lw=1)
    axes.set(xlabel="row h of the reference", ylabel="loss")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.25 * (high - low))  # room for the legend, which lies over no point
    axes.legend(fontsize=8, ncols=4, loc="upper center", columnspacing=1)
    return figure


class PlaceSlider:
    """A slider over the rows where the reference may sit; the picture drawn with it there stands beside.

    With `none`, the loss without a reference, each view also shows the loss curve.
    """

    def __init__(self, pipe: Pipeline, found: Sequence[Stop], none: float | None = None):
        import ipywidgets  # only where a kernel runs a notebook

        self.pipe, self.found, self.none = pipe, list(found), none
        self.rendered: dict[int, bytes] = {}
        options = [(str(stop.row), i) for i, stop in enumerate(self.found)]
        self.slider = ipywidgets.SelectionSlider(options=options, description="row h", value=0)
        self.image = ipywidgets.Image(value=self.view(0), format="png")
        self.text = ipywidgets.HTML(self.words(0))
        self.slider.observe(self.turn_to, names="value")
        self.widget = ipywidgets.VBox([self.slider, self.image, self.text])

    def turn_to(self, change) -> None:
        self.image.value, self.text.value = self.view(change["new"]), self.words(change["new"])

    def view(self, index: int) -> bytes:
        """PNG bytes: the plan of seats, the picture, and the curve if there is one."""
        if index not in self.rendered:
            self.rendered[index] = plots.png(self.compose(self.found[index]))
        return self.rendered[index]

    def compose(self, stop: Stop) -> Figure:
        patch = self.pipe.config.size_step
        grid = tuple(side // patch for side in self.pipe.config.default_size)
        wide = self.none is not None
        figure = plots.figure(8.0 if wide else 4.8, 3.6)
        panels = figure.subplots(1, 3 if wide else 2, width_ratios=(1.2, 1.3, 2.2) if wide else None)
        seats(grid, [(0.0, stop.row, 0.0)], panels[0])
        panels[0].set_ylim(self.found[-1].row + grid[0] + 5, -4)  # the same plan at every stop
        panels[1].imshow(np.asarray(stop.picture))
        panels[1].set_axis_off()
        if wide:
            curves(self.found, self.none, self.pipe.adapter.config.place[1], panels[2], stop.row)
        return figure

    def words(self, index: int) -> str:
        stop = self.found[index]
        share = f"{100 * stop.share:.1f} %"
        return f"Reference at row {stop.row}: {share} of the target's self-attention goes to it."

    def still(self) -> Image.Image | Figure:
        """What stands in where no kernel runs: the curve if there is one, else the picture of every other stop."""
        if self.none is not None:
            return curves(self.found, self.none, self.pipe.adapter.config.place[1])
        some = self.found[::2]
        return plots.grid([stop.picture for stop in some], [f"row {stop.row}" for stop in some])

    def show(self) -> None:
        """Display the slider with its still picture."""
        what = "One picture" if self.none is None else "Loss with her own picture and with another's"
        rows = ", ".join(str(stop.row) for stop in self.found)
        plots.live(self.widget, self.still(), f"{what} for the reference at rows {rows}")
