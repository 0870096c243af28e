"""95 % intervals: Wilson's for a share, the bootstrap's for a mean over cases.

Wilson: E. B. Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
Percentile bootstrap: B. Efron, "Bootstrap methods: another look at the jackknife" (1979).
"""

import math
from statistics import NormalDist

import numpy as np

Z = NormalDist().inv_cdf(0.975)  # 1.96
DRAWS = 2000

Interval = tuple[float, float]


def wilson(right: int, total: int) -> Interval:
    """Interval of a share `right / total`; (0, 1) where nothing was tried. It never leaves [0, 1]."""
    if not 0 <= right <= total:
        raise ValueError(f"{right} right of {total}; give 0 to {total}")
    if total == 0:
        return 0.0, 1.0
    share, spread = right / total, Z**2 / total
    centre = (share + spread / 2) / (1 + spread)
    reach = Z * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    # At the ends rounding would leave a trace of 1e-17 where the interval touches 0 or 1 exactly.
    return (0.0 if right == 0 else centre - reach), (1.0 if right == total else centre + reach)


def bootstrap(values, seed: int = 0) -> Interval:
    """Interval of the mean of `values` (n,), one per case; NaN marks a case that says nothing.

    Of a paired difference: give the differences. The same seed gives the same interval.
    """
    values = np.asarray(values, dtype=np.float64)
    values = values[~np.isnan(values)]
    if not len(values):
        raise ValueError("no value to take a mean of; give at least one case that counts")
    picks = np.random.default_rng(seed).integers(len(values), size=(DRAWS, len(values)))
    low, high = np.quantile(values[picks].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def estimate(values) -> dict:
    """{"mean", "ci95", "n"} of values (n,), those that are NaN left out; rounded for JSON."""
    values = np.asarray(values, dtype=np.float64)
    low, high = bootstrap(values)
    return {"mean": rounded(np.nanmean(values)), "ci95": [rounded(low), rounded(high)],
            "n": int((~np.isnan(values)).sum())}


def rounded(value: float) -> float:
    return round(float(value), 4)
