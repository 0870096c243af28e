"""What a cache was made from, so that it is never read with another base, adapter or picture.

Hashes are sha256 over whole tensors: names, shapes, dtypes and every byte. A sample of the values would miss
a base that differs in a few layers, as merged and fine-tuned ones do.
"""

import hashlib
import weakref
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class PicturePrint:
    """One picture's share of the fingerprint."""

    pixels: str  # sha256 of what the codec was given
    size: tuple[int, int, int]  # (frames, height, width) of the latent
    place: tuple[float, float, float]
    mode: str
    caption: str
    tokens: str = "all"  # sha256 of the token mask where some were left out
    form: str = "whole"  # what was made of the keys and values afterwards: "fp8", "thin:0.5", "fp8+thin:0.5"
    # The settings that led here, for the record of what is drawn with it; others may lead to the same numbers.
    settings: dict = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Fingerprint:
    """Equal fingerprints mean the same keys and values, up to the rounding of another device."""

    base: str
    adapter: str
    dtype: str
    pictures: tuple[PicturePrint, ...]
    language_model: str = ""  # that read the caption; "": unknown, for whoever gave its context directly

    def differences(self, other: "Fingerprint") -> list[str]:
        """What differs, in words: "the adapter (1a2b… here, 3c4d… expected)"; empty when all is equal."""
        found = [
            f"the {part} ({short(getattr(self, part))} here, {short(getattr(other, part))} expected)"
            for part in ("base", "adapter", "dtype")
            if getattr(self, part) != getattr(other, part)
        ]
        mine, theirs = self.language_model, other.language_model
        if mine and theirs and mine != theirs:
            found.append(f"the language model ({short(mine)} here, {short(theirs)} expected)")
        if len(self.pictures) != len(other.pictures):
            counts = f"{len(self.pictures)} here, {len(other.pictures)} expected"
            found.append(f"the number of pictures ({counts})")
        for number, pair in enumerate(zip(self.pictures, other.pictures, strict=False), start=1):
            mine, theirs = map(asdict, pair)
            found += [
                f"the {part} of picture {number} ({short(mine[part])} here, {short(theirs[part])} expected)"
                for part in mine
                if part != "settings" and mine[part] != theirs[part]
            ]
        return found

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict) -> "Fingerprint":
        pictures = tuple(
            PicturePrint(**{**picture, "size": tuple(picture["size"]), "place": tuple(picture["place"])})
            for picture in data["pictures"]
        )
        return cls(**{**data, "pictures": pictures})


def short(value) -> str:
    """A value for a message; of a hash the first eight digits."""
    text = value if isinstance(value, str) else str(value)
    is_hash = len(text) == 64 and set(text) <= set("0123456789abcdef")
    return f"{text[:8]}…" if is_hash else repr(value)


def hash_tensors(named: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 (hex) over names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in named:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def narrowed(tensor: Tensor) -> Tensor:
    """The same numbers in the first of bf16, fp16 and fp32 that holds them all exactly; other dtypes as they are."""
    if tensor.dtype not in (torch.float32, torch.float16):
        return tensor
    narrower = (torch.bfloat16, torch.float16) if tensor.dtype == torch.float32 else (torch.bfloat16,)
    for dtype in narrower:
        if torch.equal((small := tensor.to(dtype)).to(tensor.dtype), tensor):
            return small
    return tensor


@dataclass(frozen=True, eq=False)
class Seen:
    """A tensor as it was when its module was hashed."""

    tensor: weakref.ref
    address: int
    writes: int

    def __eq__(self, other) -> bool:
        # Two references to living tensors would compare the numbers in them.
        same = self.tensor() is other.tensor()
        return same and (self.address, self.writes) == (other.address, other.writes)

    @classmethod
    def of(cls, tensor: Tensor) -> "Seen":
        # Tensors made in inference mode have no count of writes, and cannot be written to outside of it.
        return cls(weakref.ref(tensor), tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version)


_hashes: weakref.WeakKeyDictionary[nn.Module, tuple[dict, str]] = weakref.WeakKeyDictionary()


def hash_module(module: nn.Module) -> str:
    """sha256 of all tensors of a module; remembered, and made anew once one was replaced or written to.

    The numbers count, not what they are stored in: a bf16 file gives one hash, loaded as bf16 or widened to fp32.
    What stands beside an fp8 weight (`anima.linear`) counts as well, and by how much a branch's matrices are scaled
    (`Pair`), which is in no tensor.
    """
    tensors, scales = dict(module.state_dict(keep_vars=True)), {}
    for name, part in module.named_modules():
        if isinstance(getattr(part, "scale", None), float):
            scales[name] = part.scale
        for i, pair in enumerate(getattr(part, "beside", ())):
            own = f"{name}.beside.{i} times {pair.scale!r}"
            tensors |= {f"{own}.a": pair.a, f"{own}.b": pair.b}
    state = {name: Seen.of(tensor) for name, tensor in tensors.items()} | scales
    known = _hashes.get(module)
    if known is None or known[0] != state:
        numbers = [(name, narrowed(tensor)) for name, tensor in tensors.items()]
        numbers += [(name, torch.tensor(scale, dtype=torch.float64)) for name, scale in scales.items()]
        known = _hashes[module] = (state, hash_tensors(numbers))
    return known[1]
