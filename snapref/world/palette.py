"""Colours in OKLCh, where one step of hue looks alike everywhere, and the colour distance ΔE.

OKLab: Björn Ottosson, "A perceptual color space for image processing" (2020). CIE76: ISO/CIE 11664-4.
"""

import math
from dataclasses import dataclass

import numpy as np

Colour = tuple[float, float, float]  # lightness 0..1, chroma 0..0.3, hue in degrees

# Tagged colours: (lightness, chroma, hue, half-width of the hue range that keeps the name).
HAIR = {
    "black hair": (0.30, 0.042, 300, 65), "brown hair": (0.48, 0.085, 55, 16),
    "blonde hair": (0.87, 0.115, 90, 12), "red hair": (0.56, 0.185, 25, 9),
    "pink hair": (0.79, 0.125, 358, 14), "orange hair": (0.73, 0.155, 58, 9),
    "blue hair": (0.63, 0.135, 242, 17), "green hair": (0.70, 0.135, 152, 20),
    "purple hair": (0.54, 0.15, 314, 12), "white hair": (0.93, 0.025, 270, 90),
}
OUTFIT = {
    "red outfit": (0.59, 0.19, 25, 9), "blue outfit": (0.58, 0.15, 243, 17),
    "green outfit": (0.63, 0.125, 152, 20), "yellow outfit": (0.87, 0.145, 92, 10),
    "purple outfit": (0.55, 0.15, 314, 12), "pink outfit": (0.81, 0.115, 358, 14),
    "black outfit": (0.32, 0.035, 300, 65), "white outfit": (0.96, 0.018, 250, 90),
}
EYES = {
    "blue eyes": (0.64, 0.15, 250, 10), "green eyes": (0.70, 0.16, 148, 10),
    "brown eyes": (0.47, 0.085, 55, 8), "red eyes": (0.57, 0.21, 25, 6),
    "purple eyes": (0.56, 0.17, 305, 8), "yellow eyes": (0.84, 0.15, 88, 7),
}
SKIN = {
    "pale skin": (0.965, 0.018, 20, 0), "fair skin": (0.91, 0.05, 62, 0),
    "tan skin": (0.77, 0.085, 60, 0), "dark skin": (0.53, 0.075, 50, 0),
}

WHITE: Colour = (0.975, 0.008, 250.0)
INK: Colour = (0.27, 0.045, 300.0)


@dataclass(frozen=True)
class Colours:
    """The four colours that make one character; everything else drawn on her is fixed or derived."""

    hair: Colour
    outfit: Colour
    eyes: Colour
    skin: Colour


def tinted(entry: tuple[float, float, float, float], turn: float) -> Colour:
    """The colour of a table entry with its hue turned by `turn` in [-1, 1] of its range."""
    lightness, chroma, hue, reach = entry
    return (lightness, chroma, (hue + turn * reach) % 360.0)


def colours_of(character) -> Colours:
    """The `Colours` of a `Character`, untagged hues included."""
    return Colours(
        hair=tinted(HAIR[character.hair_colour], character.hair_hue),
        outfit=tinted(OUTFIT[character.outfit_colour], character.outfit_hue),
        eyes=tinted(EYES[character.eye_colour], character.eye_hue),
        skin=tinted(SKIN[character.skin], 0.0),
    )


def darker(colour: Colour, amount: float = 0.1) -> Colour:
    """A shadow of `colour`: darker, slightly richer, its hue drawn towards violet as painters do."""
    lightness, chroma, hue = colour
    towards = (300.0 - hue + 180.0) % 360.0 - 180.0
    return (max(lightness - amount, 0.05), chroma + 0.12 * amount, (hue + 0.6 * amount * towards) % 360.0)


def lighter(colour: Colour, amount: float = 0.1) -> Colour:
    lightness, chroma, hue = colour
    return (min(lightness + amount, 0.99), chroma * (1 - amount), hue)


def mixed(a: Colour, b: Colour, share: float) -> Colour:
    """`a` and `b` blended in OKLab, `share` of b."""
    ax, ay, bx, by = (f(math.radians(c[2])) * c[1] for c in (a, b) for f in (math.cos, math.sin))
    x, y = ax + (bx - ax) * share, ay + (by - ay) * share
    return (a[0] + (b[0] - a[0]) * share, math.hypot(x, y), math.degrees(math.atan2(y, x)) % 360.0)


def to_rgb(colour: Colour) -> tuple[float, float, float]:
    """sRGB in [0, 1]; what lies outside is clipped."""
    lightness, chroma, hue = colour
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    l3 = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    m3 = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    s3 = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * l3 - 3.3077115913 * m3 + 0.2309699292 * s3,
        -1.2684380046 * l3 + 2.6097574011 * m3 - 0.3413193965 * s3,
        -0.0041960863 * l3 - 0.7034186147 * m3 + 1.7076147010 * s3,
    )
    return tuple(min(max(12.92 * x if x <= 0.0031308 else 1.055 * x ** (1 / 2.4) - 0.055, 0.0), 1.0)
                 for x in linear)


def to_lab(rgb) -> np.ndarray:
    """CIELAB (D65) of sRGB values in 0..255, shape (..., 3)."""
    x = np.asarray(rgb, dtype=np.float64) / 255.0
    x = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    xyz = x @ np.array([[0.4124564, 0.2126729, 0.0193339],
                        [0.3575761, 0.7151522, 0.1191920],
                        [0.1804375, 0.0721750, 0.9503041]]) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz * (29 / 6) ** 2 / 3 + 4 / 29)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]),
                     200 * (f[..., 1] - f[..., 2])], axis=-1)


def delta_e(rgb_a, rgb_b) -> np.ndarray:
    """CIE76 colour difference of sRGB values in 0..255, shape (..., 3) each; about 2 is just visible."""
    return np.linalg.norm(to_lab(rgb_a) - to_lab(rgb_b), axis=-1)
