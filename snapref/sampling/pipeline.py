"""Prompt and reference in, picture out: the parts of a model behind one call."""

import time
from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch import Tensor
from tqdm.auto import tqdm

from snapref.anima.model import AnimaDiT
from snapref.anima.text import TextEncoder
from snapref.config import ModelConfig
from snapref.reference.branches import Adapter
from snapref.reference.cache import CacheError, ReferenceCache
from snapref.reference.encode import encode_reference
from snapref.reference.fingerprint import hash_module
from snapref.reference.picture import load_picture, to_pixels, visible_tokens
from snapref.sampling.denoiser import Denoiser
from snapref.sampling.passes import warn_of_ignored
from snapref.sampling.result import Result
from snapref.sampling.samplers import NonFiniteLatent, sample
from snapref.sampling.schedule import sigmas
from snapref.sampling.settings import Settings, SettingsError

Callback = Callable[[int, float, Tensor, Tensor], bool | None]


class Pipeline:
    """A model ready to draw. Nothing in it changes from run to run; a reference is a value that it returns.

    codec: anything with encode, decode and factor (`anima.vae`, `anima.codec`). adapter: None draws without
    references only. The parts stay on the devices they are on.
    """

    def __init__(
        self, model: AnimaDiT, text: TextEncoder, codec, config: ModelConfig, adapter: Adapter | None = None
    ):
        self.model, self.text, self.codec, self.config, self.adapter = model, text, codec, config, adapter

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def __call__(
        self,
        prompt: str | Sequence[str],
        reference=None,
        negative: str | Sequence[str] = "",
        settings: Settings | None = None,
        *,
        references: Sequence | None = None,
        image=None,
        noise: Tensor | None = None,
        levels: Tensor | None = None,
        callback: Callback | None = None,
        quiet: bool = False,
        **changes,
    ) -> Result:
        """Returns one picture per prompt.

        reference: None, a picture (path, PIL, array), a list of pictures of one character, or a cache.
        references: instead of it, one of these per prompt.
        negative: one for all, or one per prompt.
        settings, changes: `changes` are fields of Settings, put on top of `settings`.
        image: with denoise < 1, what the run starts from: a picture, or latents (b or 1, 16, 1, h, w).
        noise: starting noise (b, 16, 1, h, w) instead of the seed's.
        levels: sigmas (steps + 1,) instead of a schedule's.
        callback(step, sigma, latent, denoised): called at every step; returning False raises Cancelled.
        quiet: no progress bar.
        Raises SettingsError, PictureError, CacheError before the first step; Cancelled and NonFiniteLatent in
        the run. Whatever happens, the base model's weights are its own again afterwards.
        """
        begun = time.perf_counter()
        settings = (settings or Settings()).replace(**changes)
        if image is not None and settings.size is None:
            settings = settings.replace(size=self.size_of(image))
        settings = settings.resolved(self.config)
        prompts, negatives = paired(prompt, negative)
        warn_of_ignored(settings)
        if levels is None:
            levels = self.levels(settings, image)
        x = self.start(len(prompts), settings, float(levels[0]), image, noise)
        caches = self.read(reference, references, len(prompts), settings)
        modes = {picture.mode for cache in caches for picture in cache.fingerprint.pictures}
        if len(modes) == 1:
            settings = settings.replace(mode=modes.pop() or None)  # a default may change, what was read not

        steps = len(levels) - 1
        denoiser = Denoiser(
            self.model,
            self.contexts(prompts),
            self.contexts(negatives),
            settings,
            steps,
            caches,
            self.adapter.target if caches else None,
        )
        with denoiser, tqdm(total=steps, disable=quiet, desc="drawing", unit="step") as bar:

            def report(step: int, sigma: float, latent: Tensor, denoised: Tensor) -> bool | None:
                bar.update()
                return callback(step, sigma, latent, denoised) if callback else None

            try:
                latents = sample(
                    denoiser,
                    x,
                    levels,
                    settings.sampler,
                    seed=settings.seed,
                    s_noise=settings.s_noise,
                    noise_device=settings.noise_device,
                    callback=report,
                )
            except NonFiniteLatent as error:
                raise error.at(denoiser.first_broken_block()) from None
        return Result(
            self.decode(latents),
            latents,
            settings,
            prompts,
            negatives,
            self.config.name,
            caches,
            denoiser.branches,
            time.perf_counter() - begun,
        )

    def encode(
        self,
        reference,
        mode: str | None = None,
        ref_caption: str | None = None,
        ref_megapixels: float | None = None,
        weights: Sequence[float] | None = None,
    ) -> ReferenceCache:
        """Returns the value to give to any number of runs, of any size and prompt.

        reference: a picture, or a list of pictures of one character. mode: a caption's name, None for the
        adapter's default; ref_caption overrides it. weights: how strongly each picture is read (None: 1).
        Parts of a picture that are fully transparent are left out. Raises SettingsError, PictureError,
        CacheError.
        """
        self.check_adapter()
        area = self.config.default_ref_megapixels if ref_megapixels is None else ref_megapixels
        settings = Settings(mode=mode, ref_caption=ref_caption, ref_megapixels=area)
        mode, caption = self.caption(settings)
        sources = reference if isinstance(reference, (list, tuple)) else [reference]
        pictures = [load_picture(source) for source in sources]
        step = self.config.size_step
        pixels = [to_pixels(picture, step, settings.ref_megapixels) for picture in pictures]
        return encode_reference(
            self.model,
            self.adapter,
            [self.to_latent(p) for p in pixels],
            self.contexts([caption])[0],
            weights=weights,
            keep=[visible_tokens(picture, step, settings.ref_megapixels) for picture in pictures],
            pixels=pixels,
            mode=mode,
            caption=caption,
        )

    def caption(self, settings: Settings) -> tuple[str, str]:
        """Returns (mode, the caption that the reference branch hears). Raises SettingsError."""
        if settings.ref_caption is not None:
            return settings.mode or "", settings.ref_caption
        known = self.adapter.config
        mode = settings.mode or known.default_mode
        if mode not in known.captions:
            raise SettingsError(f"mode is {mode!r}; the adapter {known.name} has {', '.join(known.captions)}")
        return mode, known.captions[mode]

    def read(self, reference, references, batch: int, settings: Settings) -> tuple[ReferenceCache, ...]:
        """Returns what a run reads: none, one cache for all pictures, or one per picture.

        Nothing is read without a reference, at strength 0, and where all weights are 0: then the run is the
        base model's, to the bit.
        """
        if reference is not None and references is not None:
            raise SettingsError("reference and references are both given; give one, or one per prompt")
        if references is not None and len(references) != batch:
            raise SettingsError(f"{len(references)} references for {batch} prompts; give one per prompt")
        given = [reference] if references is None else list(references)
        if settings.strength == 0 or (reference is None and references is None):
            return ()
        caches = tuple(self.cache(r, settings) for r in given)
        silent = [i for i, cache in enumerate(caches) if not any(cache.weights)]
        if silent and len(caches) > 1:
            raise SettingsError(f"all weights of reference {silent[0]} are 0; draw that prompt by itself")
        return () if silent else caches

    def cache(self, reference, settings: Settings) -> ReferenceCache:
        """Returns a reference as a cache on the model's device.

        Raises CacheError for one that another model made, SettingsError for one read in another mode.
        """
        self.check_adapter()
        if not isinstance(reference, ReferenceCache):
            return self.encode(reference, settings.mode, settings.ref_caption, settings.ref_megapixels)
        for part, module in (("base", self.model), ("adapter", self.adapter)):
            if getattr(reference.fingerprint, part) != hash_module(module):
                raise CacheError(f"the reference was encoded with another {part}; encode the picture again")
        if settings.mode is not None or settings.ref_caption is not None:
            mode, caption = self.caption(settings)
            other = [p.caption for p in reference.fingerprint.pictures if p.caption != caption]
            if other:
                raise SettingsError(
                    f"the reference was encoded as {other[0]!r}, not as {caption!r}; encode the picture again"
                )
        here = reference.layers[0][0].device == self.device
        return reference if here else reference.to(self.device)

    def check_adapter(self) -> None:
        if self.adapter is None:
            raise SettingsError(f"{self.config.name} has no adapter and reads no reference; load one")

    def contexts(self, prompts: Sequence[str]) -> list[Tensor]:
        """Returns one context (1, k, c) per prompt; k is larger than usual for a very long prompt."""
        known = {prompt: self.text([prompt]).to(self.device) for prompt in dict.fromkeys(prompts)}
        return [known[prompt] for prompt in prompts]

    def levels(self, settings: Settings, image) -> Tensor:
        """Returns the run's sigmas. Raises SettingsError where denoise and image contradict each other."""
        if (image is None) != (settings.denoise == 1):
            what = "needs an image to start from" if image is None else "ignores the image: set it below 1"
            raise SettingsError(f"denoise is {settings.denoise}; it {what}")
        return sigmas(settings.schedule, settings.steps, self.config.shift, settings.denoise)

    def start(
        self, batch: int, settings: Settings, sigma: float, image=None, noise: Tensor | None = None
    ) -> Tensor:
        """Returns the first latent (b, 16, 1, h, w), fp32: sigma · noise + (1 - sigma) · picture."""
        height, width = (side // self.codec.factor for side in settings.size)
        shape = (batch, self.config.dit.latent_channels, 1, height, width)
        if noise is None:
            generator = torch.Generator(settings.noise_device).manual_seed(settings.seed)
            noise = torch.randn(shape, generator=generator, device=settings.noise_device)
        elif noise.shape != shape:
            raise SettingsError(f"noise is {tuple(noise.shape)}; this run needs {shape}")
        noise = noise.to(self.device, torch.float32)
        if image is None:
            return sigma * noise
        if not is_latent(image):
            resized = load_picture(image).resize(settings.size[::-1], Image.Resampling.LANCZOS)
            image = self.to_latent(to_pixels(resized, self.config.size_step))
        if image.shape[1:] != shape[1:] or image.shape[0] not in (1, batch):
            raise SettingsError(f"image is a latent {tuple(image.shape)}; this run needs {shape}")
        return sigma * noise + (1 - sigma) * image.to(self.device, torch.float32)

    @torch.no_grad()
    def to_latent(self, pixels: Tensor) -> Tensor:
        """pixels (b, 3, h, w) in [0, 1] → latents (b, 16, 1, h/f, w/f), fp32."""
        weight = next(self.codec.parameters())
        return self.codec.encode(pixels.to(weight.device, weight.dtype)).float()

    @torch.no_grad()
    def decode(self, latents: Tensor) -> list[Image.Image]:
        """latents (b, 16, 1, h, w) → pictures, one by one: a codec needs far more room than the model."""
        weight = next(self.codec.parameters())
        images = []
        for latent in latents.split(1):
            pixels = self.codec.decode(latent.to(weight.device, weight.dtype))[0].float().cpu()
            images.append(Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).numpy()))
        return images

    def size_of(self, image) -> tuple[int, int]:
        """Returns (height, width) in pixels of a picture, or of what a latent decodes to."""
        if is_latent(image):
            return image.shape[3] * self.codec.factor, image.shape[4] * self.codec.factor
        return tuple(to_pixels(image, self.config.size_step).shape[2:])

    def free(self) -> None:
        """Gives memory that torch keeps for later back to the GPU. The pipeline itself keeps no reference."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def is_latent(image) -> bool:
    return isinstance(image, Tensor) and image.dim() == 5


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
