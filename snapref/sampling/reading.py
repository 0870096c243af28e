"""What a run reads: pictures, masks and regions are checked first, all of them, and only then read.

    requests     every argument checked and every picture loaded, without a single call of a model
    fulfil       one request → one `Reading`: a cache, and who reads which of its pictures

What was read before is checked by `read_before`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from snapref.reference.area import Area, read_area, shown_part
from snapref.reference.cache import ReferenceCache
from snapref.reference.compact import compacted
from snapref.reference.encode import encode_reference
from snapref.reference.fingerprint import hash_module, hash_tensors
from snapref.reference.picture import load_picture, to_pixels, visible_tokens
from snapref.reference.stitch import stitch
from snapref.sampling.read_before import check_cache, made_with
from snapref.sampling.settings import Settings, SettingsError


@dataclass(frozen=True, eq=False)
class Shown:
    """A picture as the codec gets it."""

    pixels: Tensor  # (1, 3, h, w) in [0, 1]
    keep: Tensor | None  # bool (r,): the tokens that show something; None: all


@dataclass(frozen=True, eq=False)
class Request:
    """One reference of a run, checked. Pictures of weight 0 or without a region of the target are gone."""

    sources: tuple[Shown | ReferenceCache, ...]
    weights: tuple[float, ...]  # one per picture of the sources
    regions: tuple[Tensor | None, ...]  # likewise; bool (t,): the target tokens that read it, None: all
    given_weights: tuple[float, ...]  # of every picture that was given
    areas: dict  # regions and masks as plain values, for the record of a picture


@dataclass(frozen=True, eq=False)
class Reading:
    """A reference that has been read, and which target tokens read each of its pictures."""

    cache: ReferenceCache
    regions: tuple[Tensor | None, ...]


def requests(
    pipe, reference, references, batch: int, settings: Settings, regions=None, ref_masks=None
) -> tuple[Request, ...]:
    """Returns what a run is to read: nothing, one request for all prompts, or one per prompt.

    Arguments as in `Pipeline.__call__`. Nothing is read without a reference, at strength 0, and where the
    weights of all pictures or of all blocks are 0: then the run is the base model's, to the bit.
    Raises SettingsError, PictureError and CacheError; no model is called.
    """
    if reference is not None and references is not None:
        raise SettingsError("reference and references are both given; give one, or one per prompt")
    if references is not None and not isinstance(references, (list, tuple)):
        raise SettingsError(f"references is {short(references)}; give a list with one reference per prompt")
    if references is not None and len(references) != batch:
        raise SettingsError(f"{len(references)} references for {batch} prompts; give one per prompt")
    if reference is None and references is None:
        alone = {"regions": regions, "ref_masks": ref_masks, "weights": settings.weights}
        for name, value in alone.items():
            if value is not None and settings.strength > 0:
                raise SettingsError(f"{name} is given without a reference; give the pictures too, or leave it out")
        return ()
    if pipe.adapter is None and settings.strength == 0:
        return ()
    pipe.check_adapter()
    several = references is not None
    given = list(references) if several else [reference]
    asked = [
        request(pipe, one, settings, areas, masks)
        for one, areas, masks in zip(
            given,
            per_prompt("regions", regions, len(given), several),
            per_prompt("ref_masks", ref_masks, len(given), several),
            strict=True,
        )
    ]
    if settings.strength == 0 or (settings.block_weights is not None and not any(settings.block_weights)):
        return ()
    silent = [i for i, one in enumerate(asked) if not one.sources]
    if silent and len(asked) > 1:
        raise SettingsError(f"nothing of reference {silent[0]} is read; draw that prompt by itself")
    return () if silent else tuple(asked)


def per_prompt(name: str, values, count: int, several: bool) -> list:
    """Splits regions or masks: one list for `reference`, a list of such lists for `references`."""
    if values is None:
        return [None] * count
    if not is_list(values):
        raise SettingsError(f"{name} is {short(values)}; give a list with one entry per picture, None for all of it")
    if not several:
        return [values]
    if len(values) != count or not all(value is None or is_list(value) for value in values):
        raise SettingsError(f"{name} has {len(values)} entries for {count} references; give one list for each")
    return list(values)


def request(
    pipe, reference, settings: Settings, regions=None, ref_masks=None, whole: bool = False
) -> Request:
    """Checks and loads one reference; `whole` keeps the pictures that nobody reads, too.

    Raises SettingsError, PictureError, CacheError.
    """
    sources = listed(reference)
    if not sources:
        raise SettingsError("reference is an empty list; give at least one picture, or None")
    masks = areas_of("ref_masks", ref_masks, len(sources), "pictures")
    loaded = load(pipe, sources, settings, masks)
    if not all(map(is_cache, loaded)):
        pipe.caption(settings)  # refuses an unknown mode

    own = tuple(w for source in loaded for w in (source.weights if is_cache(source) else (1.0,)))
    count, what = len(own), "stitched picture" if settings.layout == "stitch" and len(own) == 1 else "pictures"
    weights = own if settings.weights is None else settings.weights
    if len(weights) != count:
        raise SettingsError(f"weights has {len(weights)} entries for {count} {what}; give one for each")
    areas = areas_of("regions", regions, count, what)
    tokens = [target_tokens(area, settings, pipe.config.size_step) for area in areas]

    # A picture that nobody reads costs nothing: it is gone before any model is called.
    read = [whole or (w > 0 and (t is None or bool(t.any()))) for w, t in zip(weights, tokens, strict=True)]
    kept, first = [], 0
    for source in loaded:
        pictures = len(source.groups) if is_cache(source) else 1
        mine = [i for i in range(pictures) if read[first + i]]
        if mine:
            kept.append(source if len(mine) == pictures else source.select(mine))
        first += pictures
    return Request(
        tuple(kept),
        tuple(w for w, r in zip(weights, read, strict=True) if r),
        tuple(t for t, r in zip(tokens, read, strict=True) if r),
        weights,
        {"regions": described(areas), "ref_masks": described(masks)},
    )


def areas_of(name: str, values, count: int, what: str) -> list[Area | None]:
    """One part of a picture per entry. Raises SettingsError for another number of entries, PictureError."""
    if values is None:
        return [None] * count
    if len(values) != count:
        raise SettingsError(f"{name} has {len(values)} entries for {count} {what}; give one for each")
    return [read_area(f"{name}[{i}]", value) for i, value in enumerate(values)]


def described(areas: Sequence[Area | None]) -> list | None:
    plain = [None if area is None else area.described() for area in areas]
    return plain if any(plain) else None


def target_tokens(area: Area | None, settings: Settings, step: int) -> Tensor | None:
    """bool (t,): which tokens of the picture to draw lie in the area; None for all of them."""
    if area is None:
        return None
    height, width = settings.size
    area.check_shape(height, width, "the picture to draw")
    cells = area.covered(height // step, width // step).flatten()
    return None if bool(cells.all()) else cells


def load(
    pipe, sources: Sequence, settings: Settings, masks: Sequence[Area | None]
) -> list[Shown | ReferenceCache]:
    """Pictures as the codec gets them, stitched where the settings say so; caches as they are, checked."""
    loaded = []
    for source, mask in zip(sources, masks, strict=True):
        if not is_cache(source):
            loaded.append(shown_part(load_picture(source), mask))
            continue
        if mask is not None:
            raise SettingsError(f"{mask.name} is for a reference that is already read; encode its picture with it")
        check_cache(pipe, source, settings)
        loaded.append(source)
    if settings.layout == "stitch" and len(loaded) > 1:
        if any(map(is_cache, loaded)):
            raise SettingsError("layout is 'stitch', which needs pictures; what is already read stays separate")
        s = settings
        loaded = [stitch(loaded, s.stitch_direction, s.stitch_match, s.stitch_spacing, s.stitch_colour)]
    step, area = pipe.config.size_step, settings.ref_megapixels
    return [
        one if is_cache(one) else Shown(to_pixels(one, step, area), visible_tokens(one, step, area))
        for one in loaded
    ]


def fulfil(pipe, asked: Request, settings: Settings) -> Reading:
    """Reads what was asked for. Raises CacheError where caches and pictures do not fit each other."""
    words = None
    caches = []
    for source in asked.sources:
        if is_cache(source):
            here = source.layers[0][0].device == pipe.device
            caches.append(source if here else source.to(pipe.device))
            continue
        if words is None:
            mode, caption = pipe.caption(settings)
            words = pipe.contexts([caption])[0]
        caches.append(read_picture(pipe, source, words, mode, caption, settings))
    cache = ReferenceCache.concat(caches)
    if cache.weights != asked.weights:
        cache = cache.with_weights(asked.weights)
    return Reading(cache, asked.regions)


def read_picture(
    pipe, shown: Shown, words: Tensor, mode: str, caption: str, settings: Settings
) -> ReferenceCache:
    """One picture through codec and model, or from the store. words: (1, k, c), the context of the caption."""
    place, form = pipe.adapter.config.place, settings.cache_form

    def read() -> ReferenceCache:
        cache = encode_reference(
            pipe.model,
            pipe.adapter,
            [pipe.to_latent(shown.pixels)],
            words,
            place=place,
            keep=[shown.keep],
            pixels=[shown.pixels],
            mode=mode,
            caption=caption,
            language_model=hash_module(pipe.text.qwen),
        )
        return compacted(cache, form)

    masked = [] if shown.keep is None else [("keep", shown.keep)]
    seen = hash_tensors([("pixels", shown.pixels), ("words", words), *masked])
    key = hash_module(pipe.model), hash_module(pipe.adapter), seen, place, mode, caption, form
    return made_with(settings, pipe.store.get(key, read))


def listed(reference) -> list:
    """The pictures of a reference: a list as it is, a batch (n, …) of arrays one by one."""
    if isinstance(reference, (list, tuple)):
        return list(reference)
    if isinstance(reference, (np.ndarray, Tensor)) and reference.ndim == 4:
        return list(reference)
    return [reference]


def is_list(value) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, (np.ndarray, Tensor)) and value.ndim > 2)


def is_cache(source) -> bool:
    return isinstance(source, ReferenceCache)


def short(value) -> str:
    return repr(value) if isinstance(value, (str, int, float)) else f"a {type(value).__name__}"
