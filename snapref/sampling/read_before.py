"""A reference that was read before: whether this model and these settings may use it, and what it says of itself.

A cache keeps, beside its fingerprint, the settings that it was read with. A picture drawn with it records those, so
that the picture and its settings alone draw the same again.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

from snapref.reference.cache import CacheError, ReferenceCache, dtype_name
from snapref.reference.compact import read_form
from snapref.reference.fingerprint import hash_module
from snapref.sampling.settings import Settings, SettingsError

# Of Settings, what a cache depends on.
READ_WITH = ("mode", "ref_caption", "ref_megapixels", "cache_form", "layout", "stitch_direction", "stitch_match",
             "stitch_spacing", "stitch_colour")  # fmt: skip


def check_cache(pipe, cache: ReferenceCache, settings: Settings) -> None:
    """Raises CacheError for one that another model made, SettingsError for one that was read in another way.

    A setting left at its default asks for nothing; one that says something else than the cache does is refused, for
    it could only be ignored.
    """
    for part, module in (("base", pipe.model), ("adapter", pipe.adapter), ("language model", pipe.text.qwen)):
        made_by = getattr(cache.fingerprint, part.replace(" ", "_"))
        unknown = part == "language model" and not made_by  # whoever encoded gave the caption's context directly
        if not unknown and made_by != hash_module(module):
            raise CacheError(f"the reference was encoded with another {part}; encode the picture again")
    dtype, own = cache.fingerprint.dtype, dtype_name(pipe.model.dtype)
    if dtype != own:
        raise CacheError(f"the reference is in {dtype}, the model in {own}; encode again, or give cache.to(dtype=…)")
    place = pipe.adapter.config.place
    if other := [picture.place for picture in cache.fingerprint.pictures if picture.place != place]:
        # Not refused: a reference may have been turned there on purpose.
        warnings.warn(
            f"the reference sits at place {other[0]}, the adapter was trained to read at {place}; encode it again if "
            "that is not meant", stacklevel=2,
        )
    check_settings(pipe, cache, settings)


def check_settings(pipe, cache: ReferenceCache, settings: Settings) -> None:
    pictures = cache.fingerprint.pictures
    if settings.mode is not None or settings.ref_caption is not None:
        _, caption = pipe.caption(settings)
        refuse([p.caption for p in pictures], caption, "encoded as")
    if settings.cache_form != "whole":
        other = [p.form for p in pictures if read_form(p.form) != read_form(settings.cache_form)]
        refuse(other, settings.cache_form, "kept as")
    area = settings.ref_megapixels
    if area not in (None, pipe.config.default_ref_megapixels):
        refuse([p.settings.get("ref_megapixels", area) for p in pictures], area, "read with ref_megapixels")


def refuse(found: Sequence, wanted, what: str) -> None:
    """Raises SettingsError if one of `found` is not what is wanted."""
    if other := [one for one in found if one != wanted]:
        raise SettingsError(f"the reference was {what} {other[0]!r}, not {wanted!r}; encode the picture again")


def made_with(settings: Settings, cache: ReferenceCache) -> ReferenceCache:
    """The cache, saying of all its pictures with which settings they were read."""
    used = {name: getattr(settings, name) for name in READ_WITH}
    pictures = tuple(replace(p, settings=used | {"mode": p.mode or None}) for p in cache.fingerprint.pictures)
    return replace(cache, fingerprint=replace(cache.fingerprint, pictures=pictures))


def as_read(settings: Settings, asked: Sequence, caches: Sequence[ReferenceCache]) -> Settings:
    """Settings with what caches brought along, if all brought the same: what they were read with, their weights.

    asked: the requests that the caches answer.
    """
    pictures = [picture for cache in caches for picture in cache.fingerprint.pictures]
    used = [picture.settings or {"mode": picture.mode or None, "cache_form": picture.form} for picture in pictures]
    if used and all(one == used[0] for one in used):
        settings = settings.replace(**used[0])
    weights = {one.given_weights for one in asked}
    if len(weights) == 1 and any(w != 1 for w in next(iter(weights))):
        settings = settings.replace(weights=weights.pop())
    return settings
