"""What a person should be told although the run will go on: words and pictures that nano has never seen."""

from collections.abc import Iterable

import torch
from torch import Tensor

from snapref.config import ModelConfig
from snapref.reference.picture import to_pixels
from snapref.world.prompts import unknown_tags
from snapref.world.vocabulary import nearest_tags


def notices(config: ModelConfig, codec, prompts: Iterable[str], pictures: Iterable = ()) -> list[str]:
    """Returns one sentence per unknown tag and per foreign picture; none for a model of the wide world."""
    if config.codec.kind != "nano":
        return []
    unknown = dict.fromkeys(word for prompt in prompts for word in unknown_tags(prompt))
    return [tag_notice(word) for word in unknown] + [
        "nano knows only its drawn world; of this picture it can take little more than colours"
        for picture in pictures
        if is_foreign(config, codec, to_pixels(picture, config.size_step))
    ]


def tag_notice(word: str) -> str:
    near = nearest_tags(word)
    hint = f"; the nearest it knows: {', '.join(near)}" if near else ""
    return f"nano does not know the tag {word!r}{hint}"


def is_foreign(config: ModelConfig, codec, pixels: Tensor) -> bool:
    """Whether pixels (1, 3, h, w) survive the codec worse than any drawn picture does.

    The codec has learnt to keep drawn pictures and nothing else; `familiar_error` of its config is the
    largest error it makes on those. A config that states none knows no stranger.
    """
    limit = getattr(config.codec, "familiar_error", None)
    return limit is not None and reconstruction_error(codec, pixels) > limit


@torch.no_grad()
def reconstruction_error(codec, pixels: Tensor) -> float:
    """Returns the root mean square difference of pixels (1, 3, h, w) in [0, 1] to their decode."""
    weight = next(codec.parameters())
    pixels = pixels.to(weight.device, weight.dtype)
    return (codec.decode(codec.encode(pixels)) - pixels).square().mean().sqrt().item()
