"""Smaller forms of a cache: keys and values in fp8, and fewer tokens.

    "whole"           as encoded
    "fp8"             e4m3 with one fp32 scale per token and head: about half of a 16-bit cache
    "thin:0.5"        the given share of each picture's tokens, chosen by every head for itself
    "fp8+thin:0.5"    both
"""

import re

import torch

from snapref.reference.cache import CacheError, ReferenceCache, each
from snapref.reference.thin import named, thinned

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max  # 448
FORM = re.compile(r"fp8|(?:fp8\+)?thin:(?P<share>\d*\.?\d+)")


def read_form(text: str) -> tuple[bool, float]:
    """(whether fp8, share of the tokens kept) of a form's name. Raises CacheError."""
    found = FORM.fullmatch(text)
    share = float(found["share"]) if found and found["share"] else 1.0
    if text != "whole" and (found is None or not 0 < share <= 1):
        raise CacheError(
            f"cache_form is {text!r}; give whole, fp8, thin:SHARE or fp8+thin:SHARE with a share of the tokens above "
            "0, up to 1"
        )
    return text.startswith("fp8"), share


def compacted(cache: ReferenceCache, form: str) -> ReferenceCache:
    """The cache in a smaller form; "whole" gives the cache itself. Raises CacheError."""
    fp8, share = read_form(form)
    if share < 1:
        cache = thinned(cache, share)
    return to_fp8(cache) if fp8 else cache


@torch.no_grad()
def to_fp8(cache: ReferenceCache) -> ReferenceCache:
    """Keys and values in e4m3, each token and head scaled to the format's range by itself; one in fp8 stays.

    Of the ways to share scales this one errs least on nano: a channel's scale a third more, a head's twice as much.
    """
    if cache.scales is not None:
        return cache
    scales = each(lambda side: side.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST, cache.layers)
    layers = tuple(
        tuple((side.float() / scale).to(FP8) for side, scale in zip(pair, own, strict=True))
        for pair, own in zip(cache.layers, scales, strict=True)
    )
    return ReferenceCache(layers, cache.groups, named(cache, lambda form: f"fp8+{form}" if form != "whole" else "fp8"),
                          scales)  # fmt: skip
