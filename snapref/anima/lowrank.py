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
    if low_rank is None:
        return linear(x)
    # Here, not at the end: what is added to in place must be no view, or its gradient is copied.
    rows = x.reshape(-1, x.shape[-1])
    small = delta(rows, low_rank)
    if type(linear) is nn.Linear and linear.bias is None:
        # Another pass over a tensor of this size would cost as much as the rank does.
        y = small.addmm_(rows.to(small), linear.weight.to(small).T)
    else:
        y = linear(rows).add_(small)
    return y.view(*x.shape[:-1], y.shape[-1])


def delta(x: Tensor, low_rank: LowRank) -> Tensor:
    """scale · (x aᵀ) bᵀ. x: (…, in) → (…, out)."""
    inner = F.linear(x, low_rank.a.to(x))  # its dtype, and its device: a block may have moved there alone
    if low_rank.scale != 1:
        inner = inner * low_rank.scale
    return F.linear(inner, low_rank.b.to(x))


@torch.no_grad()
def added(weight: Tensor, low_rank: LowRank, dtype: torch.dtype | None = None) -> Tensor:
    """weight + scale · B A, (out, in), summed in fp32, in `dtype` (None: the weight's) and on its device."""
    a, b = (matrix.to(weight.device, torch.float32) for matrix in (low_rank.a, low_rank.b))
    return torch.addmm(weight.float(), b, a, alpha=low_rank.scale).to(dtype or weight.dtype)
