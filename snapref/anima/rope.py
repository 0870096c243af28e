"""Where a token sits: rotary position embedding, computed from any position, also a fractional one."""

import torch
from torch import Tensor

from snapref.config import DiTConfig

Place = tuple[float, float, float]  # (t, h, w) of a grid's first token, in patches


def axis_frequencies(config: DiTConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Turning speeds in radians per patch for the axes (t, h, w); together head_dim / 2 numbers, float64.

    f_i = theta^(-2i/d), theta = rope_theta · r^(d/(d-2)), r the axis' NTK ratio (specification section 2).
    """
    side = config.head_dim // 6 * 2
    widths = (config.head_dim - 2 * side, side, side)
    speeds = []
    for d, ratio in zip(widths, config.rope_scale, strict=True):
        theta = config.rope_theta * ratio ** (d / (d - 2))
        speeds.append(theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d))
    return tuple(speeds)


def rope_angles(
    config: DiTConfig, frames: int, height: int, width: int, place: Place = (0.0, 0.0, 0.0), device=None
) -> Tensor:
    """Angles of a grid of tokens: (t, d/2) fp32, tokens ordered frame, row, column.

    `height` and `width` count patches. The position of a token is `place` + its index; any real number is
    exact, for there is no table to fall off. Features are [time | row | column].
    """
    angles = []
    grid = (frames, height, width)
    for axis, speed in enumerate(axis_frequencies(config)):
        position = place[axis] + torch.arange(grid[axis], dtype=torch.float64)
        angle = torch.outer(position, speed).to(device, torch.float32)  # (positions, speeds of this axis)
        shape = [1, 1, 1, -1]
        shape[axis] = grid[axis]
        angles.append(angle.view(shape).expand(*grid, -1))
    return torch.cat(angles, dim=-1).flatten(0, 2)


def sequence_angles(length: int, head_dim: int, theta: float = 10_000.0, device=None) -> Tensor:
    """Angles of a plain sequence at positions 0, 1, 2, …: (length, head_dim/2) fp32."""
    speed = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    return torch.outer(torch.arange(length, dtype=torch.float64), speed).to(device, torch.float32)


def apply_rope(x: Tensor, angles: Tensor) -> Tensor:
    """x turned by its angles: feature i and feature i + d/2 are the two coordinates of one point.

    x: (b, n, t, d); angles: (t, d/2), or (b, 1, t, d/2) where rows differ. fp32 inside, x's dtype outside.
    """
    return rotate(x, *cos_sin(angles))


def cos_sin(angles: Tensor) -> tuple[Tensor, Tensor]:
    """What `rotate` needs: cosines, and sines with the first half negated. (…, d/2) → two of (…, d)."""
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(a, b) → (a cos − b sin, b cos + a sin) for the halves a and b of x's last axis.

    Contiguous where no backward pass forbids it, whatever x is: attention reads that faster.
    """
    wide = x.float()
    swapped = wide.roll(x.shape[-1] // 2, dims=-1)  # (b, a)
    turned = wide * cos
    if turned.requires_grad:
        return turned.addcmul_(swapped, sin).to(x.dtype)
    return torch.addcmul(turned, swapped, sin, out=swapped).to(x.dtype)
