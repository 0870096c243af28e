"""Flow matching: which sigma, the noised latent, and the loss (specification section 5)."""

import torch
from torch import Tensor


def draw_sigmas(count: int, shift: float, generator: torch.Generator, spread: float = 1.0) -> Tensor:
    """(count,) sigmas in (0, 1): logit-normal, stratified over the batch, moved toward noise by `shift`.

    Stratified (one draw per quantile) because a batch then always covers all noise levels, which takes variance
    out of the gradient for nothing. Shift s maps u to s*u / (1 + (s-1)*u), as the sampler's schedule does.
    """
    strata = (torch.arange(count) + torch.rand(count, generator=generator)) / count
    strata = strata[torch.randperm(count, generator=generator)].clamp(1e-4, 1 - 1e-4)
    u = torch.sigmoid(spread * torch.special.ndtri(strata))
    return shift * u / (1 + (shift - 1) * u)


def add_noise(clean: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """x_sigma = sigma * noise + (1 - sigma) * x0, for latents (b, c, f, h, w) and sigma (b,) or per frame (b, f)."""
    s = per_frame(sigma)
    return s * noise + (1 - s) * clean


def per_frame(sigma: Tensor) -> Tensor:
    """sigma (b,) or (b, f) shaped to multiply latents (b, c, f, h, w)."""
    return sigma[:, None, None, None, None] if sigma.ndim == 1 else sigma[:, None, :, None, None]


def velocity_loss(velocity: Tensor, clean: Tensor, noise: Tensor, learn: Tensor | None = None) -> Tensor:
    """Mean squared error per sample (b,) of the velocity noise - x0, over the frames marked in `learn` (b, f)."""
    error = (velocity - (noise - clean)).square().mean(dim=(1, 3, 4))  # (b, f)
    if learn is None:
        return error.mean(1)
    return (error * learn).sum(1) / learn.sum(1)
