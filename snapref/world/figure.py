"""The body under the clothes: poses, limbs and the face.

Figure units: the chin is (0, 0), y down; hair ends at -54 and soles stand at 58, so a head is half of her.
"""

import math
from dataclasses import dataclass

from .palette import INK, WHITE, Colour, darker, lighter
from .pen import Pen, both, bow, ellipse, joined, mirrored
from .scenes import Scene

FACE = "M-22 -24 C-22.5 -9 -12 0 0 0 C12 0 22.5 -9 22 -24 C22 -42 12 -48 0 -48 C-12 -48 -22 -42 -22 -24 Z"
FOREHEAD = ("M-22 -24 C-22 -42 -12 -48 0 -48 C12 -48 22 -42 22 -24 "
            "C18 -30 8 -26 0 -27 C-8 -26 -18 -30 -22 -24 Z")  # in the fringe's shadow
BLUSH = both(ellipse(14.5, -8, 4.2, 2.3))
EYE_WHITES = both(ellipse(10.2, -17, 5.0, 6.4))
IRISES = both(ellipse(9.9, -16.8, 4.1, 5.9))
IRIS_LIGHTS = both(ellipse(9.9, -14.6, 3.5, 3.6))
PUPILS = both(ellipse(9.9, -17.2, 1.7, 2.5))
SPARKLES = joined(*(ellipse(x + dx, y, r) for x in (-10.2, 10.2)  # light comes from the left for both eyes
                    for dx, y, r in ((-1.7, -19.8, 1.75), (1.5, -13.6, 0.9))))
SCAR: Colour = (0.52, 0.15, 22.0)
FRECKLES = both(joined(*(ellipse(x, y, 0.85) for x, y in ((11.6, -9.4), (14.6, -7.6), (17.2, -9.6)))))
SHOE = "M1.8 57.5 L1.8 53 C2 49.5 10 49.5 11 53 C13 54.5 13.2 57.5 12 57.5 Z"
SHOULDER = (9.5, 6.5)


@dataclass(frozen=True)
class Pose:
    """Elbow and hand of the arm on either side of the picture, both written as if on the right."""

    left: tuple[tuple[float, float], tuple[float, float]]
    right: tuple[tuple[float, float], tuple[float, float]]
    knee: tuple[float, float] = (6.0, 43.0)
    ankle: tuple[float, float] = (6.5, 53.0)
    drop: float = 0.0  # how far the body is lowered
    soles: bool = False  # feet seen from below, in front of the skirt


DOWN = ((15.0, 13.0), (18.5, 23.0))
RAISED = ((22.0, 5.0), (29.5, -13.0))
ON_HIP = ((27.0, 15.0), (12.0, 24.0))
IN_LAP = ((14.0, 16.0), (7.0, 27.0))
WIDE = ((22.0, 11.0), (34.0, 7.0))
POSES = {
    "standing": Pose(DOWN, DOWN),
    "waving": Pose(DOWN, ((22.0, 9.0), (29.0, -8.0))),
    "arms up": Pose(RAISED, RAISED),
    "hands on hips": Pose(ON_HIP, ON_HIP),
    "sitting": Pose(IN_LAP, IN_LAP, knee=(11.0, 35.0), ankle=(15.0, 38.0), drop=15.0, soles=True),
    "jumping": Pose(WIDE, WIDE, knee=(12.0, 40.0), ankle=(10.0, 47.0), drop=-7.0),
}


@dataclass(frozen=True)
class Arm:
    """One arm as a quadratic curve from the shoulder; `side` is -1 on the left of the picture."""

    side: int
    raised: bool
    elbow: tuple[float, float]
    hand: tuple[float, float]

    def part(self, share: float):
        """The first `share` of the curve (de Casteljau)."""
        shoulder = (self.side * SHOULDER[0], SHOULDER[1])
        a, b = _between(shoulder, self.elbow, share), _between(self.elbow, self.hand, share)
        return bow(shoulder, a, _between(a, b, share))


def _between(a: tuple[float, float], b: tuple[float, float], share: float) -> tuple[float, float]:
    return (a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share)


