"""How many bytes a call needs while it computes: it is run on tensors without memory, and what lives is added up.

No formula, which could go stale beside the code that it describes.
"""

import weakref
from collections.abc import Callable

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Living(TorchDispatchMode):
    """Counts the bytes of what operations make and that still lives; `peak` is the most at once."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                self.known.add(tensor.untyped_storage())  # views of weights and arguments are not ours
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage()) not in self.known:
                self.known.add(storage)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.forget, storage.nbytes())
        return result

    def forget(self, size: int) -> None:
        self.now -= size


def working_bytes(make: Callable[[], Callable[[], object]]) -> int:
    """Most bytes alive at once inside a call, its result included. make() builds the call, which is not counted.

    Both run on tensors that have a shape and no memory.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():
        call = make()
        with Living() as living:
            call()
    return living.peak


def bare(make: Callable[[], nn.Module]) -> nn.Module:
    """A module on the meta device, to be `dressed` inside `working_bytes`."""
    with torch.device("meta"):
        return make().eval()


def dressed(module: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The module with tensors of the kind that is current, of its shapes, in `dtype`."""
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                part._parameters[name] = nn.Parameter(torch.empty(weight.shape, dtype=dtype), requires_grad=False)
        for name, weight in part._buffers.items():
            if weight is not None:
                part._buffers[name] = torch.empty(weight.shape, dtype=dtype)
    return module
