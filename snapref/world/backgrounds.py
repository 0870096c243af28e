"""Eight places, each a gradient and two to four flat shapes, the same in every picture of the place."""

from .palette import WHITE, Colour, darker, lighter
from .pen import Pen, box, ellipse, joined, place
from .scenes import Scene, horizon

FLOOR_WHITE: Colour = (0.985, 0.0, 0.0)

# Sky or wall from top to bottom, and the ground near and far.
SKIES: dict[str, tuple[Colour, Colour]] = {
    "beach": ((0.76, 0.115, 238.0), (0.93, 0.045, 215.0)),
    "forest": ((0.90, 0.06, 150.0), (0.95, 0.06, 115.0)),
    "city": ((0.80, 0.045, 255.0), (0.94, 0.025, 60.0)),
    "night": ((0.27, 0.085, 278.0), (0.42, 0.11, 290.0)),
    "sunset": ((0.62, 0.13, 340.0), (0.86, 0.125, 68.0)),
    "snow": ((0.84, 0.04, 262.0), (0.95, 0.02, 300.0)),
    "bedroom": ((0.91, 0.05, 5.0), (0.91, 0.05, 5.0)),
    "classroom": ((0.95, 0.04, 95.0), (0.95, 0.04, 95.0)),
}
GROUND_COLOURS: dict[str, Colour] = {
    "beach": (0.89, 0.075, 85.0),
    "forest": (0.72, 0.13, 135.0),
    "city": (0.70, 0.015, 270.0),
    "night": (0.36, 0.045, 255.0),
    "sunset": (0.52, 0.07, 50.0),
    "snow": (0.86, 0.065, 225.0),
    "bedroom": (0.70, 0.09, 320.0),
    "classroom": (0.73, 0.085, 68.0),
}


def draw_background(pen: Pen, where: Scene) -> None:
    """Sky or wall, its few shapes, then the ground from the horizon down."""
    w, line = pen.width, horizon((pen.height, pen.width))
    turn = 8.0 * where.warmth
    top, bottom = ((c[0], c[1], (c[2] + turn) % 360) for c in SKIES[where.background])
    ground = GROUND_COLOURS[where.background]
    ground = FLOOR_WHITE if where.white_floor else (ground[0], ground[1], (ground[2] + turn) % 360)
    pen.gradient(top, bottom, 0, line)
    pen.gradient(ground, lighter(ground, 0.04), line, pen.height)
    pen.line_scale = 0.7 * pen.height / 128
    unit = pen.height / 128
    pen.move(place(w / 2, line, unit))  # shapes: x from the middle, y from the horizon, 1/128 of the height
    half = w / 2 / unit + 4
    DRAWERS[where.background](pen, half, ground)
    pen.move(place())


def glow_colour(where: Scene) -> Colour:
    """The soft light behind a figure in the styles that have one."""
    return lighter(SKIES[where.background][1], 0.16)


def _edge(pen: Pen, ground: Colour) -> None:
    """A darker band where the ground meets what stands on it."""
    pen.patch(box(-200, 0, 200, 2.5), darker(ground, 0.07))


def _beach(pen: Pen, half: float, ground: Colour) -> None:
    sea = (0.66, 0.11, 225.0)
    pen.fill(ellipse(half * 0.62, -68, 11), (0.95, 0.10, 95.0), line=0)
    pen.patch(box(-200, -24, 200, 1), sea)
    pen.patch(box(-200, -24, 200, -21.5), lighter(sea, 0.12))
    pen.patch("M-200 -1 L-60 -1 Q-40 -6 -20 -1 Q0 4 20 -1 Q40 -6 60 -1 L200 -1 200 3 -200 3 Z", WHITE)
    pen.patch("M-200 2 L-60 2 Q-40 -3 -20 2 Q0 7 20 2 Q40 -3 60 2 L200 2 200 8 -200 8 Z", ground)


def _forest(pen: Pen, half: float, ground: Colour) -> None:
    leaf, trunk = (0.60, 0.13, 145.0), (0.50, 0.07, 55.0)
    for x in (-half * 0.78, half * 0.78):
        pen.fill(box(x - 5, -34, x + 5, 1), trunk)
        pen.fill(ellipse(x, -52, 25, 30), leaf)
        pen.patch(ellipse(x - 5, -60, 13, 15), lighter(leaf, 0.07))
    _edge(pen, ground)


