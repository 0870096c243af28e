"""Which picture has which number: a drawn picture and its caption from (kind, seed, index), the same on any machine."""

from dataclasses import dataclass

import numpy as np

from snapref.world import SIZES, sample, sample_pair

# Kinds of training picture and their frames. A clip teaches that a second frame continues the first.
FRAMES = {"portrait": 1, "landscape": 1, "square": 1, "pair": 1, "clip": 2}
_CYCLE = ("portrait", "portrait", "portrait", "pair", "portrait", "landscape", "portrait", "square")


@dataclass(frozen=True)
class Drawn:
    frames: np.ndarray  # uint8 (f, h, w, 3)
    caption: str


def kind_of(index: int) -> str:
    """The kind of the index-th picture where all kinds of one frame are mixed."""
    return _CYCLE[index // 2 % len(_CYCLE)]


def specimen(kind: str, seed: int, index: int, split: str = "train"):
    """The world's Sample behind a number: who, where, which words; not yet drawn."""
    rng = np.random.default_rng((seed, index, list(FRAMES).index(kind)))
    if kind == "pair":
        return sample_pair(rng, split)
    return sample(rng, split, clip=kind == "clip", size=SIZES["portrait" if kind == "clip" else kind])


def draw(kind: str, seed: int, index: int, split: str = "train") -> Drawn:
    found = specimen(kind, seed, index, split)
    return Drawn(np.stack(found.pictures()), found.prompt)


def caption_of(seed: int, index: int) -> str:
    """A caption without its picture, for tokenizers and the language model."""
    return specimen(kind_of(index), seed, index).prompt
