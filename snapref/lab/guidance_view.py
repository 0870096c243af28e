"""What guidance does, made visible: arrows in two dimensions, and colour against the guidance scale."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure

from snapref.lab.plots import BLACK, BLUE, GREEN, ORANGE, RED, SKY, figure
from snapref.world.palette import to_lab

# Three ways to combine the same two answers: as they are, without the parallel part, with the old contrast.
WAYS: dict[str, dict[str, float]] = {
    "plain": {},
    "APG, eta 0": {"apg_eta": 0.0},
    "rescale 0.7": {"cfg_rescale": 0.7},
}
STYLES = ((BLACK, "-", "o"), (BLUE, "--", "s"), (RED, ":", "^"))


@dataclass(frozen=True)
class Curve:
    """Measured pictures of one way to guide: arrays (scales, seeds)."""

    colour: np.ndarray  # mean CIELAB chroma of the picture
    spread: np.ndarray  # standard deviation of the latent, which no picture's black and white cut off


def saturation(picture) -> float:
    """Returns the mean CIELAB chroma of an RGB picture, PIL or uint8 (h, w, 3): 0 is grey."""
    lab = to_lab(np.asarray(picture))
    return float(np.hypot(lab[..., 1], lab[..., 2]).mean())


def measure(
    pipe, prompt: str, reference, scales: Sequence[float], seed: int = 0, count: int = 3, ways=WAYS, **changes
) -> dict[str, Curve]:
    """Returns a Curve per way. Every scale and way draws the same `count` noises, in one batch.

    reference: as a run takes it. changes: settings common to all, such as steps.
    """
    found = {}
    for name, extra in ways.items():
        colour, spread = [], []
        for scale in scales:
            result = pipe([prompt] * count, reference, guidance=scale, seed=seed, quiet=True, **changes, **extra)
            colour.append([saturation(image) for image in result.images])
            spread.append(result.latents.std(dim=(1, 2, 3, 4)).tolist())
        found[name] = Curve(np.array(colour), np.array(spread))
    return found


def curve_picture(curves: Mapping[str, Curve], scales: Sequence[float]) -> Figure:
    """Returns two panels over the guidance scale, in percent of scale 1: the picture's colour, the latent's spread.

    Lines are means over the seeds, bands reach from the lowest to the highest. The first scale is the 100 %.
    """
    sheet = figure(8.4, 3.4, dpi=80)
    panels = sheet.subplots(1, 2)
    for axes, field, title in zip(
        panels, ("colour", "spread"), ("colour of the picture", "spread of the latent"), strict=True
    ):
        for (name, curve), (tint, line, mark) in zip(curves.items(), STYLES, strict=False):
            values = getattr(curve, field)
            values = 100 * values / values[:1]
            axes.fill_between(scales, values.min(axis=1), values.max(axis=1), color=tint, alpha=0.12, lw=0)
            axes.plot(scales, values.mean(axis=1), color=tint, ls=line, marker=mark, ms=4, label=name)
        axes.axhline(100, color="#999999", lw=0.8)
        axes.set(title=title, xlabel="guidance", ylabel=f"% of guidance {scales[0]:g}")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, loc="best")
    return sheet


def arrows_picture(positive, negative, scale: float) -> Figure:
    """Returns two panels for answers of two numbers: plain guidance, and its step taken apart for APG.

    positive, negative: (x, y) denoised. The dashed circle has the length of the positive answer.
    """
    c, u = (torch.as_tensor(point, dtype=torch.float32) for point in (positive, negative))
    step = c - u
    along = (step @ c) / (c @ c) * c
    across = step - along
    cfg, flat = c + (scale - 1) * step, c + (scale - 1) * across
    sheet = figure(8.8, 3.6, dpi=80)
    left, right = sheet.subplots(1, 2, sharex=True, sharey=True)
    points = torch.stack([c, u, cfg, flat, torch.zeros(2)])
    low, high = points.amin(0) - 1.2, points.amax(0) + 1.6
    for axes in (left, right):
        turn = np.linspace(0, 2 * np.pi, 200)
        radius = float(c.norm())
        axes.plot(radius * np.cos(turn), radius * np.sin(turn), color="#bbbbbb", ls="--", lw=1)
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
        axes.axhline(0, color="#dddddd", lw=0.8, zorder=0)
        axes.axvline(0, color="#dddddd", lw=0.8, zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
    _arrow(left, (0, 0), u, SKY)
    _arrow(left, (0, 0), c, BLACK)
    _arrow(left, u, c, GREEN)
    _arrow(left, c, cfg, GREEN, dashed=True)
    left.set_title(f"guidance {scale:g}: go on past the positive")
    _arrow(right, (0, 0), c, BLACK)
    _arrow(right, c, c + along, ORANGE)
    _arrow(right, c, c + across, BLUE)
    _arrow(right, c, cfg, GREEN, dashed=True)
    _arrow(right, c, flat, BLUE, dashed=True)
    right.set_title("the difference taken apart")
    _label(left, u, "negative", (-4, 8), "right")
    _label(left, c, "positive", (4, 8), "left")
    _label(left, (u + c) / 2, "difference", (0, 14), "left")
    _label(left, cfg, "guided", (0, -14), "center")
    _label(right, c + along, "along", (4, 6), "left")
    _label(right, c + across, "across", (-8, -4), "right")
    _label(right, cfg, "eta 1", (0, -14), "center")
    _label(right, flat, "eta 0", (6, -14), "center")
    return sheet


def _arrow(axes, start, end, colour: str, dashed: bool = False) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "lw": 1.2 if dashed else 2, "shrinkA": 0, "shrinkB": 0}
    style["linestyle"] = "--" if dashed else "-"
    axes.annotate("", xy=tuple(map(float, end)), xytext=tuple(map(float, start)), arrowprops=style)


def _label(axes, point, text: str, shift: tuple[int, int], side: str) -> None:
    place = tuple(map(float, point))
    axes.annotate(text, xy=place, xytext=shift, textcoords="offset points", ha=side, fontsize=10)
