"""Weights that live at home, in host memory or in a mapped file, and visit the device only while they are used.

    model.visits = Visits(device, dtype)      # the blocks of a DiT, one after the other
    send_home(codec, device, torch.float32)   # a module that is called now and then: the codec between pictures
    with at_work(codec): …

Whatever lives at home keeps its dtype there: a bf16 file that is computed with in fp32 takes no memory of its
own in fp32 beyond what is visiting. A run gives the same bits as one whose weights never move.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from snapref.anima.linear import FLOAT8
from snapref.anima.lowrank import Branch, added

# (the module that holds a tensor, its name there) -> the tensor
Brought = dict[tuple[nn.Module, str], Tensor]


class Visits:
    """The blocks of a model, each on `device` and in `dtype` for the time of its own call.

    On a GPU the next block travels while one computes, so two are there at most. `branch` is added to the
    weights of every visitor: merged, without a merged copy at home. `bytes_moved` counts what came in.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype):
        self.device, self.dtype = torch.device(device), dtype
        self.branch: Branch | None = None
        self.bytes_moved = 0

    def __call__(self, blocks: Sequence[nn.Module]) -> Iterator[nn.Module]:
        """Yields every block, ready to compute; it goes home when the next one is asked for."""
        gpu = self.device.type == "cuda"
        here = torch.cuda.current_stream(self.device) if gpu else None
        road = torch.cuda.Stream(self.device) if gpu else None
        if gpu:
            road.wait_stream(here)
        coming = self.fetch(blocks, 0, road)
        before = None  # when the block before last had finished
        for i, block in enumerate(blocks):
            brought, coming = coming, None
            if gpu:
                here.wait_stream(road)
                for tensor in brought.values():
                    tensor.record_stream(here)
            with exchanged(brought):
                del brought
                yield block
            if gpu:
                # The host runs ahead of the GPU: without this wait all blocks would be on their way at once.
                if before is not None:
                    before.synchronize()
                before = here.record_event()
            if i + 1 < len(blocks):
                coming = self.fetch(blocks, i + 1, road)

    def fetch(self, blocks: Sequence[nn.Module], index: int, road) -> Brought:
        with torch.cuda.stream(road):  # None: no stream, nothing changes
            brought = bring(blocks[index], self.device, self.dtype)
            for name, low_rank in (self.branch[index] if self.branch else {}).items():
                place = blocks[index].get_submodule(name), "weight"
                if brought[place].dtype not in FLOAT8:  # those carry it beside them
                    brought[place] = added(brought[place], low_rank)
        self.bytes_moved += sum(tensor.nbytes for tensor in brought.values())
        return brought


def send_home(module: nn.Module, device: torch.device, dtype: torch.dtype, by_layer: bool = False) -> nn.Module:
    """The same module, which from now on computes on `device` in `dtype` inside `at_work` only.

    by_layer: not the whole of it comes then, but every layer for the time of its own call; an embedding is looked
    up in its home's dtype. For modules whose weights are read by their own layers alone.
    """
    module.works_at = (torch.device(device), dtype)
    module.visits_by_layer = by_layer
    return module


def device_of(module: nn.Module) -> torch.device:
    """Where a module computes, wherever its weights live."""
    place = getattr(module, "works_at", None)
    return place[0] if place else next(module.parameters()).device


def dtype_of(module: nn.Module) -> torch.dtype:
    """What a module computes in, whatever its weights are stored in."""
    place = getattr(module, "works_at", None)
    return place[1] if place else next(module.parameters()).dtype


@contextmanager
def at_work(module: nn.Module):
    """Within this block a module that was sent home is on its device; any other one is where it always is."""
    place = getattr(module, "works_at", None)
    if place is None or getattr(module, "is_at_work", False):  # an inner `at_work` finds it there
        yield module
        return
    module.is_at_work = True
    try:
        with visiting_layers(module, *place) if module.visits_by_layer else exchanged(bring(module, *place)):
            yield module
    finally:
        module.is_at_work = False


@contextmanager
def visiting_layers(module: nn.Module, device: torch.device, dtype: torch.dtype):
    """Within this block every layer that holds tensors brings them for its own call; the module's own are there."""
    inside = [part for part in module.modules() if part is not module]
    layers = [part for part in inside if any(t is not None for t in own_tensors(part).values())]
    before = {layer: vars(layer)["forward"] for layer in layers if "forward" in vars(layer)}

    def visiting(layer: nn.Module, compute):
        lookup = isinstance(layer, nn.Embedding)  # casting what was looked up is casting before, of far less

        def forward(*inputs, **options):
            with exchanged(bring(layer, device, None if lookup else dtype, recurse=False)):
                found = compute(*inputs, **options)
            return found.to(dtype) if lookup else found

        return forward

    try:
        for layer in layers:
            layer.forward = visiting(layer, layer.forward)
        with exchanged(bring(module, device, dtype, recurse=False)):
            yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)
            if layer in before:
                layer.forward = before[layer]


@torch.no_grad()
def bring(module: nn.Module, device: torch.device, dtype: torch.dtype | None, recurse: bool = True) -> Brought:
    """All tensors of a module on a device, cast there; those that need neither are the module's own.

    fp8 weights and their scales keep their dtypes (`Float8Linear`), integers too; dtype None keeps all.
    recurse: those of its parts too.
    """
    brought = {}
    for part in module.modules() if recurse else (module,):
        for name, tensor in own_tensors(part).items():
            if tensor is None:
                continue
            kept = tensor.dtype in FLOAT8 or name == "weight_scale" or not tensor.is_floating_point()
            moved = tensor.detach().to(device, non_blocking=True)
            brought[part, name] = moved if kept or dtype is None else moved.to(dtype)
    return brought


def own_tensors(part: nn.Module) -> dict[str, Tensor | None]:
    """Parameters and buffers that a module holds itself."""
    return {**part._parameters, **part._buffers}


@contextmanager
def exchanged(brought: Brought):
    """Within this block modules hold these tensors; afterwards the very objects that they held before."""
    homes = []
    for (part, name), tensor in brought.items():
        own = part._parameters if name in part._parameters else part._buffers
        homes.append((own, name, own[name]))
        own[name] = nn.Parameter(tensor, requires_grad=False) if own is part._parameters else tensor
    brought.clear()
    try:
        yield
    finally:
        for own, name, home in homes:
            own[name] = home
