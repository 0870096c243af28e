"""Fewer tokens: which ones of a reference each head keeps.

Whether a token is missed differs from head to head, and nothing says that two heads must keep the same ones: keys
carry their positions already. So every head of every block chooses for itself, from its own keys and values alone;
a thinned reference still serves any prompt, seed and size.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from snapref.reference.cache import CacheError, PictureGroup, ReferenceCache

LONGEST = 0.75  # of what is kept: the longest values; the rest is what differs most from these
ROUNDS = 4  # in which the rest is taken; one by one it would be 500 passes over every block at full size

# (keys and values of one picture, per block (n, r, d) each; how many to keep, m) → per block the numbers (n, m) of them
How = Callable[[Sequence[tuple[Tensor, Tensor]], int], Sequence[Tensor]]


@torch.no_grad()
def thinned(cache: ReferenceCache, share: float, how: How | None = None) -> ReferenceCache:
    """The given share of every picture's tokens, at least one of each; the others are gone.

    how: None is `longest_and_apart`. Raises CacheError for a share outside (0, 1] or a cache in fp8.
    """
    if not 0 < share <= 1:
        raise CacheError(f"the share of tokens is {share}; give a number above 0, up to 1")
    if cache.scales is not None:
        raise CacheError("a cache in fp8 cannot be thinned any more; thin it first, as fp8+thin does")
    kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in cache.layers]
    groups = []
    for part, group in zip(cache.parts(), cache.groups, strict=True):
        own = [(k[0, :, part], v[0, :, part]) for k, v in cache.layers]
        count = count_kept(group.tokens, share)
        for pairs, (k, v), chosen in zip(kept, own, (how or longest_and_apart)(own, count), strict=True):
            rows = chosen.sort(dim=1).values.to(k.device)[:, :, None].expand(-1, -1, k.shape[2])
            pairs.append((k.gather(1, rows)[None], v.gather(1, rows)[None]))
        groups.append(PictureGroup(count, group.weight))
    layers = tuple(tuple(torch.cat(side, dim=2) for side in zip(*pairs, strict=True)) for pairs in kept)
    return ReferenceCache(layers, tuple(groups), named(cache, lambda form: f"thin:{share:g}"))


def count_kept(tokens: int, share: float) -> int:
    return max(1, math.ceil(share * tokens - 1e-9))


def named(cache: ReferenceCache, change):
    """The fingerprint with every picture's form changed."""
    pictures = tuple(replace(picture, form=change(picture.form)) for picture in cache.fingerprint.pictures)
    return replace(cache.fingerprint, pictures=pictures)


def longest_and_apart(layers: Sequence[tuple[Tensor, Tensor]], count: int) -> list[Tensor]:
    """Per head first the tokens with the longest values, which change most where they are read, then the rest.

    That is filled, in a few rounds, with the tokens farthest from all chosen so far (after T. F. Gonzalez, "Clustering
    to minimize the maximum intercluster distance", 1985), so that little of the reference is without a token near it.
    """
    first = max(1, round(LONGEST * count))
    return [farthest(joined(k, v), v.float().norm(dim=-1).topk(first, dim=1).indices, count, ROUNDS)
            for k, v in layers]  # fmt: skip


def joined(k: Tensor, v: Tensor) -> Tensor:
    """(n, r, 2d) fp32: keys and values side by side, so scaled that both are equally far apart in the mean."""

    def scaled(x: Tensor) -> Tensor:
        x = x.float() - x.float().mean(1, keepdim=True)
        half = x.square().sum(-1).mean(1)  # of the mean squared distance
        return x / half.clamp(min=1e-12).sqrt()[:, None, None]

    return torch.cat([scaled(k), scaled(v)], dim=-1)


def farthest(x: Tensor, chosen: Tensor, count: int, rounds: int | None = None) -> Tensor:
    """(n, count): `chosen` (n, f) and then the tokens of x (n, r, c) farthest from all of them.

    rounds: in how many goes these are taken, each measured from all before (None: one by one).
    """
    far = apart(x, chosen).scatter(1, chosen, -1)
    while missing := count - chosen.shape[1]:
        few = 1 if rounds is None else -(-missing // rounds)
        new = far.topk(few, dim=1).indices
        chosen = torch.cat([chosen, new], dim=1)
        far = torch.minimum(far, apart(x, new)).scatter(1, chosen, -1)
        rounds = rounds and max(1, rounds - 1)
    return chosen


def apart(x: Tensor, chosen: Tensor) -> Tensor:
    """(n, r): the distance from each token of x (n, r, c) to the nearest one of `chosen` (n, f)."""
    # Head by head: all at once would be a gigabyte at full size.
    return torch.stack([torch.cdist(own[few], own).amin(dim=0) for own, few in zip(x, chosen, strict=True)])
