"""Seven hair styles: what lies behind the head, what falls over the forehead."""

from .palette import Colour, lighter
from .pen import Pen, both, ellipse

# Behind the body: silhouettes that differ at a glance.
SHORT = "M-25.5 -20 C-29 -40 -18 -54.5 0 -54.5 C18 -54.5 29 -40 25.5 -20 C24 -13 -24 -13 -25.5 -20 Z"
CAP = "M-26 -18 C-29 -40 -18 -54.5 0 -54.5 C18 -54.5 29 -40 26 -18 C24 -8 -24 -8 -26 -18 Z"
BOB = ("M-27 -24 C-29 -43 -18 -55 0 -55 C18 -55 29 -43 27 -24 C29 -12 30 -4 29 3 "
       "C22 7 -22 7 -29 3 C-30 -4 -29 -12 -27 -24 Z")
BOB_SHADE = "M-27 -20 C-29 -8 -29 -2 -29 3 C-22 7 22 7 29 3 C29 -2 29 -8 27 -20 Z"
LONG = ("M-26 -24 C-29 -43 -18 -55 0 -55 C18 -55 29 -43 26 -24 C29 -6 31 14 33 34 "
        "C28 33 25 37 21 41 C10 36 -10 36 -21 41 C-25 37 -28 33 -33 34 C-31 14 -29 -6 -26 -24 Z")
LONG_SHADE = "M-20 -20 L-18 44 18 44 20 -20 Z"
TWINTAIL = "M18 -44 C36 -52 46 -34 42 -14 C40 0 42 12 38 24 C33 20 28 14 26 6 C24 -8 28 -18 20 -34 Z"
TWINTAIL_SHADE = ("M29 4 C28 -10 32 -24 24 -38 C34 -30 38 -14 33 -2 "
                  "C34 8 37 16 38 24 C33 20 30 14 29 4 Z")
PONYTAIL = "M6 -50 C20 -66 44 -56 44 -32 C44 -14 37 -4 42 14 C30 12 24 0 25 -14 C26 -26 22 -34 10 -40 Z"
PONYTAIL_SHADE = ("M25 -14 C26 -26 22 -34 14 -40 C34 -42 36 -20 31 -6 "
                  "C32 4 37 10 42 14 C30 12 24 0 25 -14 Z")
SPIKES = ("M-24 -12 Q-32 -8 -39 -9 Q-34 -16 -32 -22 Q-40 -24 -45 -30 Q-37 -32 -33 -37 Q-37 -45 -36 -53 "
          "Q-28 -51 -23 -50 Q-20 -59 -12 -64 Q-8 -58 -2 -55 Q6 -62 15 -64 Q15 -57 19 -52 Q28 -55 36 -53 "
          "Q33 -45 33 -38 Q39 -35 45 -30 Q37 -27 32 -22 Q34 -15 39 -9 Q31 -8 24 -12 C16 -6 -16 -6 -24 -12 Z")
TUFT = "M-4 -52 C-6 -60 2 -65 10 -61 C5 -60 4 -57 6 -52 Z"
BUNS, BUN_SHADES = both(ellipse(20, -52, 11.5)), both(ellipse(17, -49, 7.5))

# Over the face: an outer arc, side locks, and the fringe's lower edge from right to left.
ARC = "C-28 -28 -27 -54 0 -54 C27 -54 28 -28"
FRONT = {
    "short hair":
        f"M-25.5 -14 {ARC} 25.5 -14 C23.6 -17 22 -22 21.4 -27 C14 -21.5 2 -22 -8.5 -30 "
        "C-10 -26 -15 -22.5 -20.8 -21.5 C-21.6 -19 -23 -16 -25.5 -14 Z",
    "bob cut":
        f"M-27.5 1 C-28 -8 -26 -12 -25.8 -18 {ARC} 25.8 -18 C26 -12 28 -8 27.5 1 C24 2 21 1 19.5 -2 "
        "C21.5 -10 21.5 -18 20 -25 C12 -22.5 -12 -22.5 -20 -25 "
        "C-21.5 -18 -21.5 -10 -19.5 -2 C-21 1 -24 2 -27.5 1 Z",
    "long hair":
        f"M-26.5 2 C-28 -8 -26 -12 -25.8 -18 {ARC} 25.8 -18 C26 -12 28 -8 26.5 2 C22 -4 21.5 -14 20.4 -21 "
        "C16 -25 6 -29 2 -40 C-4 -30 -14 -24 -20.4 -21 C-21.5 -14 -22 -4 -26.5 2 Z",
    "twintails":
        f"M-25.5 -13 {ARC} 25.5 -13 C23 -17 21.5 -22 20.5 -29 C17 -25 13.5 -23.5 9.5 -22.5 "
        "C10.4 -26 10.2 -28 9.4 -32 C4 -26 -2 -23.5 -7.5 -22.5 C-5.6 -26 -5.2 -28 -5.4 -31 "
        "C-9.5 -26.5 -14 -24.5 -18.5 -24 C-19.6 -26 -20.2 -27.6 -20.6 -30 C-21.5 -22 -23 -17 -25.5 -13 Z",
    "double bun":
        f"M-25.8 -16 {ARC} 25.8 -16 C23 -18 21 -21 20 -25 C12 -22.5 -12 -22.5 -20 -25 "
        "C-21 -21 -23 -18 -25.8 -16 Z",
    "spiky hair":
        f"M-25 -17 {ARC} 25 -17 L21.5 -28 16 -20.5 10.5 -29 3.5 -19.5 -2 -29 -9 -21 -14 -29 -20 -22 "
        "-21.6 -28 Z",
}
FRONT["ponytail"] = FRONT["twintails"]
FRINGE_SHADE = "M-30 -33 Q0 -19 30 -33 L30 6 -30 6 Z"
SHINE = "M-19 -38 C-12 -46 12 -46 19 -38 L17.5 -34.5 C10 -41 -10 -41 -17.5 -34.5 Z"
TIES = {"twintails": both(ellipse(22.5, -43, 3.6, 4.4)), "ponytail": ellipse(12, -51, 3.6, 4.4)}
TIE_COLOUR: Colour = (0.93, 0.03, 20.0)


def draw_back_hair(pen: Pen, style: str, hair: Colour) -> None:
    """The part behind body and head."""
    if style == "short hair":
        pen.fill(TUFT, hair)
        pen.fill(SHORT, hair)
    elif style == "bob cut":
        pen.fill(BOB, hair)
        pen.shade(BOB_SHADE, hair, BOB)
    elif style == "long hair":
        pen.fill(LONG, hair)
        pen.shade(LONG_SHADE, hair, LONG, 0.12)
    elif style == "spiky hair":
        pen.fill(SPIKES, hair)
    elif style == "twintails":
        pen.fill(both(TWINTAIL), hair)
        pen.shade(both(TWINTAIL_SHADE), hair, both(TWINTAIL))
        pen.fill(CAP, hair)
    elif style == "ponytail":
        pen.fill(PONYTAIL, hair)
        pen.shade(PONYTAIL_SHADE, hair, PONYTAIL)
        pen.fill(CAP, hair)
    else:
        pen.fill(BUNS, hair)
        pen.shade(BUN_SHADES, hair)
        pen.fill(CAP, hair)


def draw_front_hair(pen: Pen, style: str, hair: Colour) -> None:
    """Fringe and side locks over the face, with a band of light."""
    pen.fill(FRONT[style], hair)
    pen.shade(FRINGE_SHADE, hair, FRONT[style], 0.07)
    pen.patch(SHINE, lighter(hair, 0.09))
    if style in TIES:
        pen.fill(TIES[style], TIE_COLOUR)
