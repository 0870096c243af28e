"""Prompt and reference in, picture out: the parts of a model behind one call."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from tqdm.auto import tqdm

from snapref.anima.model import AnimaDiT
from snapref.anima.offload import at_work, device_of, dtype_of
from snapref.anima.text import TextEncoder
from snapref.config import ModelConfig
from snapref.reference.branches import Adapter
from snapref.reference.cache import ReferenceCache, reference_bytes
from snapref.reference.picture import to_pixels
from snapref.reference.store import BUDGET, ReferenceStore
from snapref.sampling.advice import in_one_sentence
from snapref.sampling.denoiser import Denoiser
from snapref.sampling.loras import Added, Loras
from snapref.sampling.passes import warn_of_empty_window, warn_of_ignored
from snapref.sampling.read_before import as_read
from snapref.sampling.reading import fulfil, request, requests
from snapref.sampling.result import Result
from snapref.sampling.samplers import NonFiniteLatent, sample
from snapref.sampling.settings import Settings, SettingsError, with_changes
from snapref.sampling.start import is_latent, noised, own_levels, paired, run_levels, start_noise, start_pixels

Callback = Callable[[int, float, Tensor, Tensor], bool | None]


class Pipeline:
    """A model ready to draw. A run changes nothing in it; a reference is a value, and `store` only saves time.

    codec: anything with encode, decode and factor (`anima.vae`, `anima.codec`). adapter: None draws without
    references only. The parts stay on the devices they are on.
    """

    def __init__(
        self, model: AnimaDiT, text: TextEncoder, codec, config: ModelConfig, adapter: Adapter | None = None
    ):
        self.model, self.text, self.codec, self.config, self.adapter = model, text, codec, config, adapter
        self._loras = Loras(model, text.qwen)
        one = reference_bytes(config.dit, config.default_ref_megapixels * 1e6 / config.size_step**2, model.dtype)
        self.store = ReferenceStore(max(BUDGET, 2 * one))  # two pictures at least, or each would push out the other

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @in_one_sentence
    def __call__(
        self,
        prompt: str | Sequence[str],
        reference=None,
        negative: str | Sequence[str] = "",
        settings: Settings | None = None,
        *,
        references: Sequence | None = None,
        regions: Sequence | None = None,
        ref_masks: Sequence | None = None,
        image=None,
        noise: Tensor | None = None,
        levels: Tensor | None = None,
        callback: Callback | None = None,
        quiet: bool = False,
        **changes,
    ) -> Result:
        """Returns one picture per prompt.

        reference: None, a picture (path, PIL, array), a cache, or several of these: a list, or a batch of
            arrays. references: instead of it, one of these per prompt.
        negative: one for all, or one per prompt.
        regions: per picture of the reference, where in the new picture it is read (None: everywhere): "left",
            "right", "top", "bottom", a box or a mask, as `read_area` takes them; with `references` one such
            list for each. Only the tokens of that region read it.
        ref_masks: per picture, which part of it is shown (None: all); the rest is white and its tokens are
            deleted. Given like regions; a mask has its picture's size.
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
        settings = with_changes(settings, changes)
        if image is not None and settings.size is None:
            settings = settings.replace(size=self.size_of(image))
        settings = settings.resolved(self.config)
        prompts, negatives = paired(prompt, negative)
        warn_of_ignored(settings)
        own = None if levels is None else own_levels(levels)
        if own is not None:
            settings = settings.replace(steps=len(own) - 1)
        levels = self.levels(settings, image) if own is None else own
        steps = len(levels) - 1
        asked = requests(self, reference, references, len(prompts), settings, regions, ref_masks)
        if asked and warn_of_empty_window(settings, steps):
            asked = ()
        x = self.start(len(prompts), settings, float(levels[0]), image, noise)
        read = [fulfil(self, one, settings) for one in asked]
        caches = tuple(one.cache for one in read)
        settings = as_read(settings, asked, caches)
        denoiser = Denoiser(
            self.model,
            self.contexts(prompts),
            self.contexts(negatives),
            settings,
            steps,
            caches,
            self.adapter.target if caches else None,
            [one.regions for one in read],
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
            tuple(one.areas for one in asked),
            tuple(each.record() for each in self.loras),
            None if own is None else tuple(own.tolist()),
        )

    @in_one_sentence
    def encode(
        self,
        reference,
        mode: str | None = None,
        ref_caption: str | None = None,
        ref_megapixels: float | None = None,
        weights: Sequence[float] | None = None,
        *,
        ref_masks: Sequence | None = None,
        settings: Settings | None = None,
        **changes,
    ) -> ReferenceCache:
        """Returns the value to give to any number of runs, of any size and prompt.

        reference: a picture, or several pictures or caches, as in a run. mode: a caption's name, None for the
        adapter's default; ref_caption overrides it. weights: how strongly each picture is read (None: 1).
        ref_masks: as in a run. settings, changes: fields of Settings, of which those on reading count.
        Parts of a picture that are fully transparent are left out. Raises SettingsError, PictureError,
        CacheError.
        """
        self.check_adapter()
        given = {"mode": mode, "ref_caption": ref_caption, "ref_megapixels": ref_megapixels, "weights": weights}
        changes |= {name: value for name, value in given.items() if value is not None}
        settings = with_changes(settings, changes)
        if settings.ref_megapixels is None:
            settings = settings.replace(ref_megapixels=self.config.default_ref_megapixels)
        return fulfil(self, request(self, reference, settings, None, ref_masks, whole=True), settings).cache

    def caption(self, settings: Settings) -> tuple[str, str]:
        """Returns (mode, the caption that the reference branch hears). Raises SettingsError."""
        known = self.adapter.config
        mode = settings.mode or known.default_mode
        if mode not in known.captions:
            raise SettingsError(f"mode is {mode!r}; the adapter {known.name} has {', '.join(known.captions)}")
        if settings.ref_caption is not None:
            return settings.mode or "", settings.ref_caption
        return mode, known.captions[mode]

    def check_adapter(self) -> None:
        if self.adapter is None:
            raise SettingsError(f"{self.config.name} has no adapter and reads no reference; load one")

    def contexts(self, prompts: Sequence[str]) -> list[Tensor]:
        """Returns one context (1, k, c) per prompt; k is larger than usual for a very long prompt."""
        with at_work(self.text.qwen):  # gone from the device before the first step
            known = {prompt: self.text([prompt]).to(self.device) for prompt in dict.fromkeys(prompts)}
        return [known[prompt] for prompt in prompts]

    def levels(self, settings: Settings, image) -> Tensor:
        """Returns the run's sigmas. Raises SettingsError where denoise and image contradict each other."""
        return run_levels(settings, self.config.shift, image is not None)

    def start(
        self, batch: int, settings: Settings, sigma: float, image=None, noise: Tensor | None = None
    ) -> Tensor:
        """Returns the first latent (b, 16, 1, h, w), fp32: sigma · noise + (1 - sigma) · picture."""
        height, width = (side // self.codec.factor for side in settings.size)
        shape = (batch, self.config.dit.latent_channels, 1, height, width)
        noise = start_noise(shape, settings, noise).to(self.device)
        if image is not None and not is_latent(image):
            image = self.to_latent(start_pixels(image, settings, self.config.size_step))
        return noised(image, noise, sigma)

    @torch.no_grad()
    def to_latent(self, pixels: Tensor) -> Tensor:
        """pixels (b, 3, h, w) in [0, 1] → latents (b, 16, 1, h/f, w/f), fp32."""
        with at_work(self.codec):
            return self.codec.encode(pixels.to(device_of(self.codec), dtype_of(self.codec))).float()

    @torch.no_grad()
    def decode(self, latents: Tensor) -> list[Image.Image]:
        """latents (b, 16, 1, h, w) → pictures, one by one: a codec needs far more room than the model."""
        images = []
        with at_work(self.codec):
            for latent in latents.split(1):
                pixels = self.codec.decode(latent.to(device_of(self.codec), dtype_of(self.codec)))[0].float().cpu()
                images.append(Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).numpy()))
        return images

    def size_of(self, image) -> tuple[int, int]:
        """Returns (height, width) in pixels of a picture, or of what a latent decodes to."""
        if is_latent(image):
            return image.shape[3] * self.codec.factor, image.shape[4] * self.codec.factor
        return tuple(to_pixels(image, self.config.size_step).shape[2:])

    def add_lora(self, path: str | Path, strength: float = 1.0) -> str:
        """Puts a LoRA into the weights, in front of the adapter, and returns its name for `remove_lora`.

        It stays for every run until it is removed; caches made without it are refused. Raises LoraError,
        KeyMismatch, WeightsError, and MergeError during a run (`sampling.loras`).
        """
        return self._loras.add(path, strength)

    def remove_lora(self, name: str | None = None) -> None:
        """Takes one LoRA out of the weights, or all; then the weights are the original ones, bit for bit."""
        self._loras.remove(name)

    @property
    def loras(self) -> tuple[Added, ...]:
        """What is in the weights now, in the order of adding."""
        return self._loras.added

    def free(self) -> None:
        """Forgets the pictures read so far (`store`), and gives memory that torch keeps for later back to the GPU."""
        self.store.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
