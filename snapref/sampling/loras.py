"""LoRAs in the weights of a model: in front of the reference adapter, several at once, gone without a trace.

They are added to the weights when they are given, not in every step, so a run with them costs what one without
them costs, the reference is read with them, and a cache made without them is refused by its fingerprint.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from snapref.anima.linear import is_float8
from snapref.anima.lowrank import LowRank
from snapref.files.lora import TEXT_ENCODER, Lora, LoraError, read_lora
from snapref.files.places import check_slot
from snapref.reference.branches import MergeError, is_merged

MAX_STRENGTH = 100.0


@dataclass(frozen=True)
class Added:
    """One LoRA in the weights."""

    name: str
    strength: float
    lora: Lora
    sha256: str  # of the file

    def record(self) -> dict:
        """Returns what a saved picture says of it."""
        return {"name": self.name, "strength": self.strength, "sha256": self.sha256}


class Loras:
    """What is added to one model, in the order of adding: W + Σ strength · scale · B A, summed in fp32.

    The original parameter objects are kept and put back, never computed by subtraction. A module that no LoRA
    changes (strength 0, or a matrix of zeros) keeps its own. Where the weight is fp8 the matrices stand beside
    it instead: a sum rounded to eight bits again would lose most of them.
    text_encoder: the language model, which some LoRAs change as well.
    """

    def __init__(self, model: nn.Module, text_encoder: nn.Module | None = None):
        self.model = model
        self.linears = linears_of(model)
        if text_encoder is not None:
            self.linears |= {TEXT_ENCODER + name: m for name, m in linears_of(text_encoder).items()}
        self.added: tuple[Added, ...] = ()
        self.originals: dict[str, nn.Parameter] = {}

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """(out, in) of every linear that a LoRA can change, by name."""
        return {name: (linear.out_features, linear.in_features) for name, linear in self.linears.items()}

    def add(self, path: str | Path, strength: float = 1.0) -> str:
        """Adds a file and returns the name it goes by: the file's, with a number where that is taken.

        strength may be negative. Raises LoraError, KeyMismatch or WeightsError, and MergeError during a run;
        then nothing has changed.
        """
        strength = checked_strength(strength)
        check_slot(path, "lora")
        self.refuse_during_a_run()
        lora = read_lora(path, self.shapes)
        taken = {each.name for each in self.added}
        stem = Path(path).stem
        name = next(n for n in (stem, *(f"{stem}-{i}" for i in range(2, len(taken) + 3))) if n not in taken)
        self.change((*self.added, Added(name, strength, lora, sha256_of(path))), lora.pairs)
        return name

    def remove(self, name: str | None = None) -> None:
        """Removes one by name, or all. Raises LoraError for a name that is not there."""
        self.refuse_during_a_run()
        gone = [each for each in self.added if name in (None, each.name)]
        if name is not None and not gone:
            there = ", ".join(each.name for each in self.added) or "none"
            raise LoraError(f"there is no LoRA {name!r} to remove; added are: {there}")
        left = tuple(each for each in self.added if each not in gone)
        self.change(left, {module for each in gone for module in each.lora.pairs})

    def refuse_during_a_run(self) -> None:
        if is_merged(self.model):
            raise MergeError("a run is under way with the adapter in the weights; change LoRAs after it")

    def change(self, added: tuple[Added, ...], modules: Iterable[str]) -> None:
        """Makes `added` what the weights carry. modules: those that the change concerns."""
        modules = [module for module in self.linears if module in set(modules)]
        before, self.added = self.added, added
        try:
            for module in modules:
                self.refresh(module)
        except BaseException:  # Ctrl-C and no memory left, too: what was there is there again
            self.added = before
            for module in modules:
                self.refresh(module)
            raise

    def refresh(self, module: str) -> None:
        """Puts the sum of all that is added into one linear, or its own parameter back."""
        linear = self.linears[module]
        pairs = [
            (each.lora.pairs[module], each.strength)
            for each in self.added
            if each.strength and module in each.lora.pairs and each.lora.pairs[module].b.any()
        ]
        if not pairs:
            if (original := self.originals.pop(module, None)) is not None:
                # The model may have moved since; another device holds the same bits.
                original.data = original.data.to(linear.weight.device)
                linear.weight = original
                if is_float8(linear):
                    linear.beside = ()
            return
        if module not in self.originals:
            if getattr(linear.weight, "carries_lora", False) or getattr(linear, "beside", ()):
                raise LoraError("another pipeline has LoRAs in these weights; remove them there first")
            self.originals[module] = linear.weight
        if is_float8(linear):
            visits = getattr(self.model, "visits", None)  # the weight may live away from where it computes
            device = linear.weight.device if visits is None else visits.device
            linear.beside = tuple(at_strength(pair, strength, device) for pair, strength in pairs)
            return
        total = summed(self.originals[module], pairs, linear.weight.device)
        linear.weight = nn.Parameter(total, requires_grad=False)
        linear.weight.carries_lora = True


@torch.no_grad()
def summed(weight: Tensor, pairs: Iterable[tuple[LowRank, float]], device: torch.device) -> Tensor:
    """Returns weight + Σ strength · scale · B A, (out, in), summed in fp32, in the weight's dtype."""
    total = weight.to(device, torch.float32)
    for pair, strength in pairs:
        a, b = (matrix.to(device, torch.float32) for matrix in (pair.a, pair.b))
        total = torch.addmm(total, b, a, alpha=pair.scale * strength)
    return total.to(weight.dtype)


def at_strength(pair: LowRank, strength: float, device: torch.device) -> LowRank:
    return LowRank(pair.a.to(device), pair.b.to(device), pair.scale * strength)


def linears_of(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def checked_strength(strength: float) -> float:
    """Returns it as a float. Raises LoraError."""
    try:
        value = float(strength)
    except (TypeError, ValueError):
        value = math.nan
    if not abs(value) <= MAX_STRENGTH:
        raise LoraError(
            f"the strength of a LoRA is {strength!r}; it must be a number from -{MAX_STRENGTH:g} to "
            f"{MAX_STRENGTH:g}, 1 being as trained"
        )
    return value


def file_and_strength(text: str) -> tuple[str, float]:
    """Returns ("a.safetensors", 0.8) of "a.safetensors:0.8", and strength 1 where none is given."""
    path, _, tail = text.rpartition(":")
    if path and not Path(text).exists():
        try:
            strength = float(tail)
        except ValueError:  # the colon belongs to the path
            return text, 1.0
        return path, checked_strength(strength)
    return text, 1.0


def sha256_of(path: str | Path) -> str:
    """Returns the sha256 (hex) of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
