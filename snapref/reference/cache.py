"""The reference, read once: a value that is handed to the model, saved, joined and thrown away.

Per block the keys (after norm and RoPE) and values of all reference tokens, picture after picture. Nothing in
it depends on prompt, seed, noise or the size of the picture being made.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from snapref.anima.attention import KeyGroup
from snapref.config import DiTConfig
from snapref.files.loader import read_metadata, read_tensors
from snapref.files.weights import save_weights
from snapref.reference.fingerprint import Fingerprint

FORMAT = "snapref_cache/1"


class CacheError(ValueError):
    """A cache that cannot be built, joined or read, in one sentence that ends with what to do."""


@dataclass(frozen=True)
class PictureGroup:
    """One picture's tokens in the cache, and how strongly they are read."""

    tokens: int
    weight: float = 1.0  # w acts as if every key stood there w times; 0: not read at all


@dataclass(frozen=True, eq=False)
class ReferenceCache:
    layers: tuple[tuple[Tensor, Tensor], ...]  # per block (k, v), each (1, n, r, d)
    groups: tuple[PictureGroup, ...]  # one per picture, in the order of the tokens
    fingerprint: Fingerprint
    # Per block what fp8 keys and values are multiplied by, each (1, n, r, 1) fp32; None: they are not in fp8.
    scales: tuple[tuple[Tensor, Tensor], ...] | None = None

    def __post_init__(self):
        tokens = sum(group.tokens for group in self.groups)
        for block, (k, v) in enumerate(self.layers):
            if not k.shape == v.shape == (1, k.shape[1], tokens, k.shape[3]):
                raise CacheError(
                    f"block {block} holds keys {tuple(k.shape)} and values {tuple(v.shape)}; "
                    f"give (1, heads, {tokens}, width) for pictures of {self.tokens} tokens"
                )
        if not self.groups or len(self.groups) != len(self.fingerprint.pictures):
            raise CacheError(
                f"{len(self.groups)} groups for {len(self.fingerprint.pictures)} pictures in the "
                "fingerprint; give one group per picture, at least one"
            )
        for number, group in enumerate(self.groups, start=1):
            check_weight(f"the weight of picture {number}", group.weight)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Reference tokens per picture."""
        return tuple(group.tokens for group in self.groups)

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(group.weight for group in self.groups)

    @property
    def nbytes(self) -> int:
        """Bytes that keys and values, and their scales, take in memory."""
        return sum(tensor.nbytes for pair in (*self.layers, *(self.scales or ())) for tensor in pair)

    def memory(
        self,
        rows: tuple[int, ...] | None = None,
        strength: float = 1.0,
        blocks: Sequence[float] | None = None,
        regions: Sequence[Tensor | None] | None = None,
    ) -> list[list[KeyGroup]]:
        """What the model call takes: per block one key group for each picture that is read at all.

        rows: the batch rows that read (None: all). blocks: a weight per block (None: 1 each). regions: per
        picture the target tokens that read it, bool (t,) (None: every one). The effective weight of a picture
        in a block is strength · its weight · the block's; its logarithm is added to the logits, and at 0 the
        picture is left out. Keys and values are views.
        """
        check_weight("strength", strength)
        blocks = [1.0] * len(self.layers) if blocks is None else blocks
        regions = [None] * len(self.groups) if regions is None else regions
        for name, values, count in (("blocks", blocks, len(self.layers)), ("regions", regions, len(self.groups))):
            if len(values) != count:
                raise CacheError(f"{name} has {len(values)} entries; this cache needs {count}")
        pictures = [*zip(self.parts(), self.weights, regions, strict=True)]

        def group(block: int, part: slice, weight: float, tokens: Tensor | None) -> KeyGroup:
            k, v = (side[:, :, part] for side in self.layers[block])
            scales = self.scales and tuple(scale[:, :, part] for scale in self.scales[block])
            return KeyGroup(k, v, math.log(weight), rows, tokens, scales)

        return [
            [
                group(block, part, strength * weight * factor, tokens)
                for part, weight, tokens in pictures
                if strength * weight * factor > 0
            ]
            for block, factor in enumerate(blocks)
        ]

    def parts(self) -> list[slice]:
        """Where each picture's tokens lie on the token axis."""
        ends = [sum(self.tokens[: i + 1]) for i in range(len(self.groups))]
        return [slice(end - group.tokens, end) for end, group in zip(ends, self.groups, strict=True)]

    def with_weights(self, weights: Sequence[float]) -> "ReferenceCache":
        """The same keys and values with other weights, one per picture."""
        if len(weights) != len(self.groups):
            raise CacheError(f"{len(weights)} weights for {len(self.groups)} pictures; give one per picture")
        pairs = zip(self.groups, weights, strict=True)
        return replace(self, groups=tuple(replace(group, weight=float(weight)) for group, weight in pairs))

    def select(self, pictures: Sequence[int]) -> "ReferenceCache":
        """A cache of some of the pictures, in the order given; a copy, so that the rest can be freed."""
        count = len(self.groups)
        if not pictures or not all(0 <= i < count for i in pictures):
            raise CacheError(f"pictures {[*pictures]} of a cache of {count}; name some of 0 to {count - 1}")
        parts = self.parts()

        def chosen(side: Tensor) -> Tensor:
            return torch.cat([side[:, :, parts[i]] for i in pictures], dim=2)

        return ReferenceCache(
            each(chosen, self.layers),
            tuple(self.groups[i] for i in pictures),
            replace(self.fingerprint, pictures=tuple(self.fingerprint.pictures[i] for i in pictures)),
            each(chosen, self.scales),
        )

    @staticmethod
    def concat(caches: Sequence["ReferenceCache"]) -> "ReferenceCache":
        """All pictures of several caches side by side. Base, adapter and dtype must be the same.

        Where some are in fp8 and some are not, all are widened.
        """
        if not caches:
            raise CacheError("no cache to join; give at least one")
        first = caches[0]
        if len(caches) == 1:
            return first
        known = next((c.fingerprint.language_model for c in caches if c.fingerprint.language_model), "")
        common = replace(first.fingerprint, language_model=known)
        for number, cache in enumerate(caches[1:], start=2):
            others = replace(cache.fingerprint, pictures=first.fingerprint.pictures)
            if differences := others.differences(common):
                raise CacheError(
                    f"cache {number} does not fit the first: {' and '.join(differences)} differ; "
                    "encode all pictures with one base and one adapter"
                )
        if len({cache.scales is None for cache in caches}) == 2:
            caches = [cache.widened() for cache in caches]

        def joined(all_pairs: Sequence) -> tuple:
            pairs = zip(*all_pairs, strict=True)
            return tuple(tuple(torch.cat(s, dim=2) for s in zip(*pair, strict=True)) for pair in pairs)

        return ReferenceCache(
            joined([cache.layers for cache in caches]),
            tuple(group for cache in caches for group in cache.groups),
            replace(
                common,
                pictures=tuple(picture for cache in caches for picture in cache.fingerprint.pictures),
            ),
            None if caches[0].scales is None else joined([cache.scales for cache in caches]),
        )

    def widened(self) -> "ReferenceCache":
        """The same numbers without fp8, in the dtype of the model that made them; its fingerprint still says fp8."""
        if self.scales is None:
            return self
        dtype = getattr(torch, self.fingerprint.dtype)
        pairs = zip(self.layers, self.scales, strict=True)
        layers = tuple(KeyGroup(*pair, scales=scales).wide(dtype) for pair, scales in pairs)
        return ReferenceCache(layers, self.groups, self.fingerprint)

    def to(self, device=None, dtype: torch.dtype | None = None) -> "ReferenceCache":
        """On another device or in another dtype; the fingerprint follows the dtype. fp8 stays what it is."""
        stored = dtype if self.scales is None else None
        print_ = self.fingerprint if dtype is None else replace(self.fingerprint, dtype=dtype_name(dtype))
        return ReferenceCache(
            each(lambda side: side.to(device=device, dtype=stored), self.layers),
            self.groups,
            print_,
            each(lambda side: side.to(device=device), self.scales),
        )

    def save(self, path) -> None:
        """One safetensors file, written beside and moved into place when complete."""
        tensors = {
            f"blocks.{i}.{name}": side
            for i, pair in enumerate(self.layers)
            for name, side in zip("kv", pair, strict=True)
        } | {
            f"blocks.{i}.{name}_scale": side
            for i, pair in enumerate(self.scales or ())
            for name, side in zip("kv", pair, strict=True)
        }
        header = {
            "format": FORMAT,
            "groups": json.dumps([[group.tokens, group.weight] for group in self.groups]),
            "fingerprint": json.dumps(self.fingerprint.to_json()),
        }
        save_weights(tensors, path, dtype=None, metadata=header)

    @classmethod
    def load(cls, path, expect: Fingerprint | None = None, device="cpu") -> "ReferenceCache":
        """A saved cache.

        Raises CacheError, naming every part that differs, if it was not made from what `expect` says, and
        WeightsError for a file that is missing, cut short or something else.
        """
        name, header = Path(path).name, read_metadata(path)
        if header.get("format") != FORMAT:
            raise CacheError(
                f"{name!r} has format {header.get('format')!r}, not {FORMAT!r}; save an encoded picture there"
            )
        fingerprint = Fingerprint.from_json(json.loads(header["fingerprint"]))
        if expect is not None and (differences := fingerprint.differences(expect)):
            raise CacheError(
                f"{name!r} was made from something else: {'; '.join(differences)}; encode the picture again"
            )
        tensors = read_tensors(path)
        scaled = "blocks.0.k_scale" in tensors
        blocks = range(len(tensors) // (4 if scaled else 2))
        layers, scales = (
            tuple(tuple(tensors[f"blocks.{i}.{side}{end}"].to(device) for side in "kv") for i in blocks)
            for end in (("", "_scale") if scaled else ("", ""))
        )
        groups = tuple(PictureGroup(*group) for group in json.loads(header["groups"]))
        for i, pair in enumerate((*layers, *(scales if scaled else ()))):
            if not all(finite(side) for side in pair):
                raise CacheError(f"{name!r} holds numbers that are not finite in block {i % len(layers)}; encode anew")
        return cls(layers, groups, fingerprint, scales if scaled else None)


def reference_bytes(dit: DiTConfig, tokens: float, dtype: torch.dtype) -> int:
    """Bytes of a whole cache of so many tokens: keys and values of every block."""
    return round(2 * dit.blocks * tokens * dit.width * dtype.itemsize)


def each(change: Callable[[Tensor], Tensor], pairs: Sequence[tuple[Tensor, Tensor]] | None):
    """`change` of every tensor of some pairs per block; None for None."""
    return None if pairs is None else tuple(tuple(change(side) for side in pair) for pair in pairs)


def finite(side: Tensor) -> bool:
    if side.dtype == torch.float8_e4m3fn:  # has no infinity, and one NaN of either sign
        return bool((side.view(torch.uint8).bitwise_and(127) < 127).all())
    return bool(side.isfinite().all())


def check_weight(name: str, weight: float) -> None:
    if not 0 <= weight < math.inf:
        raise CacheError(f"{name} is {weight}; give a number from 0 upward, 1 being what was trained")


def dtype_name(dtype: torch.dtype) -> str:
    """ "float16" for torch.float16."""
    return str(dtype).removeprefix("torch.")