def arms(where: Scene) -> list[Arm]:
    """The left and the right arm of a pose, swung about the shoulders."""
    pose, found = POSES[where.pose], []
    for side, (elbow, hand) in ((-1, pose.left), (1, pose.right)):
        raised, hangs = hand[1] < 0, elbow == DOWN[0]
        turn = where.swing if raised or hangs else 0.3 * where.swing
        c, s = math.cos(turn), math.sin(turn)
        x, y = SHOULDER
        elbow, hand = ((side * (x + c * (u - x) + s * (v - y)), y - s * (u - x) + c * (v - y))
                       for u, v in (elbow, hand))
        found.append(Arm(side, raised, elbow, hand))
    return found


def draw_legs(pen: Pen, where: Scene, leg: Colour, leg_width: float, shoe: Colour) -> None:
    """Two legs from the hips to shoes that match the pose."""
    pose = POSES[where.pose]
    (kx, ky), (ax, ay) = pose.knee, pose.ankle
    for side in (-1, 1):
        pen.limb(f"M{side * 5.5} 30 Q{side * kx} {ky} {side * ax} {ay}", leg, leg_width)
        if pose.soles:
            pen.fill(ellipse(side * 16, 38.5, 6.2, 6.8), shoe)
            pen.shade(ellipse(side * 16, 40.5, 3.6, 3.6), shoe)
        elif pose.drop < 0:
            pen.fill(ellipse(side * 10.5, 49, 6.2, 5.2), shoe)
        else:
            pen.fill(SHOE if side > 0 else mirrored(SHOE), shoe)


def draw_face(pen: Pen, where: Scene, skin: Colour, eyes: Colour, detail: str | None) -> None:
    """Face, blush, eyes, brows, mouth and the small detail."""
    pen.fill(FACE, skin)
    pen.shade(FOREHEAD, skin)
    blush = (skin[0] - 0.09, 0.115, 18.0)
    pen.patch(BLUSH, blush, alpha=0.75)
    if where.expression == "closed eyes" or where.blink:
        pen.line(both("M4.8 -14.8 Q10.4 -21.4 16 -14.8"), INK, 2.0)
        pen.line(both("M6.5 -27.6 Q10.5 -29.6 14.5 -27.4"), INK, 1.1)
    else:
        _open_eyes(pen, eyes, where.expression == "angry")
    _mouth(pen, where.expression)
    if detail == "freckles":
        pen.patch(FRECKLES, (skin[0] - 0.26, 0.10, 45.0))
    elif detail == "mole":
        pen.patch(ellipse(8.6, -6.8, 1.15), (0.24, 0.03, 40.0))
    elif detail == "scar":
        pen.line("M-18.6 -12.4 L-11.4 -5.6", SCAR, 1.4)
        pen.line("M-12.8 -10.6 L-16.6 -6.6", SCAR, 1.1)


def draw_earrings(pen: Pen) -> None:
    """The one detail that hangs over the hair."""
    pen.fill(both(ellipse(21.4, -7.2, 2.1, 2.6)), (0.86, 0.15, 88.0), line=0.6)


def _open_eyes(pen: Pen, iris: Colour, angry: bool) -> None:
    pen.patch(EYE_WHITES, WHITE)
    pen.patch(IRISES, darker(iris, 0.17))
    pen.patch(IRIS_LIGHTS, lighter(iris, 0.05))
    pen.patch(PUPILS, (0.22, 0.04, iris[2]))
    pen.patch(SPARKLES, WHITE)
    if angry:
        pen.line(both("M4.4 -19.0 L15.2 -23.6 16.6 -20.2"), INK, 1.9)
        pen.line(both("M5 -25.0 L14.6 -30.2"), INK, 1.7)
    else:
        pen.line(both("M4.6 -19.8 C6 -24.6 13 -25.4 15.8 -20.2 L17 -20.8"), INK, 1.9)
        pen.line(both("M6.5 -28.6 Q10.5 -30.6 14.5 -28.4"), INK, 1.1)


def _mouth(pen: Pen, expression: str) -> None:
    if expression == "open mouth":
        pen.patch("M-5.4 -8.2 Q0 -9.2 5.4 -8.2 C5.4 -0.6 -5.4 -0.6 -5.4 -8.2 Z", (0.42, 0.13, 20.0))
        pen.patch("M-3.6 -4.2 Q0 -6.6 3.6 -4.2 Q0 -1.2 -3.6 -4.2 Z", (0.72, 0.15, 15.0))
    elif expression == "angry":
        pen.line("M-3.6 -4.8 Q0 -8.4 3.6 -4.8", INK, 1.5)
    else:
        pen.line("M-4 -6.8 Q0 -3.2 4 -6.8", INK, 1.4)
