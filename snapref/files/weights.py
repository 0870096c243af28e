"""Tensors to a safetensors file, never leaving a half-written one behind."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def save_weights(
    tensors: Mapping[str, Tensor],
    path: str | Path,
    dtype: torch.dtype | None = torch.float16,
    metadata: dict[str, str] | None = None,
) -> None:
    """Write aside, then rename. Floating tensors are stored as `dtype` (None keeps each one's own)."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {
        name: (t.to(dtype) if dtype and t.is_floating_point() else t).detach().cpu().contiguous().clone()
        for name, t in tensors.items()
    }
    try:
        save_file(stored, aside, metadata=metadata)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
