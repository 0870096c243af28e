"""Does the tagger read from a sample what the character and the scene should show?

Appearance is the mean over the identity attributes that the true picture lets one see, scene the mean over
background, pose, expression and framing; each per case, then over cases. A sample that read somebody else's
picture is still scored against the character that was asked for.
"""

from collections import Counter
from functools import cache

import numpy as np

from snapref.evaluation.cases import Case
from snapref.evaluation.samples import to_pixels
from snapref.evaluation.stats import estimate, rounded, wilson
from snapref.world import HELD_BACK, IDENTITY, sample

APPEARANCE = tuple(IDENTITY)
SCENE = ("background", "pose", "expression", "framing")
ATTRIBUTES = (*APPEARANCE, *SCENE)
CONDITIONS = ("all_tags", "scene_only", "reference", "wrong_reference")
DRAWS = 2000  # of the base's own data, to see how frequent each value is in it
HIDDEN = object()  # not None, which is the value of an absent accessory


def marks(tagger, pictures: np.ndarray, cases: list[Case]) -> np.ndarray:
    """(n, attributes): 1 where the tagger reads the true value, 0 where another, NaN where none is seen."""
    readings = [found for part in to_pixels(pictures).split(64) for found in tagger.read(part)]
    return np.array([
        [float(reading[name] == value) if value is not HIDDEN else np.nan
         for name, value in zip(ATTRIBUTES, truth(case), strict=True)]
        for reading, case in zip(readings, cases, strict=True)
    ])


def truth(case: Case) -> list:
    """The value of every attribute, or HIDDEN."""
    looks = [getattr(case.person, name) if name in case.visible else HIDDEN for name in APPEARANCE]
    return looks + [getattr(case.scene, name) for name in SCENE]


@cache
def habits() -> dict[str, dict]:
    """How often each value is in the base's own data: attribute → value → share."""
    drawn = [sample((11, index)) for index in range(DRAWS)]
    counts = {name: Counter(getattr(one.people[0], name) for one in drawn) for name in APPEARANCE}
    counts |= {name: Counter(getattr(one.scene, name) for one in drawn) for name in SCENE}
    return {name: {value: n / DRAWS for value, n in found.items()} for name, found in counts.items()}


def chance(cases: list[Case]) -> np.ndarray:
    """(n, attributes): how often a base that was told nothing would be right; NaN as in `marks`."""
    return np.array([
        [np.nan if value is HIDDEN else habits()[name].get(value, 0.0)
         for name, value in zip(ATTRIBUTES, truth(case), strict=True)]
        for case in cases
    ])


def part_means(scores: np.ndarray) -> dict[str, np.ndarray]:
    """Per case the mean over appearance and over scene: {"appearance": (n,), "scene": (n,)}."""
    split = len(APPEARANCE)
    return {"appearance": np.nanmean(scores[:, :split], axis=1), "scene": scores[:, split:].mean(axis=1)}


def attribute_report(tagger, samples: dict[str, np.ndarray], cases: list[Case]) -> dict:
    """All scores as one JSON object. samples: condition → uint8 (n, h, w, 3)."""
    scores = {condition: marks(tagger, pictures, cases) for condition, pictures in samples.items()}
    ceiling = marks(tagger, np.stack([case.picture for case in cases]), cases)
    guess = chance(cases)

    report: dict = {"appearance": {}, "scene": {}, "n": len(cases), "per_attribute": {}}
    intervals: dict = {"appearance": {}, "scene": {}, "per_attribute": {}}
    for condition, score in scores.items():
        for part, values in part_means(score).items():
            found = estimate(values)
            report[part][condition], intervals[part][condition] = found["mean"], found["ci95"]
    for column, name in enumerate(ATTRIBUTES):
        shares = {condition: share(score[:, column]) for condition, score in scores.items()}
        report["per_attribute"][name] = {c: found["share"] for c, found in shares.items()}
        intervals["per_attribute"][name] = {c: found["ci95"] for c, found in shares.items()}
    report |= {"intervals": intervals, "ceiling": summary(ceiling), "chance": summary(guess)}
    report["seen"] = {name: int((~np.isnan(guess[:, i])).sum()) for i, name in enumerate(ATTRIBUTES)}
    report["differences"] = differences({condition: part_means(score) for condition, score in scores.items()})
    if held := held_back_report(scores, cases):
        report["held_back"] = held
    return report


def differences(means: dict[str, dict[str, np.ndarray]]) -> dict:
    """Case by case, so narrower than the two intervals tell: what the picture adds, and what it costs."""
    pairs = {
        "appearance: reference - wrong_reference": ("appearance", "reference", "wrong_reference"),
        "appearance: reference - all_tags": ("appearance", "reference", "all_tags"),
        "scene: reference - all_tags": ("scene", "reference", "all_tags"),
    }
    return {
        name: estimate(means[a][part] - means[b][part])
        for name, (part, a, b) in pairs.items()
        if a in means and b in means
    }


def share(column: np.ndarray) -> dict:
    """{"share", "ci95", "n"} of a column of marks, the NaN ones left out; share None where all are."""
    seen = column[~np.isnan(column)]
    low, high = wilson(int(seen.sum()), len(seen))
    return {"share": rounded(seen.mean()) if len(seen) else None, "ci95": [rounded(low), rounded(high)],
            "n": len(seen)}


def summary(scores: np.ndarray) -> dict:
    """Means alone, in the layout of a report."""
    means = {part: rounded(values.mean()) for part, values in part_means(scores).items()}
    columns = {name: scores[:, i] for i, name in enumerate(ATTRIBUTES)}
    return {**means, "per_attribute": {name: share_of_mean(column) for name, column in columns.items()}}


def share_of_mean(column: np.ndarray) -> float | None:
    return None if np.isnan(column).all() else rounded(np.nanmean(column))


def held_back_report(scores: dict[str, np.ndarray], cases: list[Case]) -> dict:
    """Only the values that every adapter training left out: attribute → value, and a share per condition."""
    report = {}
    for name, value in HELD_BACK.items():
        rows = [i for i, case in enumerate(cases) if getattr(case.person, name) == value]
        if rows:
            column = ATTRIBUTES.index(name)
            found = {condition: share(score[rows, column]) for condition, score in scores.items()}
            report[name] = {"value": value, **found}
    return report
