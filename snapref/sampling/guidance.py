"""Guidance: how the answers of several branches become one. All of it on denoised latents (x0).

Names: `positive` is the prompt with the reference, `negative` the negative prompt with the reference,
`unread` the negative prompt without it. Latents are (b, c, f, h, w); norms and spreads are taken per sample
over all other dimensions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

Buffers = tuple[Tensor | None, ...]  # a running difference per guided one; None before the first step


def cfg(positive: Tensor, negative: Tensor, scale: float) -> Tensor:
    """Returns negative + scale * (positive - negative) (Ho & Salimans 2022, arXiv 2207.12598)."""
    return negative + scale * (positive - negative)


def two_scale(
    positive: Tensor, negative: Tensor, unread: Tensor, scale: float, reference_scale: float
) -> Tensor:
    """Returns unread + r * (negative - unread) + s * (positive - negative).

    InstructPix2Pix (arXiv 2211.09800), with s = scale and r = reference_scale.
    r = 1 is the reference in both branches; r = s is the reference in the positive branch only.
    """
    return unread + reference_scale * (negative - unread) + scale * (positive - negative)


@dataclass(frozen=True)
class Projection:
    """The settings of adaptive projected guidance (Sadat et al. 2024, arXiv 2410.02416)."""

    eta: float = 1.0  # share kept of what only makes the picture stronger (contrast, saturation)
    momentum: float = 0.0  # share of the running difference that is added; the paper takes a negative one
    threshold: float = 0.0  # largest L2 norm of the difference; 0 sets no limit

    @property
    def plain(self) -> bool:
        return self.eta == 1 and self.momentum == 0 and self.threshold == 0

    def __call__(self, difference: Tensor, towards: Tensor, running: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns (projected difference, running difference for the next step), both like `difference`."""
        if running is not None:
            difference = difference + self.momentum * running
        running = difference
        if self.threshold > 0:
            norm = torch.linalg.vector_norm(difference, dim=_rest(difference), keepdim=True)
            difference = difference * (self.threshold / norm).clamp(max=1)
        parallel, orthogonal = split(difference, towards)
        return orthogonal + self.eta * parallel, running


def split(difference: Tensor, towards: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the parts of `difference` parallel and orthogonal to `towards`, per sample."""
    rest = _rest(towards)
    length = (towards * towards).sum(rest, keepdim=True)
    parallel = (difference * towards).sum(rest, keepdim=True) / length * towards
    return parallel, difference - parallel


def apg(
    positive: Tensor, negative: Tensor, scale: float, projection: Projection, buffers: Buffers = (None,)
) -> tuple[Tensor, Buffers]:
    """Returns (positive + (scale - 1) * P(positive - negative), buffers of the next step)."""
    step, running = projection(positive - negative, positive, buffers[0])
    return positive + (scale - 1) * step, (running,)


def apg_two_scale(
    positive: Tensor,
    negative: Tensor,
    unread: Tensor,
    scale: float,
    reference_scale: float,
    projection: Projection,
    buffers: Buffers = (None, None),
) -> tuple[Tensor, Buffers]:
    """Returns (positive + (s - 1) * P(positive - negative) + (r - 1) * P(negative - unread), buffers).

    Without projection this is `two_scale`: positive stands for v(neg, none) plus the two differences.
    """
    prompt_step, prompt_running = projection(positive - negative, positive, buffers[0])
    reference_step, reference_running = projection(negative - unread, positive, buffers[1])
    guided = positive + (scale - 1) * prompt_step + (reference_scale - 1) * reference_step
    return guided, (prompt_running, reference_running)


def rescale(guided: Tensor, positive: Tensor, share: float) -> Tensor:
    """Returns share * guided * std(positive) / std(guided) + (1 - share) * guided (arXiv 2305.08891, 3.4)."""
    rest = _rest(guided)
    ratio = positive.std(rest, keepdim=True) / guided.std(rest, keepdim=True)
    return guided * (share * ratio + (1 - share))


def _rest(x: Tensor) -> tuple[int, ...]:
    return tuple(range(1, x.dim()))
