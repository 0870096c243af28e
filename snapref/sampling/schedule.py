"""Sigma schedules: how much noise is left before every step. Specification section 5.

A sigma is the share of noise in the latent: x = sigma * noise + (1 - sigma) * picture.
"""

import numpy as np
import torch
from torch import Tensor

SCHEDULES = ("simple", "normal", "beta")
TABLE_SIZE = 1000  # training steps of the flow model


def shifted(u, shift: float = 3.0):
    """Returns shift * u / (1 + (shift - 1) * u): pushes sigmas towards noise, where the layout is decided."""
    return shift * u / (1 + (shift - 1) * u)


def sigma_table(shift: float = 3.0) -> Tensor:
    """Returns the 1000 sigmas the model was trained on, rising, (1000,) fp32."""
    return shifted(torch.arange(1, TABLE_SIZE + 1, dtype=torch.float32) / TABLE_SIZE, shift)


def sigmas(name: str, steps: int, shift: float = 3.0, denoise: float = 1.0) -> Tensor:
    """Returns the falling sigmas of a run, (steps + 1,) fp32, the last one 0.

    `denoise` < 1 keeps the last `steps` steps of a longer schedule, int(steps / denoise), so the run
    starts from a picture that is only partly noised. `beta` may return fewer: equal neighbours are dropped.
    Raises ValueError for an unknown name or a number out of range.
    """
    if name not in SCHEDULES:
        raise ValueError(f"schedule is {name!r}; it must be one of {', '.join(SCHEDULES)}")
    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be at least 1")
    if not 0 < denoise <= 1:
        raise ValueError(f"denoise is {denoise}; it must be above 0 and at most 1")
    make = {"simple": _simple, "normal": _normal, "beta": _beta}[name]
    return make(int(steps / denoise), shift)[-(steps + 1):]


def _simple(steps: int, shift: float) -> Tensor:
    table = sigma_table(shift)
    stride = TABLE_SIZE / steps
    picked = [table[-(1 + int(i * stride))] for i in range(steps)]
    return torch.stack([*picked, torch.tensor(0.0)])


def _normal(steps: int, shift: float) -> Tensor:
    """Even steps between the table's ends, whose sigmas are taken for times: the low end is shifted twice."""
    table = sigma_table(shift)
    even = torch.linspace(table[-1].item(), table[0].item(), steps)
    return torch.cat([shifted(even, shift), torch.zeros(1)])


def _beta(steps: int, shift: float, shape: float = 0.6) -> Tensor:
    """Quantiles of Beta(0.6, 0.6): denser at both ends of the run."""
    table = sigma_table(shift)
    levels = 1 - np.linspace(0, 1, steps, endpoint=False)
    indices = np.rint(beta_quantile(levels, shape) * (TABLE_SIZE - 1)).astype(int)
    falling = list(dict.fromkeys(indices.tolist()))  # neighbours that round to one index are one step
    return torch.cat([table[falling], torch.zeros(1)])


def beta_quantile(level: np.ndarray, shape: float) -> np.ndarray:
    """Returns x with P(X <= x) = level for X ~ Beta(shape, shape), float64.

    The density is symmetric about 1/2, so only x <= 1/2 is solved for. There the power series
    B_x(a, a) = x^a * sum_n (1 - a)_n / n! * x^n / (a + n) (DLMF 8.17.7) gains a bit per term.
    """
    terms = 60
    coefficients = np.cumprod([1.0, *((n - shape) / n for n in range(1, terms))]) / (shape + np.arange(terms))

    def incomplete_beta(x):
        return x**shape * np.polynomial.polynomial.polyval(x, coefficients)

    lower = np.minimum(level, 1 - level)  # probability of the nearer tail
    target = lower * 2 * incomplete_beta(0.5)
    low, high = np.zeros_like(target), np.full_like(target, 0.5)
    for _ in range(60):
        middle = (low + high) / 2
        below = incomplete_beta(middle) <= target  # "<=": level 1/2 gives exactly 1/2
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(level <= 0.5, high, 1 - high)
