"""The golden numbers, the tiny model they were made with, and how far two tensors may be apart."""

import dataclasses
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from snapref.anima.model import AnimaDiT
from snapref.config import NANO, DiTConfig
from snapref.files.keys import load_strict, official

FOLDER = Path(__file__).parent / "golden"
TINY = dataclasses.replace(
    NANO,
    name="tiny",
    dit=DiTConfig(width=96, heads=3, blocks=3, context_width=48, adaln_rank=32),
    text=dataclasses.replace(NANO.text, adapter_blocks=2, adapter_heads=4, t5_vocab=96, qwen_width=40),
)


@cache
def golden(name: str) -> dict[str, Tensor]:
    return load_file(FOLDER / f"{name}.safetensors")


def tiny_model(dtype: torch.dtype = torch.float32) -> AnimaDiT:
    model = AnimaDiT(TINY)
    load_strict(model, official(golden("tiny_anima_state_dict")), "the golden weights")
    return model.to(dtype).eval().requires_grad_(False)


def apart(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected value."""
    return ((found.float() - expected.float()).abs().max() / expected.float().abs().max()).item()
