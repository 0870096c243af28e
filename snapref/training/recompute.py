"""Gradient checkpointing: a block's inner values are thrown away after the forward and computed again when needed.

What stays in memory per block is its input and, of the reference, the keys and values that the target reads. The
last product of a block, which nothing but its sum needs, is not computed again: the sum stands outside. The
gradients are the same bit for bit, for the same numbers are computed by the same operations (arXiv 1604.06174).
"""

import copy
from contextlib import nullcontext

import torch
from torch import nn
from torch.backends import cuda
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from snapref.anima.block import Block, gated_sum
from snapref.anima.model import AnimaDiT


class RecomputedBlock(nn.Module):
    """A block whose calls are checkpoints. The block itself is shared, not copied."""

    def __init__(self, block: Block):
        super().__init__()
        self.block = block

    def forward(self, *args, **options):
        return gated_sum(*self._again(self.block.unsummed, args, options))

    def forward_and_offer(self, *args, **options):
        parts, offered = self._again(self.block.unsummed_and_offer, args, options)
        return gated_sum(*parts), offered

    def keys_values(self, *args, **options):
        return self._again(self.block.keys_values, args, options)

    def _again(self, call, args, options):
        if not torch.is_grad_enabled():
            return call(*args, **options)
        # The backward runs outside of the forward's choice of attention kernels, so that is taken along. There is no
        # dropout, so no state of a random generator has to be.
        kernels = allowed_kernels()
        return checkpoint(
            call, *args, use_reentrant=False, preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), sdpa_kernel(kernels)), **options,
        )


def allowed_kernels() -> list[SDPBackend]:
    """The attention kernels that may be used here and now."""
    switches = {
        SDPBackend.FLASH_ATTENTION: cuda.flash_sdp_enabled,
        SDPBackend.EFFICIENT_ATTENTION: cuda.mem_efficient_sdp_enabled,
        SDPBackend.CUDNN_ATTENTION: cuda.cudnn_sdp_enabled,
        SDPBackend.MATH: cuda.math_sdp_enabled,
    }
    return [kernel for kernel, enabled in switches.items() if enabled()]


def recomputed(dit: AnimaDiT) -> AnimaDiT:
    """The same model, its weights shared, with every block a checkpoint."""
    twin = copy.copy(dit)
    twin._modules = {**dit._modules, "blocks": nn.ModuleList(RecomputedBlock(block) for block in dit.blocks)}
    return twin
