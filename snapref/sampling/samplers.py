"""From noise to latent: euler, er_sde and euler_ancestral. Specification section 5.

A sampler asks the model for the denoised latent D at each sigma and moves towards it. One step goes from
sigma `s` to the next sigma `t`; alpha = 1 - sigma is the picture's share of the latent.
"""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from snapref.sampling.schedule import shifted

SAMPLERS = ("euler", "er_sde", "euler_ancestral")

Denoise = Callable[[Tensor, float], Tensor]  # (latent, sigma) -> denoised latent
Noise = Callable[[], Tensor]  # a fresh standard normal latent


class Cancelled(Exception):
    """The callback asked to stop."""


class NonFiniteLatent(ArithmeticError):
    """The model returned NaN or infinity: at which step (from 0), and in which block if that is known."""

    def __init__(self, step: int, steps: int, sigma: float, block: int | None = None):
        self.step, self.steps, self.sigma, self.block = step, steps, sigma, block
        where = "" if block is None else f", first in block {block}"
        super().__init__(
            f"step {step + 1} of {steps} (sigma {sigma:.4f}) gave a latent that is not finite{where}; "
            "use bf16 or fp32 instead of fp16, or less guidance"
        )

    def at(self, block: int | None) -> "NonFiniteLatent":
        """Returns the same error with the block named."""
        return NonFiniteLatent(self.step, self.steps, self.sigma, block)


def sample(
    denoise: Denoise,
    x: Tensor,
    sigmas: Tensor,
    sampler: str = "euler",
    *,
    seed: int = 0,
    noise: Iterable[Tensor] | None = None,
    noise_device: str = "cpu",
    s_noise: float = 1.0,
    callback: Callable[[int, float, Tensor, Tensor], bool | None] | None = None,
) -> Tensor:
    """Returns the latent after all steps, shaped like x: (b, c, f, h, w) or any other shape.

    x: the latent at sigmas[0]. sigmas: (steps + 1,), falling. `noise` gives the fresh noise of the steps that
    need one, in order; without it, it comes from `seed` (see `step_noise`) and is scaled by `s_noise`.
    callback(step, sigma, x, denoised) is called after each model call, with x before the step is taken;
    it stops the run by returning False or raising Cancelled.
    Raises ValueError (unknown sampler), Cancelled, NonFiniteLatent.
    """
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler is {sampler!r}; it must be one of {', '.join(SAMPLERS)}")
    levels = [float(s) for s in sigmas]
    if sampler == "er_sde" and levels[0] >= 1:
        levels[0] = shifted(0.9999)  # at sigma 1 the ratio sigma / alpha would be infinite
    draw = iter(noise).__next__ if noise is not None else step_noise(x, seed, noise_device)
    take = {"euler": euler, "er_sde": ErSde(), "euler_ancestral": euler_ancestral}[sampler]

    steps = len(levels) - 1
    for i, (s, t) in enumerate(pairwise(levels)):
        denoised = denoise(x, s)
        if not torch.isfinite(denoised).all():
            raise NonFiniteLatent(i, steps, s)
        if callback is not None and callback(i, s, x, denoised) is False:
            raise Cancelled(f"stopped at step {i + 1} of {steps}")
        x = denoised if t == 0 else take(x, denoised, s, t, lambda: s_noise * draw())
    return x


def step_noise(x: Tensor, seed: int, device: str = "cpu") -> Noise:
    """Returns a function giving noise like x, from a CPU generator seeded with seed + 1.

    Plus one, so that the first of them is not the noise the run started from (ComfyUI's rule on the CPU).
    On another `device` ComfyUI uses that device's generator and the seed itself.
    """
    generator = torch.Generator(device).manual_seed(seed + 1 if device == "cpu" else seed)
    return lambda: torch.randn(x.shape, dtype=x.dtype, device=device, generator=generator).to(x.device)


def euler(x: Tensor, denoised: Tensor, s: float, t: float, noise: Noise) -> Tensor:
    """A straight line: keeps t / s of the distance to the denoised latent."""
    return x + (x - denoised) / s * (t - s)


def euler_ancestral(x: Tensor, denoised: Tensor, s: float, t: float, noise: Noise) -> Tensor:
    """Euler past the next sigma, down to t² / s, then noise back up to t (the form for flow models)."""
    down = t * t / s
    x = denoised + (x - denoised) * (down / s)
    shrink = (1 - t) / (1 - down)  # brings the picture's share from 1 - down to 1 - t
    missing = math.sqrt(max(t**2 - (down * shrink) ** 2, 0.0))
    return shrink * x + missing * noise()


class ErSde:
    """Extended reverse-time SDE solver of third order, VP-ER-SDE-3 (Cui et al. 2023, arXiv 2309.06169).

    Works on the ratio l = sigma / alpha, where x / alpha = picture + l * noise. The denoised latent is
    expanded in l to second order from the two steps before; psi says how much of the noise is renewed.
    """

    POINTS = 200  # of the Riemann sums

    def __init__(self):
        self.past: list[tuple[float, Tensor, Tensor | None]] = []  # (l, denoised, slope), last two steps

    def __call__(self, x: Tensor, denoised: Tensor, s: float, t: float, noise: Noise) -> Tensor:
        alpha_s, alpha_t = 1 - s, 1 - t
        l_s, l_t = s / alpha_s, t / alpha_t
        r = psi(l_t) / psi(l_s)
        x = (alpha_t / alpha_s) * r * x + alpha_t * (1 - r) * denoised

        slope = None
        if self.past:
            change = l_t - l_s  # negative
            h = -change / self.POINTS
            points = l_t + h * np.arange(self.POINTS)
            l_1, denoised_1, slope_1 = self.past[-1]
            slope = (denoised - denoised_1) / (l_s - l_1)
            area = h * float(np.sum(1 / psi(points)))
            x = x + alpha_t * (change + area * psi(l_t)) * slope
            if slope_1 is not None:
                l_2 = self.past[-2][0]
                curve = (slope - slope_1) / ((l_s - l_2) / 2)
                area = h * float(np.sum((points - l_s) / psi(points)))
                x = x + alpha_t * (change**2 / 2 + area * psi(l_t)) * curve
        self.past = [*self.past[-1:], (l_s, denoised, slope)]

        missing = math.sqrt(max(l_t**2 - (l_s * r) ** 2, 0.0))
        return x + alpha_t * missing * noise()


def psi(ratio):
    """Returns l * (exp(l^0.3) + 10), noise scale number 5 of the paper; a float or an array."""
    return ratio * (np.exp(ratio**0.3) + 10)
