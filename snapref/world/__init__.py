"""The drawn world: small characters with Danbooru-style tags, drawn by numpy and matplotlib's rasteriser."""

from .captions import SIZES, Sample, sample, sample_pair
from .characters import (
    BIASED,
    HELD_BACK,
    PATTERNS,
    SPLITS,
    UNBIASED,
    Biases,
    Character,
    character,
    held_back,
    split_of,
)
from .palette import Colours, colours_of, delta_e
from .prompts import (
    APPEARANCE,
    SCENE_ORDER,
    pair_tags,
    parse,
    prompt,
    split_prompt,
    tags,
    unknown_tags,
    visible_attributes,
)
from .render import render, render_clip, render_pair, render_pair_regions, render_regions
from .scenes import POSES_IN, Scene, next_frame, scene
from .vocabulary import (
    ATTRIBUTE_OF,
    COUNT_TAGS,
    GROUNDS,
    IDENTITY,
    OUTDOORS,
    PAIR_APPEARANCE,
    QUALITY_TAGS,
    SCENE,
    SIDES,
    VOCABULARY,
    known_tags,
    nearest_tags,
)

__all__ = [
    "APPEARANCE", "ATTRIBUTE_OF", "BIASED", "Biases", "COUNT_TAGS", "Character", "Colours", "GROUNDS",
    "HELD_BACK", "IDENTITY", "OUTDOORS", "PAIR_APPEARANCE", "PATTERNS", "POSES_IN", "QUALITY_TAGS", "SCENE",
    "SCENE_ORDER", "SIDES", "SIZES", "SPLITS", "Sample", "Scene", "UNBIASED", "VOCABULARY", "character",
    "colours_of", "delta_e", "held_back", "known_tags", "nearest_tags", "next_frame", "pair_tags", "parse",
    "prompt", "render", "render_clip", "render_pair", "render_pair_regions", "render_regions", "sample",
    "sample_pair", "scene", "split_of", "split_prompt", "tags", "unknown_tags", "visible_attributes",
]
