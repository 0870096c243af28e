"""Seven outfits as data: layers of flat shapes, sleeves, legs and shoes."""

from dataclasses import dataclass

from .figure import POSES, arms, draw_legs
from .palette import WHITE, Colour, Colours, darker, lighter
from .pen import Pen, box, ellipse, joined
from .scenes import Scene

NAVY: Colour = (0.36, 0.06, 270.0)
LEATHER: Colour = (0.45, 0.07, 50.0)
STEEL: Colour = (0.78, 0.02, 250.0)
GOLD: Colour = (0.84, 0.13, 88.0)
CREAM: Colour = (0.95, 0.03, 90.0)
TIE: Colour = (0.60, 0.19, 25.0)
CORD: Colour = (0.55, 0.17, 25.0)
MAIN, SKIN, SHADE = "main", "skin", "shade"  # stand for the character's own colours

SHIRT = "M-7 2 C-11 3 -13 6 -13 11 L-12 31 C-6 34 6 34 12 31 L13 11 C13 6 11 3 7 2 Z"
BODY = "M-6 2 C-9 3 -11 6 -11 11 L-10 24 -11 32 C-6 35 6 35 11 32 L10 24 11 11 C11 6 9 3 6 2 Z"
SKIRT = "M-12 22 L12 22 L19 38 C10 42 -10 42 -19 38 Z"
GOWN = "M-7 2 C-11 3 -12 7 -11 12 L-10 19 L-21 42 C-10 47 10 47 21 42 L10 19 L11 12 C12 7 11 3 7 2 Z"
HOODIE = "M-8 1 C-14 3 -16 8 -16 15 L-16.5 33 C-8 38 8 38 16.5 33 L16 15 C16 8 14 3 8 1 Z"
ROBE = "M-8 1 C-13 3 -14 8 -13 14 L-15 51 C-8 54 8 54 15 51 L13 14 C14 8 13 3 8 1 Z"
SEATED_ROBE = "M-8 1 C-13 3 -14 8 -13 14 L-14 26 L-21 38 C-12 44 12 44 21 38 L14 26 L13 14 C14 8 13 3 8 1 Z"
ONE_PIECE = ("M-8 3 L-5 3 C-4 8 4 8 5 3 L8 3 C9 10 11 14 10.5 22 L11 28 L4 35 -4 35 -11 28 -10.5 22 "
             "C-11 14 -9 10 -8 3 Z")
BIB = "M-8 12 L8 12 L10 20 L13 22 L13.5 36 L-13.5 36 L-13 22 L-10 20 Z"
PLATE = "M-9 2 C-14 4 -15 9 -13 16 L-8 25 C-4 27 4 27 8 25 L13 16 C15 9 14 4 9 2 Z"

LARGE = {SHIRT, BODY, SKIRT, GOWN, HOODIE, ROBE, SEATED_ROBE, ONE_PIECE, BIB, PLATE}  # shaded
LEFT_SIDE = "M-24 -4 L-7 -4 L-6 18 L-9 60 L-24 60 Z"
STRIPES = joined(*(box(-30, y, 30, y + 4) for y in (9, 18, 27, 36, 45)))
DOTS = joined(*(ellipse(x, y, 2.2) for y in range(8, 52, 9)
                for x in ((-15, -5, 5, 15) if y % 2 else (-10, 0, 10))))
RIGHT_HALF = box(0, -10, 40, 70)


@dataclass(frozen=True)
class Outfit:
    """A colour is an OKLCh triple or one of MAIN, SKIN, SHADE (a darker MAIN)."""

    layers: tuple[tuple[str, Colour | str], ...]  # drawn in order; the first large MAIN one is patterned
    sleeve: Colour | str | None = None  # None: bare arms
    sleeve_length: float = 0.85  # share of the arm; the hand shows as a ball where it is long
    sleeve_width: float = 8.5
    leg: Colour | str = SKIN
    leg_width: float = 7.5
    shoe: Colour | str = LEATHER
    seams: tuple[tuple[str, Colour | str, float], ...] = ()  # open lines: path, colour, width
    buttons: tuple[tuple[float, float], ...] = ()
    shoulder_plates: bool = False


