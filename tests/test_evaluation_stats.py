"""Intervals against values from textbooks, and against what they promise."""

import numpy as np
import pytest

from snapref.evaluation.stats import bootstrap, estimate, wilson


@pytest.mark.parametrize("right, total, low, high", [
    (8, 10, 0.4902, 0.9433),
    (0, 10, 0.0, 0.2775),
    (10, 10, 0.7225, 1.0),
    (50, 100, 0.4038, 0.5962),
    (1, 1, 0.2065, 1.0),
    (0, 0, 0.0, 1.0),
])  # fmt: skip
def test_wilson_has_the_published_values(right, total, low, high):
    assert wilson(right, total) == pytest.approx((low, high), abs=5e-5)


def test_wilson_refuses_more_right_than_tried():
    with pytest.raises(ValueError, match="4 right of 3"):
        wilson(4, 3)


def test_bootstrap_is_near_the_normal_interval_and_the_same_each_time():
    values = np.random.default_rng(0).normal(5.0, 2.0, 400)
    low, high = bootstrap(values)
    reach = 1.96 * values.std() / np.sqrt(400)
    assert (low, high) == pytest.approx((values.mean() - reach, values.mean() + reach), abs=0.03)
    assert bootstrap(values) == (low, high) != bootstrap(values, seed=1)


def test_bootstrap_covers_the_true_mean_as_often_as_it_says():
    rng = np.random.default_rng(1)
    intervals = [bootstrap(rng.exponential(size=80), seed) for seed in range(200)]
    assert 0.88 < np.mean([low <= 1.0 <= high for low, high in intervals]) <= 1


def test_a_case_that_says_nothing_is_left_out():
    found = estimate([1.0, np.nan, 1.0, 1.0])
    assert found == {"mean": 1.0, "ci95": [1.0, 1.0], "n": 3}
    with pytest.raises(ValueError, match="no value"):
        estimate([np.nan])
