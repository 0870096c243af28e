"""What prepared data were made with, so that they are never trained on with another base."""

import hashlib

import torch
from torch import nn

from snapref.reference.fingerprint import hash_tensors
from snapref.sampling.pipeline import Pipeline


def origin(pipe: Pipeline) -> tuple[str, dict[str, str]]:
    """(one sha256 of all, and of each part): language model, LLM adapter and codec."""
    parts = {"qwen": pipe.text.qwen, "llm_adapter": pipe.text.adapter, "codec": pipe.codec}
    prints = {name: print_of(part) for name, part in parts.items()}
    return hashlib.sha256("|".join(prints.values()).encode()).hexdigest(), prints


def print_of(module: nn.Module) -> str:
    """sha256 of a module's weights as bf16: the same for a base that is loaded in bf16 and in fp32."""
    state = sorted(module.state_dict().items())
    return hash_tensors((n, t.to(torch.bfloat16) if t.is_floating_point() else t) for n, t in state)
