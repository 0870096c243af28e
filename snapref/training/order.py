"""Which prepared pairs make the batch of a step: all of one size, each set of a mix with its share.

A batch is of one set and one bucket. Whose turn a step is follows from the weights alone, so the shares hold to a
batch at every step, whatever buckets the sets have; were pairs of a mix drawn first and put into buckets then, the
sets with the most sizes would lose the most to batches that never fill.

A set goes round after round through its buckets, in a new order each time. A bucket is an endless row of permutations
of its pairs, cut into batches; after e rounds it has given ⌈e · pairs / batch⌉ of them. So the first round shows every
pair, and in the long run all are seen equally often: a bucket smaller than a batch fills it up with its own pairs and
has fewer turns for it.
"""

from collections.abc import Sequence

import numpy as np


class Order:
    """batch(step) → numbers of the pairs. Follows from the step and these arguments, not from what was asked before.

    sets: of each set its buckets, arrays of pair numbers; weights: of the sets, with the sum 1.
    """

    def __init__(self, sets: Sequence[Sequence[np.ndarray]], weights: Sequence[float], batch: int, seed: int):
        self.rows = [BucketRows(buckets, batch, (seed, i)) for i, buckets in enumerate(sets)]
        self.weights, self._turns = np.asarray(weights, float), np.zeros(len(sets), int)
        self._whose: list[tuple[int, int]] = []  # of each step so far: which set, and its how manieth batch

    def batch(self, step: int) -> list[int]:
        which, turn = self.whose(step)
        return self.rows[which].batch(turn)

    def whose(self, step: int) -> tuple[int, int]:
        """(set, number of its batches before): the set that is furthest behind its share takes the step."""
        for now in range(len(self._whose), step + 1):
            which = int(np.argmax(self.weights * (now + 1) - self._turns))
            self._whose.append((which, int(self._turns[which])))
            self._turns[which] += 1
        return self._whose[step]


class BucketRows:
    """The batches of one set, one after the other for ever."""

    def __init__(self, buckets: Sequence[np.ndarray], batch: int, seed: tuple[int, ...]):
        self.buckets, self.size, self.seed = [np.asarray(bucket) for bucket in buckets], batch, seed
        self._pairs = np.array([len(bucket) for bucket in self.buckets])
        self._round: tuple[int, np.ndarray] | None = None
        self._row: dict[int, tuple[int, np.ndarray]] = {}  # bucket → the permutation of it that was read last

    def batch(self, turn: int) -> list[int]:
        bucket, number = self.round(self.round_of(turn))[turn - self.before(self.round_of(turn)).sum()]
        own, begin = self.buckets[bucket], number * self.size
        places = np.arange(begin, begin + self.size)
        found = [own[self.permutation(bucket, r)[places[places // len(own) == r] % len(own)]]
                 for r in range(begin // len(own), (begin + self.size - 1) // len(own) + 1)]
        return np.concatenate(found).tolist()

    def before(self, rounds: int) -> np.ndarray:
        """Of each bucket, its batches in the first `rounds` rounds."""
        return -(-rounds * self._pairs // self.size)

    def round_of(self, turn: int) -> int:
        """The round that a batch of the set is in."""
        found = turn * self.size // self._pairs.sum()  # never too small: a round has no fewer batches than pairs fill
        while self.before(found).sum() > turn:
            found -= 1
        return int(found)

    def round(self, number: int) -> np.ndarray:
        """(batches, 2): bucket and number of its batch, in the order of the round."""
        if self._round is None or self._round[0] != number:
            first, end = self.before(number), self.before(number + 1)
            lines = [(b, n) for b, (i, j) in enumerate(zip(first, end, strict=True)) for n in range(i, j)]
            mixed = np.random.default_rng((*self.seed, number, 59)).permutation(len(lines))
            self._round = number, np.array(lines)[mixed]
        return self._round[1]

    def permutation(self, bucket: int, number: int) -> np.ndarray:
        if bucket not in self._row or self._row[bucket][0] != number:
            rng = np.random.default_rng((*self.seed, bucket, number, 61))
            self._row[bucket] = number, rng.permutation(len(self.buckets[bucket]))
        return self._row[bucket][1]
