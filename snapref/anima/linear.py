"""A linear layer whose weight stays in eight bits and is widened for each call.

    linear = Float8Linear(...)                # what `files.loader` builds where a file's weight is fp8
    effective_weight(linear)                  # (out, in) fp32: what any linear multiplies by, quantised or not
    carry(linear, low_rank)                   # adds a branch: into the weight, or beside it where it is fp8

These two functions are the seam: whoever adds to weights (LoRAs, the target branch) needs to know no more.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snapref.anima.lowrank import LowRank, added, delta

# e4m3 is what Anima's fp8 files hold; e5m2 files exist for other models and widen in the same way.
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class Float8Linear(nn.Linear):
    """W = weight · weight_scale, in the input's dtype, made anew in every call and then thrown away.

    weight: (out, in) fp8. weight_scale: fp32, (1, 1), (out, 1) or (out, k, 1) for k equal pieces of a row.
    Both keep their dtypes when the module is cast: they are a file's numbers, not a precision to compute in.
    A weight of another dtype that is put in their place is taken as it is, without the scale.
    `beside` are low-rank additions that its output gets: a sum rounded to eight bits again would lose them.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool, dtype: torch.dtype, scale: tuple[int, ...] | None):
        super().__init__(inputs, outputs, bias=bias, device="meta")
        empty = torch.empty(outputs, inputs, dtype=dtype, device="meta")
        self.weight = nn.Parameter(empty, requires_grad=False)
        self.register_buffer("weight_scale", None if scale is None else torch.empty(scale, device="meta"))
        self.beside: tuple[LowRank, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, in) → (…, out), in x's dtype."""
        y = F.linear(x, self.widened(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
        for low_rank in self.beside:
            y.add_(delta(x, low_rank))
        return y

    def widened(self, dtype: torch.dtype) -> Tensor:
        """What the layer multiplies by, (out, in), without what is beside it."""
        wide = self.weight.to(dtype)  # every fp8 number is exact in fp16 and in bf16
        if self.weight.dtype not in FLOAT8 or self.weight_scale is None:
            return wide
        scale = self.weight_scale
        # In place with an fp32 factor of at least one axis: multiplied in fp32, rounded once.
        pieces = wide if scale.ndim == 2 else wide.view(len(wide), scale.shape[1], -1)
        return pieces.mul_(scale).view_as(wide)

    def _apply(self, fn, recurse=True):
        def keeping_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            kept = tensor.dtype in FLOAT8 or tensor is self.weight_scale
            return tensor.to(moved.device) if kept and moved.dtype != tensor.dtype else moved

        return super()._apply(keeping_dtype, recurse)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {str(self.weight.dtype).removeprefix('torch.')}"


def is_float8(linear: nn.Linear) -> bool:
    """Whether the weight is fp8 now: one that a sum has replaced is not, nor is an ordinary linear's."""
    return linear.weight.dtype in FLOAT8


@torch.no_grad()
def effective_weight(linear: nn.Linear, dtype: torch.dtype = torch.float32) -> Tensor:
    """The matrix that a linear multiplies by, (out, in): its weight, times its scale where it is fp8.

    In fp32 unless another dtype is asked for; the linear's own tensor where that needs no change.
    """
    return linear.widened(dtype) if isinstance(linear, Float8Linear) else linear.weight.to(dtype)


def carry(linear: nn.Linear, low_rank: LowRank):
    """Adds scale · B A to a linear and returns a function without arguments that takes it off again.

    Into the weight, summed in fp32 and rounded once: costs nothing per call. Beside it where the weight is
    fp8: costs two small products per call, and neither memory nor exactness. What was there is put back as
    the very same object.
    """
    if is_float8(linear):
        before = linear.beside
        linear.beside = (*before, low_rank)
        return lambda: setattr(linear, "beside", before)
    weight = linear.weight
    linear.weight = nn.Parameter(added(weight, low_rank), requires_grad=False)
    return lambda: setattr(linear, "weight", weight)
