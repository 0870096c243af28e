"""Other roads for a reference, behind one call, so that they can be drawn and timed side by side."""

from collections.abc import Sequence
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

from snapref.rivals.extra_frame import ExtraFrame, letterboxed
from snapref.rivals.offset_frame import OffsetFrame, read_at
from snapref.rivals.reencode import Reencode
from snapref.sampling.guidance import cfg
from snapref.sampling.pipeline import Pipeline
from snapref.sampling.samplers import sample
from snapref.sampling.settings import Settings

__all__ = ["ExtraFrame", "OffsetFrame", "Reencode", "Route", "draw", "letterboxed", "read_at"]


class Route(Protocol):
    """A road for a reference: a model call that reads it, or does not."""

    def velocity(self, noisy: Tensor, sigma: Tensor, context: Tensor, reads: bool = True) -> Tensor:
        """Velocity (b, 16, 1, h, w) of the target. noisy: its shape; sigma: (b,); context: (b, k, c).

        reads: False for the pass of guidance that is not to see the reference.
        """


@torch.no_grad()
def draw(
    pipe: Pipeline, route: Route, prompts: Sequence[str], negative: str = "", **settings
) -> list[Image.Image]:
    """One picture per prompt, drawn as `pipe` draws: same noise, schedule, sampler and guidance.

    Only the positive branch reads, as by default. settings: fields of `Settings` for the run and the
    guidance scale. Raises SettingsError.
    """
    chosen = Settings(**settings).resolved(pipe.config)
    levels = pipe.levels(chosen, None)
    context = torch.cat(pipe.contexts(prompts))
    empty = torch.cat(pipe.contexts([negative] * len(prompts)))

    def denoise(x: Tensor, sigma: float) -> Tensor:
        level = torch.full((len(x),), sigma, device=x.device)
        positive = x - sigma * route.velocity(x, level, context)
        if chosen.guidance == 1:
            return positive
        return cfg(positive, x - sigma * route.velocity(x, level, empty, reads=False), chosen.guidance)

    x = pipe.start(len(prompts), chosen, float(levels[0]))
    return pipe.decode(sample(denoise, x, levels, chosen.sampler, seed=chosen.seed))