def _city(pen: Pen, half: float, ground: Colour) -> None:
    pen.fill(box(-half * 0.5, -36, half * 0.5, 1), (0.80, 0.035, 275.0))
    towers = ((-1.2, -0.5, -62, (0.66, 0.06, 262.0)), (0.42, 1.2, -76, (0.72, 0.075, 40.0)))
    for left, right, top, colour in towers:
        pen.fill(box(left * half, top, right * half, 1), colour)
        middle = 0.78 * half if left > 0 else -0.78 * half
        windows = (box(middle - 6, row, middle + 6, row + 8) for row in range(top + 9, -12, 17))
        pen.patch(joined(*windows), (0.93, 0.085, 92.0))
    _edge(pen, ground)


def _night(pen: Pen, half: float, ground: Colour) -> None:
    moon = (0.95, 0.07, 95.0)
    pen.patch(ellipse(-half * 0.55, -66, 19), lighter(SKIES["night"][1], 0.05), alpha=0.7)
    x = -half * 0.55
    pen.patch(f"M{x + 5} -80 C{x - 19} -80 {x - 19} -52 {x + 5} -52 "
              f"C{x - 6} -58 {x - 6} -74 {x + 5} -80 Z", moon)
    pen.fill(box(-200, -16, 200, 1), (0.46, 0.05, 262.0))
    pen.patch(box(-200, -16, 200, -12), (0.58, 0.05, 262.0))


def _sunset(pen: Pen, half: float, ground: Colour) -> None:
    sun, sea = (0.91, 0.13, 75.0), (0.56, 0.11, 330.0)
    x = -half * 0.6
    pen.patch(ellipse(x, -20, 33), (0.88, 0.12, 62.0), inside=box(-200, -200, 200, 0), alpha=0.5)
    pen.patch(ellipse(x, -20, 22), sun)
    pen.patch(box(-200, -20, 200, 1), sea)
    pen.patch(box(x - 15, -15, x + 15, -11), sun)
    pen.patch(box(x - 9, -7, x + 9, -3), sun)
    _edge(pen, ground)
    pen.patch(box(-200, 16, 200, 18), darker(ground, 0.07))  # a plank's edge


def _snow(pen: Pen, half: float, ground: Colour) -> None:
    hill, tree = (0.94, 0.02, 255.0), (0.58, 0.075, 190.0)
    pen.fill(f"M-200 1 L-200 -20 Q{-half * 0.7} -52 0 -10 L14 1 Z", hill)
    pen.fill(f"M-20 1 Q{half * 0.5} -34 200 -20 L200 1 Z", hill)
    x = half * 0.72
    pen.fill(f"M{x - 19} -6 L{x} -46 {x + 19} -6 Z", tree)
    pen.fill(f"M{x - 14} -32 L{x} -68 {x + 14} -32 Z", tree)
    pen.patch(f"M{x - 6} -52 L{x} -68 {x + 6} -52 Z", WHITE)
    _edge(pen, ground)


def _bedroom(pen: Pen, half: float, ground: Colour) -> None:
    x = -half * 0.62
    pen.fill(box(x - 17, -76, x + 17, -34), WHITE)
    pen.patch(box(x - 14, -73, x + 14, -37), (0.80, 0.09, 235.0))
    pen.patch(box(x - 1.5, -73, x + 1.5, -37), WHITE)
    head = half * 0.12
    pen.fill(f"M{head} 3 L{head} -22 Q{head} -34 {half * 0.4} -34 L200 -34 200 3 Z", (0.72, 0.09, 62.0))
    pen.fill(box(half * 0.2, -12, 200, 8), (0.74, 0.09, 250.0))
    _edge(pen, ground)


def _classroom(pen: Pen, half: float, ground: Colour) -> None:
    pen.fill(box(-half * 0.88, -80, half * 0.88, -30), (0.70, 0.085, 68.0))
    pen.patch(box(-half * 0.88 + 4, -76, half * 0.88 - 4, -34), (0.47, 0.075, 160.0))
    pen.patch(box(-200, -12, 200, 0), (0.84, 0.05, 80.0))
    _edge(pen, ground)


DRAWERS = {"beach": _beach, "forest": _forest, "city": _city, "night": _night, "sunset": _sunset,
           "snow": _snow, "bedroom": _bedroom, "classroom": _classroom}
