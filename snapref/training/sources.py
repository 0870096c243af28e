"""Where an adapter's pairs come from: a prepared folder, or for nano the renderer while the training goes.

Both give the same tensors for a step: latent and reference (b, 16, 1, h, w), context and reference_context
(b, k, c), reads (b,) bool. They follow from the step alone, so a resumed run sees what it would have seen.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from snapref.training.config import RunConfig
from snapref.training.frozen import FrozenParts
from snapref.training.loop import my_rows
from snapref.training.order import Order
from snapref.training.pairs import draw_pair

EMPTY_SHARE = 0.1  # of prompts replaced by the empty one
ALONE_SHARE = 0.1  # of targets without a reference
# Of targets, a batch at a time: one place has to serve every size of picture.
SHAPES = ("portrait", "portrait", "landscape", "portrait", "portrait", "square")


class PreparedSource:
    """Pairs of a prepared set (a `PreparedPairs`): latents and contexts are read, nothing is encoded."""

    reads_disk = True

    def __init__(self, pairs, batch: int, seed: int):
        if max(map(len, pairs.buckets.values())) < batch:
            raise ValueError(
                f"{len(pairs)} prepared pairs in {len(pairs.buckets)} buckets hold no batch of {batch} of one size; "
                "take a smaller batch, or prepare more pairs"
            )
        self.pairs, self.order = pairs, Order(pairs.by_set, pairs.weights, batch, seed)

    def batch(self, step: int, rank: int, world: int) -> dict[str, Tensor]:
        numbers = self.order.batch(step)
        return self.pairs.batch(numbers[my_rows(len(numbers), rank, world)])


class RendererSource:
    """Pairs that the drawn world makes: a chunk of batches at once, each of which is used a few times.

    contexts: prompts → (n, k, c). Drawing and encoding a pair costs a good part of a step on it.
    """

    reads_disk = False

    def __init__(
        self, config: RunConfig, parts: FrozenParts, contexts: Callable[[list[str]], Tensor], captions: dict[str, str]
    ):
        self.config, self.parts, self.contexts = config, parts, contexts
        self.modes = {mode: contexts([caption]) for mode, caption in captions.items()}
        self.empty = contexts([""])
        self._made: tuple[int, list] | None = None

    def batch(self, step: int, rank: int, world: int) -> dict[str, Tensor]:
        columns, passes = (self.config.options.get(name, usual) for name, usual in (("columns", 32), ("passes", 2)))
        chunk, within = divmod(step, columns * passes)
        if self._made is None or self._made[0] != chunk:
            self._made = (chunk, [self._make(chunk * columns + i, rank, world) for i in range(columns)])
        turn, place = divmod(within, columns)
        order = np.random.default_rng((self.config.seed, chunk, turn)).permutation(columns)
        column = self._made[1][int(order[place])]

        rows = my_rows(self.config.batch, rank, world)
        generator = torch.Generator().manual_seed((self.config.seed + 2) * 1_000_003 + step)
        silent, alone = (torch.rand(self.config.batch, generator=generator)[rows] for _ in range(2))
        context = torch.where((silent < EMPTY_SHARE)[:, None, None], self.empty, column["context"])
        return {**column, "context": context, "reads": alone >= ALONE_SHARE}

    def _make(self, number: int, rank: int, world: int) -> dict[str, Tensor]:
        """A batch of pairs, encoded: everything that does not learn is computed once."""
        count = self.config.batch
        rows, shape = range(count)[my_rows(count, rank, world)], SHAPES[number % len(SHAPES)]
        pairs = [draw_pair(self.config.seed, number * count + i, shape=shape) for i in rows]
        return {
            "latent": self.parts.pictures([p.target for p in pairs]),
            "reference": self.parts.pictures([p.reference for p in pairs]),
            "context": self.contexts([p.prompt for p in pairs]),
            "reference_context": torch.cat([self.modes[p.mode] for p in pairs]),
        }
