"""The finished parts that a later training stands on, read from a weights folder and frozen."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from snapref.anima.codec import NanoCodec
from snapref.anima.qwen import new_qwen
from snapref.config import NANO
from snapref.training.captions import Captions


def read(path: Path) -> dict[str, Tensor]:
    return {name: t.float() if t.is_floating_point() else t for name, t in load_file(path).items()}


class FrozenParts:
    """Codec and language model, in eval mode, without gradients."""

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        self.captions = Captions(folder)
        self.codec = NanoCodec(NANO.codec)
        self.codec.load_state_dict(read(folder / "codec.safetensors"))
        self.qwen = new_qwen(NANO.text)
        self.qwen.load_state_dict({k.removeprefix("model."): v for k, v in read(folder / "text.safetensors").items()})
        for part in (self.codec, self.qwen):
            part.eval().requires_grad_(False)

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
