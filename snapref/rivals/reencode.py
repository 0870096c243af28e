"""The road without a memory: the reference goes through the model anew at every step.

Nothing that it reads changes from step to step, so the numbers are those of `OffsetFrame`, to the bit in fp32
and bf16 (fp16 models read a reference in fp32 before they remember it). What it takes longer is what
remembering saves.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from snapref.anima.model import AnimaDiT
from snapref.reference.branches import Adapter
from snapref.reference.encode import joint_velocity


@dataclass(frozen=True)
class Reencode:
    model: AnimaDiT
    adapter: Adapter
    reference: Tensor  # clean latent (1, 16, 1, h, w)
    caption: Tensor  # (1, k, c), what the reference hears

    @torch.no_grad()
    def velocity(self, noisy: Tensor, sigma: Tensor, context: Tensor, reads: bool = True) -> Tensor:
        """See `rivals.Route`; the pass that does not read does not encode either."""
        reference = self.reference if reads else None
        return joint_velocity(self.model, self.adapter, noisy, sigma, context, reference, self.caption)
