"""Roads by which a reference can reach the picture being made, behind one call, to be compared.

    ExtraFrame     a clean second frame of a clip; it goes through the model at every step
    OffsetFrame    a place of its own, read once and remembered: this project's road
    Reencode       the same place, read anew at every step

`draw` samples pictures by any of them. None leaves a trace in the model.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

from snapref.rivals.extra_frame import ExtraFrame, letterboxed
from snapref.rivals.offset_frame import OffsetFrame, read_at
from snapref.rivals.reencode import Reencode
from snapref.sampling.passes import combine
from snapref.sampling.pipeline import Pipeline
from snapref.sampling.samplers import sample
from snapref.sampling.settings import Settings

__all__ = ["ExtraFrame", "OffsetFrame", "Reencode", "Route", "draw", "letterboxed", "read_at"]


class Route(Protocol):
    """A road for a reference: a model call that reads it, or does not."""

    def velocity(self, noisy: Tensor, sigma: Tensor, context: Tensor, reads: bool = True) -> Tensor:
        """Velocity of the target, shaped like `noisy`.

        noisy: (b, 16, 1, h, w); sigma: (b,); context: (b, k, c). reads: False for the pass of guidance that
        is not to see the reference.
        """


@torch.no_grad()
def draw(
    pipe: Pipeline, route: Route, prompts: Sequence[str], negative: str = "", **settings
) -> list[Image.Image]:
    """One picture per prompt, drawn as `pipe` draws: same noise, schedule, sampler and guidance.

    Only the positive branch reads, as by default, whatever `settings` (fields of `Settings`) say on reading.
    Raises SettingsError.
    """
    chosen = Settings(**settings).resolved(pipe.config)
    levels = pipe.levels(chosen, None)
    positive = torch.cat(pipe.contexts(prompts))
    empty = torch.cat(pipe.contexts([negative] * len(prompts)))
    buffers = (None, None)

    def denoise(x: Tensor, sigma: float) -> Tensor:
        nonlocal buffers
        level = torch.full((len(x),), sigma, device=x.device)
        answers = [x - sigma * route.velocity(x, level, positive)]
        if chosen.guidance != 1:
            answers.append(x - sigma * route.velocity(x, level, empty, reads=False))
        guided, buffers = combine(tuple(answers), chosen, buffers)
        return guided

    x = pipe.start(len(prompts), chosen, float(levels[0]))
    return pipe.decode(sample(denoise, x, levels, chosen.sampler, seed=chosen.seed))
