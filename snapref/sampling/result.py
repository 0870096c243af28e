"""What a run returns: pictures, the latents behind them, and everything needed to draw them again."""

import io
import json
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from snapref.reference.cache import ReferenceCache
from snapref.sampling.settings import PNG_KEY, Settings


@dataclass(frozen=True)
class Result:
    images: list[Image.Image]
    latents: Tensor = field(repr=False)  # (b, 16, 1, h, w) fp32, normalised
    settings: Settings  # with the model's defaults filled in
    prompts: tuple[str, ...]
    negatives: tuple[str, ...]
    model: str  # name of the model's config
    references: tuple[ReferenceCache, ...] = field(repr=False)  # none, one for all, or one per picture
    branches: int  # model branches evaluated over all steps
    seconds: float  # from prompt to picture, the reference's encode included
    areas: tuple[dict, ...] = ()  # regions and masks of each reference, as plain values
    loras: tuple[dict, ...] = ()  # name, strength and sha256 of what was in the weights
    levels: tuple[float, ...] | None = None  # sigmas that were given instead of a schedule's

    @property
    def reference(self) -> ReferenceCache | None:
        """What the first picture read; can be given to the next run."""
        return self.references[0] if self.references else None

    @property
    def image(self) -> Image.Image:
        """The first picture."""
        return self.images[0]

    def record(self, index: int = 0) -> dict:
        """Returns what a saved picture carries, as plain values."""
        reference, areas = (
            group[min(index, len(group) - 1)] if group else None for group in (self.references, self.areas)
        )
        return {
            "model": self.model,
            "prompt": self.prompts[index],
            "negative": self.negatives[index],
            "batch": [index, len(self.images)],  # the noise of a picture depends on its place in the batch
            "reference": None if reference is None else reference.fingerprint.to_json(),
            **(areas or {"regions": None, "ref_masks": None}),
            "loras": list(self.loras),
            "levels": None if self.levels is None else list(self.levels),
            "settings": self.settings.to_dict(),
        }

    def save(self, path: str | Path) -> list[Path]:
        """Writes every picture and returns the files: `path`, or path-0, path-1, … for a batch.

        A PNG carries `record` in its header, where `Settings.from_png` finds it.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        one = len(self.images) == 1
        paths = [path if one else path.with_stem(f"{path.stem}-{i}") for i in range(len(self.images))]
        for i, (image, place) in enumerate(zip(self.images, paths, strict=True)):
            image.save(place, **({"pnginfo": self._info(i)} if place.suffix.lower() == ".png" else {}))
        return paths

    def _info(self, index: int) -> PngInfo:
        info = PngInfo()
        info.add_itxt(PNG_KEY, json.dumps(self.record(index)))
        return info

    def _repr_png_(self) -> bytes:
        """What a notebook shows: all pictures side by side."""
        sheet = Image.new("RGB", (sum(i.width for i in self.images), self.image.height))
        left = 0
        for image in self.images:
            sheet.paste(image, (left, 0))
            left += image.width
        stream = io.BytesIO()
        sheet.save(stream, "PNG")
        return stream.getvalue()
