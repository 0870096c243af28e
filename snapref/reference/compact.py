"""Smaller forms of a cache: keys and values in fp8, and fewer tokens.

    "whole"           as encoded
    "fp8"             e4m3 with one fp32 scale per token and head: about half of a 16-bit cache
    "thin:0.5"        the given share of each picture's tokens, those that differ most from one another
    "fp8+thin:0.5"    both

Thinning needs no look at the picture being made, so a thinned cache still serves any prompt, seed and size.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from snapref.reference.cache import CacheError, PictureGroup, ReferenceCache, each

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
    """Keys and values in e4m3, each token and head scaled to the format's range by itself; one in fp8 stays."""
    if cache.scales is not None:
        return cache
    scales = each(lambda side: side.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST, cache.layers)
    layers = tuple(
        tuple((side.float() / scale).to(FP8) for side, scale in zip(pair, own, strict=True))
        for pair, own in zip(cache.layers, scales, strict=True)
    )
    return ReferenceCache(layers, cache.groups, named(cache, lambda form: f"fp8+{form}" if form != "whole" else "fp8"),
                          scales)  # fmt: skip


@torch.no_grad()
def thinned(cache: ReferenceCache, share: float, how=None) -> ReferenceCache:
    """The given share of every picture's tokens, at least one of each; the others are gone.

    how: takes a picture's tokens as an `Offer` and a count, returns the numbers of those to keep (None: `spread`).
    """
    if not 0 < share <= 1:
        raise CacheError(f"the share of tokens is {share}; give a number above 0, up to 1")
    if cache.scales is not None:
        raise CacheError("a cache in fp8 cannot be thinned any more; thin it first, as fp8+thin does")
    offer, keep, counts = Offer.of(cache), [], []
    for part, tokens in zip(cache.parts(), cache.tokens, strict=True):
        count = max(1, math.ceil(share * tokens - 1e-9))
        own = (how or spread)(offer.part(part), count).sort().values
        keep.append(own + part.start)
        counts.append(count)
    chosen = torch.cat(keep)
    groups = tuple(PictureGroup(n, group.weight) for n, group in zip(counts, cache.groups, strict=True))
    layers = each(lambda side: side[:, :, chosen.to(side.device)].contiguous(), cache.layers)
    return ReferenceCache(layers, groups, named(cache, lambda form: f"thin:{share:g}"))


@dataclass(frozen=True)
class Offer:
    """What tokens offer: their values in all blocks, (r, n · d) each, made to be of mean length 1.

    Block by block, for at full size all of it at once would be 57,344 numbers a token.
    """

    values: tuple[Tensor, ...]  # per block (n, r, d)
    scales: tuple[float, ...]

    @classmethod
    def of(cls, cache: ReferenceCache) -> "Offer":
        values = tuple(v[0] for _, v in cache.layers)
        scales = tuple(1 / max(flat(v).norm(dim=-1).mean().item(), 1e-12) for v in values)
        return cls(values, scales)

    def part(self, tokens: slice) -> "Offer":
        return Offer(tuple(v[:, tokens] for v in self.values), self.scales)

    def __len__(self) -> int:
        return self.values[0].shape[1]

    def blocks(self) -> Iterator[Tensor]:
        """Yields (r, n · d) fp32 of each block."""
        for v, scale in zip(self.values, self.scales, strict=True):
            yield flat(v) * scale

    def apart(self) -> Tensor:
        """(r, r): squared distances between tokens."""
        return sum(torch.cdist(block, block).square() for block in self.blocks())

    def norms(self) -> Tensor:
        """(r,)"""
        return sum(block.square().sum(dim=-1) for block in self.blocks()).sqrt()


def flat(values: Tensor) -> Tensor:
    """(n, r, d) → (r, n · d) fp32."""
    return values.transpose(0, 1).flatten(1).float()


def spread(offer: Offer, count: int) -> Tensor:
    """The numbers of `count` tokens that differ most from one another: the farthest from all chosen, again and again.

    T. F. Gonzalez, "Clustering to minimize the maximum intercluster distance" (1985). The first one is the farthest
    from the mean, which is the one farthest from all others in the mean of squares.
    """
    apart = offer.apart()
    chosen = [int(apart.mean(dim=1).argmax())]
    far = apart[chosen[0]].clone()
    far[chosen[0]] = -1
    while len(chosen) < count:
        chosen.append(int(far.argmax()))
        far = torch.minimum(far, apart[chosen[-1]])
        far[chosen] = -1
    return torch.tensor(chosen)


def named(cache: ReferenceCache, change):
    """The fingerprint with every picture's form changed."""
    pictures = tuple(replace(picture, form=change(picture.form)) for picture in cache.fingerprint.pictures)
    return replace(cache.fingerprint, pictures=pictures)
