"""The road without a memory: the reference goes through the model anew at every step.

Nothing that it reads changes from step to step, so the numbers are those of `OffsetFrame` to the bit. What
it takes longer is what remembering saves.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from snapref.anima.model import AnimaDiT
from snapref.reference.branches import Adapter
from snapref.rivals.offset_frame import read_at


@dataclass(frozen=True)
class Reencode:
    model: AnimaDiT
    adapter: Adapter
    reference: Tensor  # clean latent (1, 16, 1, h, w)
    caption: Tensor  # (1, k, c), what the reference hears

    @torch.no_grad()
    def velocity(self, noisy: Tensor, sigma: Tensor, context: Tensor, reads: bool = True) -> Tensor:
        """See `rivals.Route`; the pass that does not read does not encode either."""
        if not reads:
            return self.model(noisy, sigma, context, branch=self.adapter.target)
        place = self.adapter.config.place
        remembered = read_at(self.model, self.adapter, self.reference, self.caption, place)
        return remembered.velocity(noisy, sigma, context)
