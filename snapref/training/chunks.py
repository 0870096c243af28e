"""Latents and text of drawn pictures, made a chunk at a time and used a few times over.

Drawing and encoding a picture costs about a fifth of a training step on it. So a chunk of `columns` batches is
made at once and passed over `passes` times, each time in another order, with new noise and new sigmas. Everything
follows from the step number: a resumed run makes the same chunk again.
"""

import math

import numpy as np
import torch
from torch import Tensor

from snapref.training.draws import FRAMES, draw
from snapref.training.frozen import FrozenParts
from snapref.training.loop import my_rows


class Chunks:
    """`kinds` maps a kind of picture (see `draws`) to its number of columns in a chunk."""

    def __init__(self, parts: FrozenParts, kinds: dict[str, int], batch: int, passes: int, seed: int, split: str):
        self.parts, self.batch, self.passes, self.seed, self.split = parts, batch, passes, seed, split
        self.columns = [kind for kind, count in kinds.items() for _ in range(count)]
        self._made: tuple[int, list] | None = None

    def column(self, step: int, rank: int, world: int) -> tuple[str, dict[str, Tensor]]:
        """(kind, {"latent": (b, 16, f, h, w), ids, ids_mask, source, source_mask}) of this process's rows."""
        per_chunk = len(self.columns) * self.passes
        chunk, within = divmod(step, per_chunk)
        if self._made is None or self._made[0] != chunk:
            self._made = (chunk, [self._make(chunk, i, kind, rank, world) for i, kind in enumerate(self.columns)])
        turn, place = divmod(within, len(self.columns))
        order = np.random.default_rng((self.seed, chunk, turn)).permutation(len(self.columns))
        chosen = int(order[place])
        return self.columns[chosen], self._made[1][chosen]

    def rows_of(self, kind: str) -> int:
        """Pictures in a column: clips have more frames, so fewer of them fill the same time."""
        return self.batch // FRAMES[kind]

    def _make(self, chunk: int, column: int, kind: str, rank: int, world: int) -> dict[str, Tensor]:
        count = self.rows_of(kind)
        first = (chunk * len(self.columns) + column) * self.batch
        drawn = [draw(kind, self.seed, first + i, self.split) for i in range(count)[my_rows(count, rank, world)]]
        frames = torch.from_numpy(np.stack([d.frames for d in drawn]))
        text = self.parts.text([d.caption for d in drawn])
        latent = torch.cat([self.parts.latents(part) for part in frames.split(math.ceil(32 / FRAMES[kind]))])
        return {"latent": latent, **text}
