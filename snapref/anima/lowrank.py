"""A low-rank addition to a linear layer, computed beside it and never inside its weight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class LowRank:
    """delta(x) = scale · (x aᵀ) bᵀ (LoRA, arXiv 2106.09685)."""

    a: Tensor  # (rank, in)
    b: Tensor  # (out, rank)
    scale: float = 1.0


# One mapping per block: "self_attn.q_proj" -> LowRank. A module that is not named is left as it is.
Branch = Sequence[Mapping[str, LowRank]]


def project(linear: nn.Linear, x: Tensor, low_rank: LowRank | None = None) -> Tensor:
    """linear(x), plus the low-rank addition if there is one. x: (…, in) → (…, out), in x's dtype."""
    y = linear(x)
    if low_rank is None:
        return y
    inner = F.linear(x, low_rank.a.to(x.dtype))
    return torch.add(y, F.linear(inner, low_rank.b.to(x.dtype)), alpha=low_rank.scale)
