"""Six accessories, each large enough to change the silhouette or the face."""

from .palette import WHITE, Colour, Colours, darker
from .pen import Pen, both, ellipse

RIBBON: Colour = (0.62, 0.20, 15.0)
HAT: Colour = (0.36, 0.09, 300.0)
KNIT: Colour = (0.66, 0.17, 32.0)
KNIT_STRIPE: Colour = (0.93, 0.06, 85.0)
FRAME: Colour = (0.30, 0.08, 20.0)
INNER_EAR: Colour = (0.82, 0.10, 10.0)
BUCKLE: Colour = (0.82, 0.14, 85.0)
PLASTIC: Colour = (0.32, 0.02, 270.0)
CUSHION: Colour = (0.80, 0.12, 195.0)

EAR = "M8 -48 C12 -55 18 -61 25 -63 C29 -56 30 -46 27 -36 Z"
EAR_INSIDE = "M14 -49 C17 -54 20 -57 23.5 -58 C26 -53 26 -47 24 -42 Z"
SCARF = "M-16 -1 C-10 3 10 3 16 -1 C20 5 17 10 12 11 C4 13.5 -4 13.5 -12 11 C-17 10 -20 5 -16 -1 Z"
LOOP = "M0 -50 C8 -61 20 -65 22.5 -61 C25 -55 23 -46 19 -42 C12 -42 4 -46 0 -50 Z"
LOOP_SHADE = "M2 -50 C8 -51 15 -49 19 -42 C12 -42 4 -46 2 -50 Z"
HAT_CONE = ("M-20 -44 C-17 -58 -6 -64 8 -64 C19 -64 28 -59 31 -51 "
            "C25 -54 19 -54.5 17 -53 C18.5 -50 19.5 -47 20 -44 Z")
HAT_BRIM = "M-36 -39 C-28 -47 28 -47 36 -39 C38 -35 24 -33 0 -33 C-24 -33 -38 -35 -36 -39 Z"
HAT_BAND = "M-20 -44 C-8 -49 8 -49 20 -44 L18.6 -49.5 C8 -54.5 -8 -54.5 -18.6 -49.5 Z"


def draw_behind(pen: Pen, accessory: str | None, colours: Colours) -> None:
    """What belongs behind the fringe."""
    if accessory == "cat ears":
        pen.fill(both(EAR), colours.hair)
        pen.patch(both(EAR_INSIDE), INNER_EAR)


def draw_in_front(pen: Pen, accessory: str | None) -> None:
    """What lies over face and hair."""
    if accessory == "glasses":
        pen.line(both(ellipse(10.4, -16.5, 8.4, 8.0)), FRAME, 1.7)
        pen.line("M-2.2 -17.5 Q0 -19 2.2 -17.5", FRAME, 1.7)
    elif accessory == "hair bow":
        pen.fill(both(LOOP), RIBBON)
        pen.shade(both(LOOP_SHADE), RIBBON)
        pen.fill(ellipse(0, -50, 4.2, 4.8), RIBBON)
    elif accessory == "witch hat":
        pen.fill(HAT_CONE, HAT)
        pen.fill(HAT_BRIM, HAT)
        pen.fill(HAT_BAND, BUCKLE)
    elif accessory == "headphones":
        pen.line("M-26 -22 C-31 -66 31 -66 26 -22", PLASTIC, 4.2)
        pen.fill(both(ellipse(26, -20, 5.6, 8.2)), CUSHION)
        pen.patch(both(ellipse(26, -20, 2.6, 4.4)), WHITE)


def draw_on_top(pen: Pen, accessory: str | None) -> None:
    """What lies over raised arms too."""
    if accessory == "scarf":
        pen.fill("M6 4 L14 4 L17 25 L8 26 Z", darker(KNIT, 0.04))
        pen.fill(SCARF, KNIT)
        pen.patch(both("M9 2.4 L4 3.2 4 12.6 9.5 11.6 Z"), KNIT_STRIPE)
