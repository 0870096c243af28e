"""What a training step needs, found by running it on tensors without content: bytes alive at once, and arithmetic.

The very modules of the training run, forward and backward, under torch's fake tensors: shapes and lifetimes are the
real ones, nothing is computed and nothing allocated.
"""

import weakref
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from snapref.anima.model import AnimaDiT
from snapref.config import AdapterConfig, ModelConfig
from snapref.reference.branches import Adapter
from snapref.reference.encode import joint_velocity
from snapref.training.flow import velocity_loss
from snapref.training.recompute import recomputed


@dataclass(frozen=True)
class Footprint:
    """Of one forward and backward, in bytes and floating-point operations; weights are not counted."""

    kept: int  # alive between forward and backward, for the backward
    peak: int  # most that was alive at any time, gradients included
    gradients: int
    flops: int


class Watcher(TorchDispatchMode):
    """Counts the storages that are born and die, and the arithmetic of matrix products and attention.

    weights: tensors that are there already; views of them are not born.
    """

    def __init__(self, weights=()):
        super().__init__()
        self.now = self.peak = self.flops = 0
        self._weights = {weight.untyped_storage()._cdata for weight in weights}
        self._alive: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.flops += flops_of(func, args, kwargs, out)
        for value in tree_leaves(out):
            if isinstance(value, Tensor):
                self._born(value.untyped_storage())
        return out

    def _born(self, storage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive or key in self._weights:
            return
        def died(_):
            self.now -= size
            del self._alive[key]
        self._alive[key] = weakref.ref(storage, died)
        self.now += size
        self.peak = max(self.peak, self.now)


def flops_of(func, args, kwargs, out) -> int:
    """Multiplications and additions of an operation; 0 for what is neither a matrix product nor attention."""
    aten, packet = torch.ops.aten, func.overloadpacket
    if packet is aten._scaled_dot_product_flash_attention_for_cpu:
        return sdpa_flop_count(*(x.shape for x in args[:3]))
    if packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return sdpa_backward_flop_count(*(x.shape for x in args[:4]))
    packet = aten.addmm if packet is aten.addmm_ else packet  # the registry knows nothing in place
    return flop_registry[packet](*args, **kwargs, out_val=out) if packet in flop_registry else 0


def step_footprint(
    model: ModelConfig, adapter: AdapterConfig, *, latent: tuple[int, int], reference: tuple[int, int], batch: int = 1,
    context_rows: int = 512, dtype: torch.dtype = torch.bfloat16, recompute: bool = True, unread: bool = True,
    precision: str = "no",
) -> Footprint:
    """Of one process's step on `batch` pairs of `latent` and `reference` sizes (h, w), attention fused.

    unread: without the parameters that get no gradient, as training has it.
    """
    from snapref.training.adapter_task import freeze_unread

    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    cast = torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None and dtype == torch.float32)
    with FakeTensorMode(), sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        with default_dtype(dtype):  # fake weights cannot be cast in place
            dit = AnimaDiT(replace(model, text=None)).requires_grad_(False)
        dit = recomputed(dit) if recompute else dit
        branches = Adapter(adapter, model)
        if unread:
            freeze_unread(branches)
        channels, width = model.dit.latent_channels, model.dit.context_width
        with Watcher([*dit.parameters(), *branches.parameters()]) as watcher:
            clean, noise = (torch.randn(batch, channels, 1, *latent) for _ in range(2))
            context, captions = (torch.randn(batch, context_rows, width) for _ in range(2))
            pictures = torch.randn(batch, channels, 1, *reference)
            with cast:
                velocity = joint_velocity(dit, branches, noise, torch.rand(batch), context, pictures, captions)
            loss = velocity_loss(velocity.float(), clean, noise).mean()
            kept = watcher.now
            loss.backward()
            gradients = sum(p.numel() * p.element_size() for p in branches.parameters() if p.grad is not None)
            return Footprint(kept, watcher.peak, gradients, watcher.flops)


@contextmanager
def default_dtype(dtype: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
