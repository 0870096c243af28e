"""The way of a reference through the model: once, alone, at sigma 0 and at its own place.

It never attends to the picture being made, and its sigma never changes. That, and nothing else, is why its
keys and values can be computed once (`encode_reference`) or, in training, once per step (`joint_velocity`).
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from snapref.anima.attention import KeyGroup
from snapref.anima.block import Block
from snapref.anima.lowrank import Branch
from snapref.anima.model import AnimaDiT
from snapref.anima.rope import Place
from snapref.reference.branches import Adapter, MergeError, is_merged
from snapref.reference.cache import CacheError, PictureGroup, ReferenceCache, check_weight, dtype_name
from snapref.reference.fingerprint import Fingerprint, PicturePrint, hash_module, hash_tensors


class NonFiniteError(ArithmeticError):
    """Keys or values left the range of their dtype."""


def offered_keys(
    dit: AnimaDiT, latents: Tensor, context: Tensor, place: Place, branch: Branch
) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of clean pictures, per block: [(k, v)], each (b, n, r, d). Gradients flow.

    latents: (b, 16, f, h, w), every row by itself; context: (b or 1, k, c), what the reference branch
    cross-attends to.
    """
    sigma = torch.zeros(len(latents), device=latents.device)
    context = context.expand(len(latents), -1, -1)
    return dit.keys_values(latents, sigma, context, place=place, branch=branch)


def joint_velocity(
    dit: AnimaDiT,
    adapter: Adapter,
    noisy: Tensor,
    sigma: Tensor,
    context: Tensor,
    reference_latents: Tensor | None,
    reference_context: Tensor | None,
    place: Place | None = None,
    reference_rows: Sequence[int] | None = None,
) -> Tensor:
    """Velocity (b, 16, f, h, w) of noisy latents that read one clean reference each; for training.

    The same numbers as encoding first and sampling afterwards, with gradients into both branches.
    noisy: (b, 16, f, h, w); sigma: (b,) or (b, f); context: (b, k, c).
    reference_latents: (g, 16, 1, h, w), read by the g batch rows `reference_rows` (None: every row, g = b);
    reference_context: (g or 1, k, c); place: (t, h, w) of the references (None: the adapter's).
    Rows without a reference, or all where no latents are given, run with the target branch too: so does the
    unconditional half of a guided step.
    """
    memory = None
    if reference_latents is not None and len(reference_latents):
        place = adapter.config.place if place is None else place
        rows = None if reference_rows is None else tuple(reference_rows)
        keys = offered_keys(dit, reference_latents, reference_context, place, adapter.reference)
        memory = [[KeyGroup(k, v, rows=rows)] for k, v in keys]
    return dit(noisy, sigma, context, memory=memory, branch=adapter.target)


