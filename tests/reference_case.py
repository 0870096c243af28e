"""A tiny model with an adapter whose branches both do something: what the tests of the reference share."""

from functools import cache

import torch
from joint_forward import Segment

from snapref.anima.model import AnimaDiT
from snapref.config import AdapterConfig, CodecConfig, DiTConfig, ModelConfig
from snapref.reference.branches import Adapter, linear_shapes

TINY = ModelConfig(
    name="tiny",
    dit=DiTConfig(width=96, heads=3, blocks=3, context_width=48, adaln_rank=32),
    text=None,
    codec=CodecConfig(kind="nano", factor=8),
    default_size=(64, 64),
    default_steps=4,
    default_guidance=3.0,
)
PLACE = (0.0, 20.0, 0.0)
TINY_ADAPTER = AdapterConfig("tiny", 6, 4, 12.0, 2.0, place=PLACE)
WIDE_REACH = AdapterConfig(  # every linear that a branch can reach, the text side included
    "reach",
    6,
    4,
    12.0,
    2.0,
    place=PLACE,
    reference_targets=tuple(linear_shapes(TINY.dit)),
    target_targets=tuple(linear_shapes(TINY.dit)),
)


@cache
def tiny_model(seed: int = 0) -> AnimaDiT:
    """Random weights everywhere, the norms included. Shared between tests: do not write to it."""
    torch.manual_seed(seed)
    model = AnimaDiT(TINY).requires_grad_(False).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.uniform_(0.5, 1.5)
        else:
            weight.mul_(2)  # so that attention is far from uniform
    return model


def tiny_adapter(config: AdapterConfig = TINY_ADAPTER, seed: int = 1) -> Adapter:
    """Both branches with random B, so that a branch that is lost or taken for the other one shows."""
    torch.manual_seed(seed)
    adapter = Adapter(config, TINY).requires_grad_(False)
    for name, weight in adapter.named_parameters():
        if "lora_B" in name:
            weight.normal_(std=0.1)
    return adapter


def noise(*shape, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def latent(height: int, width: int, seed: int) -> torch.Tensor:
    """(1, 16, 1, h, w)."""
    return noise(1, 16, 1, height, width, seed=seed)


def context(rows: int, seed: int) -> torch.Tensor:
    """(1, k, 48); the last third of the rows is zero, as in a padded prompt."""
    c = noise(1, rows, 48, seed=seed)
    c[:, rows - rows // 3 :] = 0
    return c


def segment(latent, sigma, context, adapter: Adapter, side: str, place=(0.0, 0.0, 0.0), **options) -> Segment:
    """One row as a segment of the joint sequence, low-rank matrices straight from the state dict."""
    state = adapter.state_dict()
    lora = {
        name[4:]: (state[f"{name}.lora_A.weight"], state[f"{name}.lora_B.weight"], spec.scale)
        for name, spec in adapter.specs.items()
        if name.startswith(side)
    }
    return Segment(latent[0, :, 0], sigma, context[0], place, lora, **options)
