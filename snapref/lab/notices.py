"""What a person should be told although the run will go on: words and pictures that nano has never seen."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from snapref.config import ModelConfig
from snapref.reference.picture import to_pixels
from snapref.training.tagger import load_tagger
from snapref.world.prompts import unknown_tags
from snapref.world.vocabulary import nearest_tags

# The tagger's confidence. Of 128 drawn portraits none was below 0.83; photographs and noise reach 0.77.
FAMILIAR = 0.80


def notices(config: ModelConfig, prompts: Iterable[str], pictures: Iterable = ()) -> list[str]:
    """Returns one sentence per unknown tag and per foreign picture; none for a model of the wide world."""
    if config.codec.kind != "nano":
        return []
    unknown = dict.fromkeys(word for prompt in prompts for word in unknown_tags(prompt))
    return [tag_notice(word) for word in unknown] + [
        "nano knows only its drawn world; of this picture it can take little more than colours"
        for picture in pictures
        if is_foreign(to_pixels(picture, config.size_step, config.default_ref_megapixels))
    ]


def tag_notice(word: str) -> str:
    near = nearest_tags(word)
    hint = f"; the nearest it knows: {', '.join(near)}" if near else ""
    return f"nano does not know the tag {word!r}{hint}"


def is_foreign(pixels: Tensor) -> bool:
    """Whether pixels (1, 3, h, w) are unlike anything of the drawn world.

    The tagger is sure of what it reads in drawn pictures and of nothing elsewhere. It is a hint, not a proof: a
    clean logo passes.
    """
    views = [F.interpolate(view, (128, 96), mode="bilinear", antialias=True) for view in windows(pixels)]
    return bool(load_tagger().confidence(torch.cat(views)).max() < FAMILIAR)


def windows(pixels: Tensor) -> list[Tensor]:
    """The middle of a picture in the tagger's shape and, of one that is wider than high, its two halves."""
    height, width = pixels.shape[2:]
    across = min(width, round(0.75 * height))
    left = (width - across) // 2
    middle = pixels[..., left : left + across]
    return [middle, pixels[..., : width // 2], pixels[..., width // 2 :]] if width > height else [middle]
