"""The trained tagger, ready to score samples."""

from pathlib import Path

import torch

from snapref.files.loader import build, read_tensors
from snapref.files.nano import nano_file
from snapref.training.tagger import Tagger

__all__ = ["Tagger", "load_tagger"]


def load_tagger(folder: str | Path | None = None) -> Tagger:
    """The shipped tagger, in evaluation mode. Raises WeightsError where its file is missing."""
    path = nano_file("tagger.safetensors", folder)
    return build(Tagger, read_tensors(path), path, torch.float32)
