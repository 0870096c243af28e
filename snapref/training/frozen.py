"""The finished parts that a later training stands on, read from a weights folder and frozen."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from snapref.config import NANO
from snapref.files.loader import load_codec, load_qwen
from snapref.training.captions import Captions


class FrozenParts:
    """Codec and language model, in eval mode, without gradients."""

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        self.captions = Captions(folder)
        self.codec = load_codec(folder / "codec.safetensors", NANO.codec, torch.float32)
        self.qwen = load_qwen(folder / "text.safetensors", NANO.text, torch.float32)

    @torch.no_grad()
    def text(self, captions: list[str]) -> dict[str, Tensor]:
        """ids (b, k), ids_mask, source (b, r, c') hidden states, source_mask: what `contexts` takes."""
        ids, ids_mask = self.captions.t5_ids(captions)
        qwen_ids, source_mask = self.captions.qwen_ids(captions)
        source = self.qwen(input_ids=qwen_ids).last_hidden_state
        return {"ids": ids, "ids_mask": ids_mask, "source": source, "source_mask": source_mask}

    @torch.no_grad()
    def latents(self, frames: Tensor) -> Tensor:
        """Latents (b, 16, f, h, w) of uint8 frames (b, f, H, W, 3)."""
        pixels = frames.flatten(0, 1).permute(0, 3, 1, 2).float() / 255
        latent = self.codec.encode(pixels)[:, :, 0]  # (b*f, 16, h, w)
        return latent.unflatten(0, frames.shape[:2]).transpose(1, 2)

    def pictures(self, pictures: list[np.ndarray]) -> Tensor:
        """Latents (b, 16, 1, h, w) of uint8 pictures (H, W, 3) of one size."""
        frames = torch.from_numpy(np.stack(pictures))[:, None]
        return torch.cat([self.latents(part) for part in frames.split(16)])
