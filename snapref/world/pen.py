"""A pen that draws anti-aliased curves: matplotlib's Agg rasteriser, used without figures or axes.

Coordinates are pixels of the picture at scale 1, y down. A place is a 3×3 affine matrix.
"""

import re
from functools import cache, lru_cache

import numpy as np
from matplotlib.backend_bases import GraphicsContextBase
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from .palette import INK, Colour, darker, to_rgb
from .styles import Style

SHADOW = (0.16, 0.13, 0.30)  # sRGB
CURVE_POINTS = {"M": 1, "L": 1, "Q": 2, "C": 3}
CODES = {"M": [Path.MOVETO], "L": [Path.LINETO], "Q": [Path.CURVE3] * 2, "C": [Path.CURVE4] * 3}


@cache
def curve(text: str) -> Path:
    """A path from SVG-like text: M, L, Q, C and Z with absolute coordinates."""
    vertices, codes = [], []
    for letter, numbers in re.findall(r"([MLQCZ])([^MLQCZ]*)", text):
        if letter == "Z":
            vertices.append(vertices[-1])
            codes.append(Path.CLOSEPOLY)
            continue
        values = [float(x) for x in numbers.replace(",", " ").split()]
        points = list(zip(values[::2], values[1::2], strict=True))
        vertices += points
        codes += CODES[letter] * (len(points) // CURVE_POINTS[letter])
    return Path(vertices, codes)


@cache
def mirrored(path: Path | str) -> Path:
    """The path on the other side of the centre line x = 0."""
    path = curve(path) if isinstance(path, str) else path
    return Path(path.vertices * (-1, 1), path.codes)


def joined(*paths: Path) -> Path:
    """Several shapes of one colour as one path, which is quicker to draw."""
    return Path(np.concatenate([p.vertices for p in paths]), np.concatenate([p.codes for p in paths]))


@cache
def both(path: Path | str) -> Path:
    """The path and its mirror image."""
    return joined(curve(path) if isinstance(path, str) else path, mirrored(path))


@lru_cache(maxsize=1024)  # hands are everywhere, so this one must forget
def ellipse(x: float, y: float, rx: float, ry: float | None = None) -> Path:
    circle = Path.unit_circle()
    return Path(circle.vertices * (rx, rx if ry is None else ry) + (x, y), circle.codes)


@cache
def box(left: float, top: float, right: float, bottom: float) -> Path:
    return curve(f"M{left} {top} L{right} {top} {right} {bottom} {left} {bottom} Z")


def bow(start: tuple[float, float], control: tuple[float, float], end: tuple[float, float]) -> Path:
    """An open quadratic curve; not remembered, since every arm is another."""
    return Path((start, control, end), (Path.MOVETO, Path.CURVE3, Path.CURVE3))


def place(x: float = 0.0, y: float = 0.0, scale: float = 1.0) -> np.ndarray:
    """Scale, then move."""
    return np.array([[scale, 0.0, x], [0.0, scale, y], [0.0, 0.0, 1.0]])


@lru_cache(maxsize=4096)
def _printed(style: Style, colour: Colour) -> tuple[float, float, float]:
    return to_rgb(style.toned(colour))


@lru_cache(maxsize=4096)
def _outline(style: Style, colour: Colour) -> tuple[float, float, float]:
    return to_rgb(style.line_colour(colour))


class Ink(GraphicsContextBase):
    """What Agg asks about a stroke, answered without the checks that figures need: they cost a tenth of a picture."""

    def __init__(self):
        super().__init__()
        self.set_joinstyle("round")
        self.set_capstyle("round")
        self._forced_alpha = True
        self.inside = (None, None)  # clip path and its transform

    def dip(self, stroke: tuple[float, float, float] | None, width: float, alpha: float) -> None:
        self._alpha, self._linewidth = alpha, float(width)
        self._rgb = (*(stroke or self._rgb[:3]), alpha)

    def get_clip_path(self):
        return self.inside


class Pen:
    """Draws shapes in one art style onto one picture."""

    def __init__(self, size: tuple[int, int], style: Style, scale: float = 1):
        self.height, self.width = size
        self.style, self.scale = style, scale
        rows, columns = round(self.height * scale), round(self.width * scale)
        self.renderer = RendererAgg(columns, rows, 72)  # 72 dpi: line widths are pixels
        self.base = np.array([[scale, 0.0, 0.0], [0.0, -scale, rows], [0.0, 0.0, 1.0]])
        self.context = Ink()
        self.line_scale = 1.0  # pixels of a line of width 1
        self.move(place())

    def move(self, at: np.ndarray) -> None:
        """Draw at this place from now on."""
        self.transform = Affine2D(self.base @ at)

    def pixels(self) -> np.ndarray:
        """The picture so far, uint8 (h, w, 3)."""
        return np.asarray(self.renderer.buffer_rgba())[..., :3].copy()

    def glow(self, x: float, y: float, radius: float, colour: Colour, strength: float) -> None:
        """A soft round light around a pixel, fading to nothing at `radius` pixels; it only brightens."""
        canvas = np.asarray(self.renderer.buffer_rgba())[..., :3]
        rows, columns = (np.arange(n, dtype=np.float32)[:, None] for n in canvas.shape[:2])
        far = ((rows / self.scale - y) ** 2 + (columns.T / self.scale - x) ** 2) / radius**2
        share = strength * np.clip(1 - far, 0, 1)[..., None]
        light = 255 * np.array(self.rgb(colour), dtype=np.float32)
        canvas[:] = np.rint(canvas + share * np.maximum(light - canvas, 0))

    def rgb(self, colour: Colour) -> tuple[float, float, float]:
        """sRGB of a colour as this style prints it."""
        return _printed(self.style, colour)

    def gradient(self, top: Colour, bottom: Colour, start: float, end: float) -> None:
        """Fill all rows between `start` and `end` (pixels), blending from `top` to `bottom`."""
        first, last = round(start * self.scale), round(end * self.scale)
        steps = max(last - first, 1)
        blend = np.arange(steps)[:, None] / max(steps - 1, 1) if self.style.gradients else 0.5
        ends = np.array([self.rgb(top), self.rgb(bottom)])
        rows = np.full((steps, 4), 255, dtype=np.uint8)
        rows[:, :3] = np.rint(255 * (ends[0] + blend * (ends[1] - ends[0])))
        canvas = np.asarray(self.renderer.buffer_rgba()).view(np.uint32)  # a pixel at a time, not a byte
        canvas[first:last] = rows.view(np.uint32)[: last - first, None]

    def fill(self, path: Path | str, colour: Colour, line: float = 1.0, alpha: float = 1.0) -> None:
        """A flat shape with the style's outline, `line` times its usual width (0: none)."""
        if line and self.style.drop:
            self._shadow(path)
        width = line * self.style.line_width * self.line_scale * self.scale
        self._draw(path, self.rgb(colour), _outline(self.style, colour), width, alpha)

    def shade(self, path: Path | str, colour: Colour, inside: Path | str | None = None,
              amount: float = 0.09) -> None:
        """The second tone of `colour`, no outline, kept `inside` another path; flat styles have none."""
        if self.style.shade:
            self.patch(path, darker(colour, amount * self.style.shade), inside)

    def patch(self, path: Path | str, colour: Colour, inside: Path | str | None = None,
              alpha: float = 1.0) -> None:
        """A flat shape without outline, kept `inside` another path if one is given."""
        if inside is not None:
            inside = curve(inside) if isinstance(inside, str) else inside
            self.context.inside = inside, self.transform
        self._draw(path, self.rgb(colour), None, 0.0, alpha)
        self.context.inside = (None, None)

    def line(self, path: Path | str, colour: Colour = INK, width: float = 1.0) -> None:
        """An open line of `width` figure units, for features: lashes, mouths, seams."""
        size = width * self.line_scale * self.scale
        self._draw(path, None, self.rgb(colour), size, 1.0)

    def limb(self, path: Path | str, colour: Colour, width: float) -> None:
        """A round-ended limb along an open curve, outlined like a shape."""
        unit, edge = self.line_scale * self.scale, self.style.line_width
        self._draw(path, None, _outline(self.style, colour), (width + edge) * unit, 1.0)
        self._draw(path, None, self.rgb(colour), (width - edge) * unit, 1.0)

    def _shadow(self, path: Path | str) -> None:
        """The shadow that a piece of paper throws on what lies under it."""
        here, step = self.transform, self.style.drop * self.line_scale * self.scale
        self.transform = Affine2D(here.get_matrix()).translate(step, -1.4 * step)
        self._draw(path, SHADOW, SHADOW, 1.6 * step, 0.22)
        self.transform = here

    def _draw(self, path, fill, stroke, width: float, alpha: float) -> None:
        path = curve(path) if isinstance(path, str) else path
        self.context.dip(stroke, width, alpha)
        self.renderer.draw_path(self.context, path, self.transform, fill)
