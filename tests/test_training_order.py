"""Which pairs a step gets: shares that hold, every pair seen, and all of it from the step's number alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from training_case import TinyPairs

from snapref.training.order import Order
from snapref.training.sources import PreparedSource

MANY, FEW = [60, 33, 12, 8, 90, 5, 1, 41, 7, 3] * 3, [150, 15]  # pairs of each bucket, of two sets


def numbered(*sets: list[int]) -> list[list[np.ndarray]]:
    """Buckets of consecutive pair numbers."""
    ends = np.cumsum([0, *(count for buckets in sets for count in buckets)])
    ranges = iter([np.arange(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)])
    return [[next(ranges) for _ in buckets] for buckets in sets]


@pytest.mark.parametrize("weights", [(0.8, 0.2), (0.5, 0.5), (0.3, 0.7)])
@pytest.mark.parametrize("batch", [4, 32])
def test_shares_hold_in_mixed_buckets_and_every_pair_is_seen(weights, batch):
    sets = numbered(MANY, FEW)
    border, total = sum(MANY), sum(MANY) + sum(FEW)
    bucket = {int(n): (i, k) for i, own in enumerate(sets) for k, numbers in enumerate(own) for n in numbers}
    order = Order(sets, weights, batch, seed=3)
    rounds = [max(sum(-(-n // batch) for n in own) / w for own, w in zip((MANY, FEW), weights, strict=True))]
    batches = [order.batch(step) for step in range(3 * round(rounds[0]))]
    assert all(len(one) == batch and len({bucket[n] for n in one}) == 1 for one in batches)
    seen = np.concatenate(batches)
    assert np.mean(seen < border) == pytest.approx(weights[0], abs=0.02)
    assert {*seen.tolist()} == {*range(total)}
    third = np.concatenate(batches[: len(batches) // 3])  # and nearly so in each part
    assert np.mean(third < border) == pytest.approx(weights[0], abs=0.02)


def test_in_the_long_run_all_pairs_are_seen_equally_often():
    order, total = Order(numbered(MANY), [1.0], 4, seed=1), sum(MANY)
    seen = np.bincount(np.concatenate([order.batch(step) for step in range(20 * total // 4)]), minlength=total)
    assert seen.mean() == 20 and seen.min() >= 18 and seen.max() <= 24  # a batch of four shows a single pair four times


def test_the_order_follows_from_the_step_alone():
    sets = numbered(MANY, FEW)
    straight, jumped, other = (Order(sets, [0.8, 0.2], 8, seed) for seed in (3, 3, 4))
    batches = [straight.batch(step) for step in range(300)]
    for step in (299, 0, 150, 151, 7):
        assert jumped.batch(step) == batches[step]
    assert other.batch(0) != batches[0] and batches[:50] != batches[50:100]


def test_a_round_of_full_batches_shows_each_pair_once_to_any_number_of_processes():
    source = PreparedSource(TinyPairs(Path("p")), batch=4, seed=2)
    batches = [source.batch(step, 0, 1) for step in range(10)]
    seen = [row.sum().item() for batch in batches for row in batch["latent"]]
    assert len({round(value, 4) for value in seen}) == 40
    halves = [source.batch(7, rank, 2)["latent"] for rank in (0, 1)]
    assert torch.equal(torch.cat(halves), batches[7]["latent"])
