"""The reference at a place of its own, read once: this project's road, as a rival among the others.

It is what `Pipeline` does with a reference, with the parts laid open: the place can be any, and the adapter
can be left out, to see what the base alone makes of keys from that place.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from snapref.anima.lowrank import Branch
from snapref.anima.model import AnimaDiT
from snapref.anima.rope import Place
from snapref.reference.branches import Adapter
from snapref.reference.cache import ReferenceCache
from snapref.reference.encode import encode_reference


@dataclass(frozen=True)
class OffsetFrame:
    model: AnimaDiT
    cache: ReferenceCache
    target: Branch | None = None  # the target branch that goes with the cache; None: the base as it is

    def velocity(self, noisy: Tensor, sigma: Tensor, context: Tensor, reads: bool = True) -> Tensor:
        """See `rivals.Route`; the target branch is on in both passes."""
        memory = self.cache.memory() if reads else None
        return self.model(noisy, sigma, context, memory=memory, branch=self.target)


@torch.no_grad()
def read_at(
    model: AnimaDiT, adapter: Adapter, latent: Tensor, context: Tensor, place: Place, adapted: bool = True
) -> OffsetFrame:
    """The route of a clean latent (1, 16, 1, h, w) that is read once, at `place`.

    context: (1, k, c), what the reference hears. adapted False: both branches are left out, and the base
    reads a place that it was never trained on.
    """
    used = adapter if adapted else Adapter(adapter.config, adapter.model, specs={})
    cache = encode_reference(model, used, [latent], context, place=place)
    return OffsetFrame(model, cache, adapter.target if adapted else None)
