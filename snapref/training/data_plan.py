"""What a set of self-drawn pictures costs before any training: drawing and preparing, counted operation by operation.

As in `footprint`, the very modules run on tensors without content. Prompts are left out: at full size one is about a
tenth of a TFLOP.
"""

from dataclasses import dataclass, replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from snapref.anima.model import AnimaDiT
from snapref.config import ModelConfig
from snapref.sampling.memory import new_codec
from snapref.sampling.working import bare, dressed
from snapref.training.datagen import NANO_STEPS
from snapref.training.footprint import Watcher


@dataclass(frozen=True)
class DataPlan:
    """TFLOP of a picture, and the hours of one card for all of them."""

    pictures: int
    drawing: float  # all steps with guidance, and decoding
    preparing: float  # encoding: a target of about the usual area is its own reference
    drawing_hours: float
    preparing_hours: float

    def __str__(self) -> str:
        return (
            f"data, computed at the same rate: {self.pictures:,} pictures, each {self.drawing:.4g} TFLOP to draw and "
            f"{self.preparing:.2g} to prepare, in {self.drawing_hours:.1f} and {self.preparing_hours:.1f} card hours"
        )


def plan_data(model: ModelConfig, pictures: int, tflops: float, blocks: tuple[int, int] = (2, 4)) -> DataPlan:
    """Pictures of the model's own size, drawn as `snapref datagen` does unless told otherwise.

    tflops: what a card reaches. Raises ValueError for a number of pictures below 1.
    """
    if pictures < 1:
        raise ValueError(f"pictures is {pictures}; it must be at least 1")
    steps = NANO_STEPS if model.name == "nano" else model.default_steps
    few, more = (forward_flops(model, count) for count in blocks)
    forward = few + (more - few) * (model.dit.blocks - blocks[0]) / (blocks[1] - blocks[0])
    encode, decode = codec_flops(model)
    drawing, preparing = (steps * 2 * forward + decode) / 1e12, encode / 1e12  # guidance: two branches
    hours = [tera * pictures / tflops / 3600 for tera in (drawing, preparing)]
    return DataPlan(pictures, drawing, preparing, *hours)


@torch.no_grad()
def forward_flops(model: ModelConfig, blocks: int) -> int:
    """Of one velocity of one picture, without a reference."""
    small = replace(model, text=None, dit=replace(model.dit, blocks=blocks))
    undressed = bare(lambda: AnimaDiT(small))
    with FakeTensorMode(), sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        dit, context = dressed(undressed), torch.randn(1, model.text.context_rows, model.dit.context_width)
        with Watcher() as watcher:
            dit(torch.randn(latent_shape(model)), torch.rand(1), context)
    return watcher.flops


@torch.no_grad()
def codec_flops(model: ModelConfig) -> tuple[int, int]:
    """Of encoding and of decoding one picture."""
    found, undressed = [], bare(lambda: new_codec(model))
    with FakeTensorMode():
        codec = dressed(undressed)
        pixels, latent = torch.rand(1, 3, *model.default_size), torch.randn(latent_shape(model))
        for work, value in ((codec.encode, pixels), (codec.decode, latent)):
            with Watcher() as watcher:
                work(value)
            found.append(watcher.flops)
    return found[0], found[1]


def latent_shape(model: ModelConfig) -> tuple[int, ...]:
    return (1, model.dit.latent_channels, 1, *(side // model.codec.factor for side in model.default_size))
