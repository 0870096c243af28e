"""The proof that the picture is read: hues that no tag can say.

Within "blue hair" every character has her own blue. The colour distance ΔE (CIE76) between a sample and the
true picture, over the pixels where hair or outfit shows its plain colour, is compared between the right
picture and that of a twin, whom every tag describes alike and whose hues are half a range away.
"""

import numpy as np

from snapref.evaluation.cases import LEAST_SEEN, Case
from snapref.evaluation.stats import estimate
from snapref.world import delta_e

PARTS = ("hair", "outfit")
CONDITIONS = ("all_tags", "reference", "twin_reference", "wrong_reference")


def colour_error(picture: np.ndarray, case: Case, part: str) -> float:
    """ΔE of the median colours of `part` in a picture (h, w, 3) and in the true one; NaN if hardly seen."""
    region = case.regions[part]
    if region.sum() < LEAST_SEEN:
        return float("nan")
    colour, true = (np.median(pixels[region], axis=0) for pixels in (picture, case.picture))
    return float(delta_e(colour, true))


def colour_errors(pictures: np.ndarray, cases: list[Case], part: str) -> np.ndarray:
    """(n,) of pictures (n, h, w, 3)."""
    return np.array([colour_error(p, case, part) for p, case in zip(pictures, cases, strict=True)])


def colour_report(samples: dict[str, np.ndarray], cases: list[Case]) -> dict:
    """Per part the mean ΔE of every condition, and how much nearer the right picture brings it than a twin's.

    samples: condition → uint8 (n, h, w, 3), "reference" and "twin_reference" among them.
    """
    report: dict = {"n": len(cases)}
    for part in PARTS:
        errors = {condition: colour_errors(pictures, cases, part) for condition, pictures in samples.items()}
        report[part] = {condition: estimate(values) for condition, values in errors.items()}
        report[part]["gap"] = estimate(errors["twin_reference"] - errors["reference"])
    return report