@torch.no_grad()
def encode_reference(
    dit: AnimaDiT,
    adapter: Adapter,
    latents: Sequence[Tensor],
    context: Tensor,
    *,
    place: Place | None = None,
    weights: Sequence[float] | None = None,
    keep: Sequence[Tensor | None] | None = None,
    pixels: Sequence[Tensor] | None = None,
    mode: str = "",
    caption: str = "",
    language_model: str = "",
) -> ReferenceCache:
    """The cache of some pictures: each encoded alone, in a batch of one, all at the same place.

    latents: clean, normalised, each (1, 16, 1, h, w); sizes may differ.
    context: (1, k, c), what the reference branch cross-attends to: the context of the mode's caption.
    place: (t, h, w) of each picture's first token (None: the adapter's).
    weights: how strongly each picture is read later (None: 1).
    keep: per picture None or a bool mask (r,); False tokens are deleted after encoding, so they can no longer
        be read (the kept ones have seen them).
    pixels: what each latent was made from, for the fingerprint (None: the latent stands for it).
    mode, caption, language_model: for the fingerprint; the last is the hash of what made the context.

    A model in fp16 is widened to fp32 for this, block by block, and the result cast back.
    Raises CacheError for arguments that do not match, MergeError while a branch is merged into `dit`, and
    NonFiniteError, naming the block, when a number leaves the dtype's range.
    """
    count = len(latents)
    if not count:
        raise CacheError("no picture to encode; give at least one")
    for name, values in (("weights", weights), ("masks to keep", keep), ("pixels", pixels)):
        if values is not None and len(values) != count:
            raise CacheError(f"{len(values)} {name} for {count} pictures; give one per picture")
    if is_merged(dit):
        # The reference would run through the target branch and, cached, be wrong for as long as it lives.
        raise MergeError("the model carries the target branch; encode the reference before merging it")

    weights = [1.0] * count if weights is None else weights
    keep = [None] * count if keep is None else keep
    for number, (latent, weight, mask) in enumerate(zip(latents, weights, keep, strict=True), start=1):
        check_picture(number, latent, weight, mask, dit.config.dit.patch)
    place = adapter.config.place if place is None else tuple(map(float, place))
    device = next(dit.parameters()).device
    encoder = widened(dit) if dit.dtype == torch.float16 else dit

    caches = []
    for i, latent in enumerate(latents):
        latent = latent.to(device, torch.float32)
        keys = offered_keys(encoder, latent, context.to(device, torch.float32), place, adapter.reference)
        mask = slice(None) if keep[i] is None else keep[i].to(device)
        # contiguous: in memory of their own, so that what the cache says it weighs is what it weighs
        layers = [tuple(side[:, :, mask].to(dit.dtype).contiguous() for side in pair) for pair in keys]
        check_finite(layers)
        mark = PicturePrint(
            pixels=hash_tensors([("picture", latent if pixels is None else pixels[i])]),
            size=tuple(latent.shape[2:]), place=place, mode=mode, caption=caption,
            tokens="all" if keep[i] is None else hash_tensors([("keep", keep[i])]),
        )
        hashes = hash_module(dit), hash_module(adapter)
        fingerprint = Fingerprint(*hashes, dtype_name(dit.dtype), (mark,), language_model)
        group = PictureGroup(layers[0][0].shape[2], float(weights[i]))
        caches.append(ReferenceCache(tuple(layers), (group,), fingerprint))
    return ReferenceCache.concat(caches)


def check_picture(number: int, latent: Tensor, weight: float, mask: Tensor | None, patch: int) -> None:
    """Refuses, before the model is asked, what would fail or mean nothing."""
    check_weight(f"the weight of picture {number}", weight)
    if latent.ndim != 5 or len(latent) != 1:
        raise CacheError(
            f"latent {number} has shape {tuple(latent.shape)}; give each picture by itself, (1, 16, 1, h, w)"
        )
    if mask is None:
        return
    frames, height, width = latent.shape[2:]
    tokens = frames * -(-height // patch) * -(-width // patch)
    if mask.dtype != torch.bool or mask.shape != (tokens,):
        raise CacheError(
            f"the token mask of picture {number} is {mask.dtype} {tuple(mask.shape)}; give ({tokens},) bools"
        )
    if not mask.any():
        raise CacheError(f"the token mask of picture {number} keeps no token; keep some, or leave it out")


def check_finite(layers: Sequence[tuple[Tensor, Tensor]]) -> None:
    # One answer for all blocks first: a question per block would make a GPU wait as often.
    if not torch.stack([side.isfinite().all() for pair in layers for side in pair]).all():
        block = next(i for i, pair in enumerate(layers) if not all(side.isfinite().all() for side in pair))
        raise NonFiniteError(
            f"block {block}: keys or values of the reference are not finite in {layers[0][0].dtype}; "
            "load the model in bfloat16 or float32"
        )


class WideBlock(nn.Module):
    """A block with fp16 weights that computes in fp32, through a copy that lives for one call."""

    def __init__(self, block: Block):
        super().__init__()
        self.block = block

    def forward_and_offer(self, *args, **options):
        x, (k, v) = copy.deepcopy(self.block).float().forward_and_offer(*args, **options)
        return x, (k.half(), v.half())  # at once, or all blocks' keys would wait in fp32 for the last one

    def keys_values(self, *args, **options):
        k, v = copy.deepcopy(self.block).float().keys_values(*args, **options)
        return k.half(), v.half()


def widened(dit: AnimaDiT) -> AnimaDiT:
    """An fp16 model computing in fp32, for `keys_values` only, in the room of one wide block instead of all.

    `dit` itself is not touched. At full size a wide copy of everything would be 8 GB, on a card of 15 GB.
    """
    wide = copy.copy(dit)
    small = {name: part for name, part in dit._modules.items() if name not in ("blocks", "llm_adapter")}
    wide._modules = {name: copy.deepcopy(part).float() for name, part in small.items()}
    wide._modules["blocks"] = nn.ModuleList(WideBlock(block) for block in dit.blocks)
    return wide
