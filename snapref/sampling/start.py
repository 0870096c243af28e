"""Where a run starts: its prompts, its sigmas, its noise, and the picture to start from."""

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from snapref.reference.picture import load_picture, to_pixels
from snapref.sampling.schedule import sigmas
from snapref.sampling.settings import Settings, SettingsError


def paired(
    prompt: str | Sequence[str], negative: str | Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns (prompts, negatives) of equal length. Raises SettingsError."""
    prompts = (prompt,) if isinstance(prompt, str) else tuple(prompt)
    negatives = (negative,) * len(prompts) if isinstance(negative, str) else tuple(negative)
    if not prompts:
        raise SettingsError("prompt is an empty list; give at least one prompt, which may be an empty text")
    if len(negatives) != len(prompts):
        raise SettingsError(f"{len(negatives)} negatives for {len(prompts)} prompts; give one, or one each")
    return prompts, negatives


def run_levels(settings: Settings, shift: float, has_image: bool) -> Tensor:
    """Returns the run's sigmas. Raises SettingsError where denoise and image contradict each other."""
    if has_image != (settings.denoise != 1):
        what = "ignores the image: set it below 1" if has_image else "needs an image to start from"
        raise SettingsError(f"denoise is {settings.denoise}; it {what}")
    return sigmas(settings.schedule, settings.steps, shift, settings.denoise)


def start_noise(shape: tuple[int, ...], settings: Settings, given: Tensor | None = None) -> Tensor:
    """Returns the noise of a run, fp32: the seed's, or the one that is given. Raises SettingsError.

    shape: (b, 16, 1, h, w); the whole batch is drawn in one call.
    """
    if given is None:
        if settings.noise_device == "cuda" and not torch.cuda.is_available():
            raise SettingsError("noise_device is 'cuda', but there is no GPU here; give 'cpu'")
        generator = torch.Generator(settings.noise_device).manual_seed(settings.seed)
        return torch.randn(shape, generator=generator, device=settings.noise_device)
    if not isinstance(given, Tensor) or given.shape != shape:
        found = tuple(given.shape) if hasattr(given, "shape") else ""
        raise SettingsError(f"noise is a {type(given).__name__} {found}; this run needs a tensor {shape}")
    return finite("noise", given.float())


def finite(name: str, given: Tensor) -> Tensor:
    """The tensor itself. Raises SettingsError for one with NaN or infinite numbers."""
    if broken := int((~given.isfinite()).sum()):
        raise SettingsError(f"{name} has {broken:,} numbers that are not finite; give one without")
    return given


def own_levels(given) -> Tensor:
    """Returns the sigmas that were given instead of a schedule's: (steps + 1,). Raises SettingsError."""
    try:
        levels = torch.as_tensor(given, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        raise SettingsError(f"levels is a {type(given).__name__}; give sigmas, one more than steps") from None
    if levels.ndim != 1 or len(levels) < 2:
        raise SettingsError(f"levels has shape {tuple(levels.shape)}; give sigmas (steps + 1,), at least two")
    finite("levels", levels)
    if not (levels[:-1] > levels[1:]).all() or levels[-1] < 0 or levels[0] > 1:
        raise SettingsError(f"levels go from {levels[0]:g} to {levels[-1]:g}; they must fall at every step, in 1..0")
    return levels


def is_latent(image) -> bool:
    return isinstance(image, Tensor) and image.dim() == 5


def start_pixels(image, settings: Settings, step: int) -> Tensor:
    """Returns the pixels (1, 3, h, w) of a picture to start from, at the run's size. Raises PictureError."""
    resized = load_picture(image).resize(settings.size[::-1], Image.Resampling.LANCZOS)
    return to_pixels(resized, step)


def noised(latent: Tensor | None, noise: Tensor, sigma: float) -> Tensor:
    """Returns sigma · noise + (1 - sigma) · picture, like noise: (b, 16, 1, h, w).

    latent: None, or (b or 1, 16, 1, h, w). Raises SettingsError for one of another shape.
    """
    if latent is None:
        return sigma * noise
    if latent.shape[1:] != noise.shape[1:] or latent.shape[0] not in (1, len(noise)):
        raise SettingsError(f"image is a latent {tuple(latent.shape)}; this run needs {tuple(noise.shape)}")
    finite("image", latent)
    return sigma * noise + (1 - sigma) * latent.to(noise.device, torch.float32)