OUTFITS = {
    "school uniform": Outfit(
        layers=((SHIRT, WHITE), (SKIRT, MAIN),
                ("M-8 1 C-13 4 -14 8 -13 12 L-5 11 0 17 5 11 13 12 C14 8 13 4 8 1 Z", MAIN),
                ("M0 13 L-7 10 -7 19 0 16 7 19 7 10 Z", TIE)),
        sleeve=WHITE, sleeve_length=0.55, shoe=NAVY,
        seams=(("M-6 24 L-9 39 M0 24 L0 40 M6 24 L9 39", MAIN, 1.0),),
    ),
    "dress": Outfit(
        layers=((GOWN, MAIN), ("M-19.5 38 C-10 43 10 43 19.5 38 L21 42 C10 47 -10 47 -21 42 Z", WHITE),
                ("M-10.5 18 L10.5 18 11.5 22 -11.5 22 Z", WHITE)),
        sleeve=MAIN, sleeve_length=0.34, sleeve_width=10.5, shoe=MAIN,
    ),
    "hoodie": Outfit(
        layers=(("M-14 4 C-16 -6 16 -6 14 4 C8 9 -8 9 -14 4 Z", MAIN), (HOODIE, MAIN),
                ("M-9 22 L9 22 12 31 -12 31 Z", SHADE)),
        sleeve=MAIN, sleeve_length=0.95, sleeve_width=10.5, leg=NAVY, leg_width=8.5, shoe=WHITE,
        seams=(("M-4 6 L-4 14 M4 6 L4 14", WHITE, 1.6),),
    ),
    "kimono": Outfit(
        layers=((ROBE, MAIN), ("M-8 1 L0 17 L8 1 L4 0 L0 9 L-4 0 Z", CREAM),
                ("M-13.5 18 L13.5 18 14 28 -14 28 Z", GOLD),
                ("M-14 21.5 L14 21.5 14 24.5 -14 24.5 Z", CORD)),
        sleeve=MAIN, sleeve_length=0.9, sleeve_width=13.0, leg=WHITE,
    ),
    "swimsuit": Outfit(
        layers=((BODY, SKIN), (ONE_PIECE, MAIN)), leg_width=8.5, shoe=SKIN,
        seams=(("M-10 21 Q0 24 10 21", WHITE, 2.2),),
    ),
    "overalls": Outfit(
        layers=((SHIRT, CREAM), ("M-9 3 L-5 3 -4 14 -8 14 Z", MAIN), ("M9 3 L5 3 4 14 8 14 Z", MAIN),
                (BIB, MAIN), ("M-5 15 L5 15 5 21 -5 21 Z", SHADE)),
        sleeve=CREAM, sleeve_length=0.5, leg=MAIN, leg_width=10.0,
        buttons=((-6, 13.5), (6, 13.5)),
    ),
    "armor": Outfit(
        layers=((SKIRT, NAVY), ("M-14 23 L-3 23 -4 36 -18 34 Z", MAIN), ("M14 23 L3 23 4 36 18 34 Z", MAIN),
                (PLATE, MAIN), ("M-3 8 L3 8 2 20 0 23 -2 20 Z", GOLD)),
        sleeve=STEEL, sleeve_length=0.9, sleeve_width=8.0, leg=STEEL, leg_width=9.0, shoe=STEEL,
        shoulder_plates=True,
    ),
}


def _resolved(colour, colours: Colours) -> Colour:
    """The colour that a layer's word or own colour means for this character."""
    if isinstance(colour, str):
        return {MAIN: colours.outfit, SKIN: colours.skin, SHADE: darker(colours.outfit, 0.08)}[colour]
    return colour


def draw_clothes(pen: Pen, where: Scene, outfit: str, pattern: str, colours: Colours) -> None:
    """Legs, garment layers and lowered arms, in the order the pose needs."""
    wear = OUTFITS[outfit]
    legs = (_resolved(wear.leg, colours), wear.leg_width, _resolved(wear.shoe, colours))
    sitting = POSES[where.pose].soles
    if not sitting:
        draw_legs(pen, where, *legs)
    pen.limb("M0 -3 L0 5", colours.skin, 8.0)
    patterned = False
    for path, colour in wear.layers:
        path = SEATED_ROBE if sitting and path == ROBE else path
        tone = _resolved(colour, colours)
        pen.fill(path, tone)
        if path not in LARGE:
            continue
        if colour == MAIN and not patterned:
            patterned = True
            _pattern(pen, path, pattern, tone)
        pen.shade(LEFT_SIDE, tone, path, 0.07)
    for path, colour, width in wear.seams:
        pen.line(path, darker(colours.outfit, 0.12) if colour == MAIN else colour, width)
    for x, y in wear.buttons:
        pen.fill(ellipse(x, y, 1.8), GOLD, line=0.6)
    if sitting:
        draw_legs(pen, where, *legs)
    draw_arms(pen, where, outfit, colours, raised=False)


def draw_arms(pen: Pen, where: Scene, outfit: str, colours: Colours, raised: bool) -> None:
    """The raised arms, which lie over the head's outline, or the lowered ones: arm, sleeve, hand."""
    wear = OUTFITS[outfit]
    for arm in arms(where):
        if arm.raised != raised:
            continue
        pen.limb(arm.part(1.0), colours.skin, 6.6)
        if wear.sleeve is not None:
            pen.limb(arm.part(wear.sleeve_length), _resolved(wear.sleeve, colours), wear.sleeve_width)
        if wear.shoulder_plates:
            pen.fill(ellipse(arm.side * 13, 6.5, 6.4, 5.6), colours.outfit)
        if arm.raised or (wear.sleeve is not None and wear.sleeve_length > 0.6):
            pen.fill(ellipse(*arm.hand, 4.4 if arm.raised else 3.9), colours.skin)


def _pattern(pen: Pen, path: str, pattern: str, tone: Colour) -> None:
    """The pattern no tag names: coarse enough to survive a picture 96 pixels wide."""
    other = darker(tone, 0.17) if tone[0] > 0.75 else lighter(tone, 0.24)
    if pattern == "stripes":
        pen.patch(STRIPES, other, path)
    elif pattern == "dots":
        pen.patch(DOTS, other, path)
    elif pattern == "two-tone":
        pen.patch(RIGHT_HALF, other, path)

