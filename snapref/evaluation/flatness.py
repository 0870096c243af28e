"""Clean pictures, in numbers: how flat, how clipped, and how much the codec loses.

A drawn picture is mostly flat colour. Speckle shows as neighbouring pixels that differ a little, over-strong
guidance as pixels at the end of the scale; a mean loss shows neither.
"""

import numpy as np

from snapref.evaluation.stats import estimate, rounded

NEARLY = 3  # of 255 levels: what no eye sees between neighbours


def flatness(pictures: np.ndarray) -> np.ndarray:
    """(n,): share of neighbouring pixels, across and down, whose channels all differ by at most NEARLY.

    pictures: uint8 (n, h, w, 3).
    """
    pixels = pictures.astype(np.int16)
    steps = [np.abs(np.diff(pixels, axis=axis)).max(axis=-1).reshape(len(pixels), -1) for axis in (1, 2)]
    return (np.concatenate(steps, axis=1) <= NEARLY).mean(axis=1)


def clipped(pictures: np.ndarray) -> np.ndarray:
    """(n,): share of pixels with a channel at 0 or 255."""
    return ((pictures == 0) | (pictures == 255)).any(axis=-1).mean(axis=(1, 2))


def psnr(pictures: np.ndarray, originals: np.ndarray) -> np.ndarray:
    """(n,) in dB, per picture, of uint8 (n, h, w, 3)."""
    error = np.square(pictures.astype(np.float64) - originals).mean(axis=(1, 2, 3))
    return 10 * np.log10(255**2 / np.maximum(error, 1e-9))


def flatness_report(pictures: dict[str, np.ndarray]) -> dict:
    """{"flatness", "clipped"} → name → estimate. pictures: name → uint8 (n, h, w, 3)."""
    return {
        measure.__name__: {name: estimate(measure(some)) for name, some in pictures.items()}
        for measure in (flatness, clipped)
    }


def codec_report(decoded: np.ndarray, originals: np.ndarray) -> dict:
    """What encoding and decoding costs; "worst" is the least PSNR of any picture."""
    values = psnr(decoded, originals)
    found = estimate(values)
    return {
        "psnr": found["mean"], "ci95": found["ci95"], "worst": rounded(values.min()), "n": found["n"],
        **flatness_report({"renderer": originals, "codec": decoded}),
    }
