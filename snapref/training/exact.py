"""What training computes is what sampling caches: looked at once, with the very tensors of a run, before it begins."""

import torch
from torch import Tensor

from snapref.anima.model import AnimaDiT
from snapref.reference.branches import Adapter
from snapref.reference.encode import encode_reference, joint_velocity
from snapref.training.flow import add_noise

# Largest difference of the two velocities, as a share of their root mean square. In fp16 the cache is read in fp32.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


class NotTheSame(ArithmeticError):
    """A reference read once gives another velocity than the one that training would teach."""


@torch.no_grad()
def check_cached_equals_joint(dit: AnimaDiT, adapter: Adapter, batch: dict, training: AnimaDiT | None = None) -> float:
    """The difference between joint_velocity and encode → cache → forward, relative.

    batch: what the step gets, on the model's device; the first row that reads is taken, and where none does, the first
    of all is made to, for every row has its reference. The branches are filled at
    random first, for new ones change nothing and would hide everything. training: the model as the step calls it,
    where that is another one. Raises NotTheSame.
    """
    rows = (batch["reads"] | ~batch["reads"].any()).nonzero()[:1, 0]
    latent, noise, sigma, context = (batch[name][rows] for name in ("latent", "noise", "sigma", "context"))
    reference, reference_context = batch["reference"][rows], batch["reference_context"][rows]
    noisy, place, full = add_noise(latent, noise, sigma), batch.get("place"), stirred(adapter)
    joint = joint_velocity(
        dit if training is None else training, full, noisy, sigma, context, reference, reference_context, place
    )
    cache = encode_reference(dit, full, [reference], reference_context, place=place)
    cached = dit(noisy, sigma, context, memory=cache.memory(), branch=full.target)
    difference = relative(joint - cached, joint)
    if not difference <= TOLERANCE[dit.dtype]:
        raise NotTheSame(
            f"a cached reference changes the velocity by {difference:.1e} of its size against training with both "
            f"streams together, at most {TOLERANCE[dit.dtype]:.0e} is rounding; what would be learnt is not what is "
            "sampled, so nothing was trained"
        )
    return difference


def stirred(adapter: Adapter, seed: int = 0) -> Adapter:
    """A copy on the same device whose B matrices are filled, so that both branches do something."""
    twin = copied(adapter)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in twin.named_parameters():
        if "lora_B" in name:
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1 * weight.shape[1] ** -0.5)
    return twin


@torch.no_grad()
def copied(adapter: Adapter) -> Adapter:
    """The same adapter in memory of its own."""
    with torch.device("meta"):  # without first values, for it takes the other's
        twin = Adapter(adapter.config, adapter.model, adapter.specs)
    twin.load_state_dict({name: t.detach().clone() for name, t in adapter.state_dict().items()}, assign=True)
    for (_, own), (_, other) in zip(twin.named_parameters(), adapter.named_parameters(), strict=True):
        own.requires_grad_(other.requires_grad)
    return twin


def relative(difference: Tensor, value: Tensor) -> float:
    return (difference.float().square().mean() / value.float().square().mean()).sqrt().item()
