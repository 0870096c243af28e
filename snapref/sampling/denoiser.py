"""The model of one run: prompts, guidance and reference behind one call (latent, sigma) → denoised."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from snapref.anima.attention import KeyGroup
from snapref.anima.lowrank import Branch
from snapref.anima.model import AnimaDiT
from snapref.reference.branches import merged
from snapref.reference.cache import ReferenceCache
from snapref.sampling.guidance import Buffers
from snapref.sampling.passes import Pass, combine, is_open, plan
from snapref.sampling.settings import Settings


@dataclass(frozen=True)
class Chunk:
    """Rows of a step that go through the model together: those whose contexts have the same length."""

    rows: list[int]
    context: Tensor  # (rows, k, c)
    memory: list[list[KeyGroup]] | None  # per block


class Denoiser:
    """Called once per step. A context manager: on leaving it the base model's own weights are back.

    positive, negative: one context (1, k, c) per picture of the batch.
    caches: what is read: none, one for all pictures, or one per picture.
    regions: for each cache, per picture in it the target tokens that read it, bool (t,) or None for all.
    target: the target branch, on in every pass of a step in which a reference is active.
    """

    def __init__(
        self,
        model: AnimaDiT,
        positive: Sequence[Tensor],
        negative: Sequence[Tensor],
        settings: Settings,
        steps: int,
        caches: Sequence[ReferenceCache] = (),
        target: Branch | None = None,
        regions: Sequence[Sequence[Tensor | None]] | None = None,
    ):
        self.model, self.settings, self.steps = model, settings, steps
        self.contexts = {True: list(positive), False: list(negative)}
        self.batch = len(positive)
        regions = [(None,) * len(cache.groups) for cache in caches] if regions is None else regions
        self.readings = [*zip(caches, map(tuple, regions), strict=True)]
        # One key group for all rows that read the same: the first reading that is the same stands for all.
        first = [next(j for j, other in enumerate(self.readings) if same(one, other)) for one in self.readings]
        self.of_picture = first * (self.batch if len(first) == 1 else 1)
        self.target = target
        self.step = 0
        self.branches = 0  # evaluated so far: passes, whatever the batch
        self.passes: tuple[Pass, ...] = ()
        self.chunks: list[Chunk] = []
        self.buffers: Buffers = (None, None)
        self.merge: ExitStack | None = None
        self.latest: tuple[Tensor, float] | None = None

    def __enter__(self) -> "Denoiser":
        return self

    def __exit__(self, *exception) -> None:
        self.set_target(False)

    @torch.no_grad()
    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        """x: (b, c, f, h, w) → the guided denoised latent, the same shape."""
        reading = self.reading(self.step)
        self.set_target(reading)
        passes = plan(self.settings, reading)
        if passes != self.passes:  # the first step, or the window opens or closes
            self.passes, self.chunks, self.buffers = passes, self.prepare(passes), (None, None)
        self.latest = x, sigma
        guided, self.buffers = combine(self.answers(x, sigma), self.settings, self.buffers)
        self.step += 1
        self.branches += len(passes)
        return guided

    def reading(self, step: int) -> bool:
        """Whether the reference is active in this step."""
        return bool(self.readings) and is_open(self.settings, step, self.steps)

    def set_target(self, on: bool) -> None:
        """Puts the target branch into the weights, or the original weights back."""
        if on and self.merge is None and self.target is not None:
            self.merge = ExitStack()
            self.merge.enter_context(merged(self.model, self.target))
        elif not on and self.merge is not None:
            self.merge.close()
            self.merge = None

    def prepare(self, passes: Sequence[Pass]) -> list[Chunk]:
        """Returns the batch of a step: all pictures of the first pass, then all of the second, and so on."""
        contexts = [context for p in passes for context in self.contexts[p.positive]]
        reads = [(picture, p.reads) for p in passes for picture in range(self.batch)]
        chunks = []
        for length in sorted({context.shape[1] for context in contexts}):
            # A shorter context cannot be filled up to join the others: zero rows take part in attention.
            rows = [i for i, context in enumerate(contexts) if context.shape[1] == length]
            context = torch.cat([contexts[i] for i in rows])
            chunks.append(Chunk(rows, context, self.memory([reads[i] for i in rows])))
        return chunks

    def memory(self, reads: Sequence[tuple[int, float]]) -> list[list[KeyGroup]] | None:
        """Returns the key groups per block; None if no row reads. reads: per row (picture, weight)."""
        readers: dict[tuple[int, float], list[int]] = {}  # (reading, weight) -> rows
        for row, (picture, weight) in enumerate(reads):
            if weight > 0:
                readers.setdefault((self.of_picture[picture], weight), []).append(row)
        if not readers:
            return None
        parts = []
        for (number, weight), rows in readers.items():
            some = None if len(rows) == len(reads) else tuple(rows)
            cache, regions = self.readings[number]
            strength, blocks = self.settings.strength * weight, self.settings.block_weights
            parts.append(cache.memory(some, strength, blocks, regions))
        return [[group for groups in block for group in groups] for block in zip(*parts, strict=True)]

    def answers(self, x: Tensor, sigma: float) -> tuple[Tensor, ...]:
        """x: (b, c, f, h, w) → the denoised latent x - sigma * v of every pass, each shaped like x, fp32."""
        latents = x.repeat(len(self.passes), 1, 1, 1, 1)
        velocity = torch.empty_like(latents)
        for chunk in self.chunks:
            sigmas = torch.full((len(chunk.rows),), sigma, device=x.device)
            velocity[chunk.rows] = self.model(latents[chunk.rows], sigmas, chunk.context, memory=chunk.memory)
        return (latents - sigma * velocity).chunk(len(self.passes))

    def first_broken_block(self) -> int | None:
        """Runs the latest step once more; returns the first block whose output is not finite, if any is."""
        broken: list[int] = []

        def watch(index):
            def hook(module, inputs, output):
                if not torch.isfinite(output).all():
                    broken.append(index)
            return hook

        with ExitStack() as hooks, torch.no_grad():
            for i, block in enumerate(self.model.blocks):
                hooks.callback(block.register_forward_hook(watch(i)).remove)
            self.answers(*self.latest)
        return min(broken, default=None)


def same(one: tuple, other: tuple) -> bool:
    """Whether two readings are one cache, read by the same tokens."""
    return one[0] is other[0] and all(a is b for a, b in zip(one[1], other[1], strict=True))
