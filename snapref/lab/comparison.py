"""The same prompt and the same noise, once with the reference and once without: what the board shows.

Only what changed is computed again. A reference is read when the picture or the mode changes, the picture
without it is drawn when the prompt, the seed, the steps or the guidance change.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

from snapref.lab.notices import notices
from snapref.reference.cache import ReferenceCache
from snapref.reference.picture import load_picture, to_pixels
from snapref.sampling.settings import Settings

PREVIEW_EVERY = 4  # steps
WITH, WITHOUT = "with the reference", "without it"

# (which of the two is being drawn, steps done, steps of it, a look at it or None)
Progress = Callable[[str, int, int, Image.Image | None], None]


@dataclass(frozen=True)
class Comparison:
    reference: Image.Image  # as the model reads it
    with_reference: Image.Image
    without: Image.Image
    notices: tuple[str, ...]
    account: str  # a sentence: what was read, what was drawn, how long it took


@dataclass(frozen=True)
class Reading:
    """A reference that has been read."""

    cache: ReferenceCache
    seconds: float


class Comparer:
    """Called with a prompt, a picture and settings; remembers its latest reading and base picture."""

    def __init__(self, pipe):
        self.pipe = pipe
        self.latest: dict[str, tuple] = {}  # what was made -> (what it was made of, the result)

    def __call__(
        self, prompt: str, picture, settings: Settings, progress: Progress | None = None
    ) -> Comparison:
        """Returns the pictures. picture: anything that `load_picture` takes.

        Raises what the pipeline raises, each in one sentence: PictureError, SettingsError and so on.
        """
        picture = load_picture(picture)
        fitted = self.fitted(picture)
        told = notices(self.pipe.config, [prompt], [fitted])
        reading, is_new = self.read(picture, settings.mode)
        begun = time.perf_counter()
        read = self.draw(WITH, prompt, reading.cache, settings, progress)
        base, base_is_new = self.base(prompt, settings, progress)
        account = account_of(reading, is_new, 1 + base_is_new, time.perf_counter() - begun)
        return Comparison(fitted, read, base, tuple(told), account)

    @property
    def megapixels(self) -> float:
        """The area of the model's own pictures: a large photograph is read at this size."""
        return math.prod(self.pipe.config.default_size) / 1e6

    def fitted(self, picture) -> Image.Image:
        """Returns the pixels that the codec gets: on white, at a size that the model takes."""
        pixels = to_pixels(picture, self.pipe.config.size_step, self.megapixels)[0]
        return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).numpy())

    def read(self, picture: Image.Image, mode: str | None) -> tuple[Reading, bool]:
        """Returns (the reading, whether it was made just now)."""

        def make() -> Reading:
            begun = time.perf_counter()
            cache = self.pipe.encode(picture, mode=mode, ref_megapixels=self.megapixels)
            return Reading(cache, time.perf_counter() - begun)

        return self.remembered("reading", (picture.mode, picture.size, picture.tobytes(), mode), make)

    def base(
        self, prompt: str, settings: Settings, progress: Progress | None = None
    ) -> tuple[Image.Image, bool]:
        """Returns (what the base model draws without a reference, whether it was drawn just now)."""
        plain = settings.replace(mode=None, strength=0.0)
        return self.remembered(
            "base", (prompt, plain), lambda: self.draw(WITHOUT, prompt, None, plain, progress)
        )

    def draw(
        self, which: str, prompt: str, cache, settings: Settings, progress: Progress | None
    ) -> Image.Image:
        steps = settings.resolved(self.pipe.config).steps

        def watch(step: int, sigma: float, latent, denoised) -> None:
            if progress:
                look = (step + 1) % PREVIEW_EVERY == 0 or step + 1 == steps
                progress(which, step + 1, steps, self.pipe.decode(denoised)[0] if look else None)

        return self.pipe(prompt, cache, settings=settings, callback=watch, quiet=True).image

    def remembered(self, what: str, made_of: tuple, make: Callable):
        """Returns (the result, whether it is new): `make()`, unless the latest was made of the same."""
        if what in self.latest and self.latest[what][0] == made_of:
            return self.latest[what][1], False
        self.latest[what] = made_of, make()
        return self.latest[what][1], True


def account_of(reading: Reading, is_new: bool, drawn: int, seconds: float) -> str:
    """Returns a sentence like "Reference not read again; 1 picture drawn in 0.8 s."."""
    kept = f"{sum(reading.cache.tokens)} tokens, {reading.cache.nbytes / 1e6:.2f} MB"
    read = f"Reference read in {reading.seconds:.2f} s ({kept})" if is_new else "Reference not read again"
    return f"{read}; {drawn} {'picture' if drawn == 1 else 'pictures'} drawn in {seconds:.1f} s."
