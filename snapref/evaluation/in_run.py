"""Where the time of a call goes, seen in the call itself: its matrix products and attentions, and everything else.

Two measurements minutes apart differ by more, on a shared machine, than what is to be told apart. A product and the
work around it lie within the same seconds, and whatever slows the machine slows both.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from snapref.anima import attention, block
from snapref.evaluation.floor import Product

# Of aten's operators those that do the arithmetic; linear, matmul and attention arrive as calls of these.
SUMMED = ("addmm", "addmm_")
MATRIX = ("mm", "bmm", *SUMMED)
ATTENTION = "_scaled_dot_product_"


@dataclass(frozen=True)
class Operator:
    """One call of an operator that calls no further one."""

    name: str
    part: str  # of the block that it belongs to: "attend", "read" within it, "project", or "" for the rest
    sizes: tuple[tuple[int, ...], ...]  # of its tensors
    seconds: float

    @property
    def is_attention(self) -> bool:
        return self.name.startswith(ATTENTION)

    @property
    def is_product(self) -> bool:
        return self.name in MATRIX or self.is_attention

    @property
    def product(self) -> Product | None:
        """What it computes, as far as `floor` knows it; of matrix products the direction is not told apart."""
        if self.is_attention:
            back = "backward" in self.name
            (b, n, t, d), (_, _, r, _) = self.sizes[back : back + 2]
            return Product("attend_back" if back else "attend", t, r, b * n, d)
        if self.name in MATRIX:
            (*batch, m, k), (*_, n) = self.sizes[self.name in SUMMED :][:2]
            return Product("forward", m * (batch[0] if batch else 1), k, n)
        return None


@dataclass
class InRun:
    """One call: its seconds by the clock, and the operators seen in it."""

    seconds: float = 0.0
    operators: list[Operator] = field(default_factory=list)

    def time(self, wanted: Callable[[Operator], bool]) -> float:
        return sum(operator.seconds for operator in self.operators if wanted(operator))

    @property
    def products(self) -> float:
        """Seconds of all matrix products and attentions."""
        return self.time(lambda operator: operator.is_product)

    @property
    def flops(self) -> int:
        """Done by all matrix products and attentions."""
        return sum(operator.product.flops for operator in self.operators if operator.is_product)


PARTS = [""]  # the last one is where the program is


class Watch(TorchDispatchMode):
    """Notes every operator. A GPU is waited for after each, or its time would be another's."""

    def __init__(self, found: InRun, on_gpu: bool):
        super().__init__()
        self.found, self.on_gpu = found, on_gpu

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        begun = time.perf_counter()
        answer = function(*arguments, **(options or {}))
        if self.on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begun
        sizes = tuple(tuple(side.shape) for side in arguments if isinstance(side, Tensor))
        self.found.operators.append(Operator(function.overloadpacket.__name__, PARTS[-1], sizes, seconds))
        return answer


@contextmanager
def seen(device: torch.device | None = None) -> Iterator[InRun]:
    """The yielded InRun holds what was seen, its seconds when the block is left."""
    found = InRun()
    begun = time.perf_counter()
    with Watch(found, device is not None and device.type == "cuda"):
        yield found
    found.seconds = time.perf_counter() - begun


@contextmanager
def labelled() -> Iterator[None]:
    """Within it `seen` tells the blocks' self-attentions, what those read besides their own, and projections."""

    def under(name: str, function):
        def call(*arguments):
            PARTS.append(name)
            try:
                return function(*arguments)
            finally:
                PARTS.pop()
        return call

    plain = block.attend
    named = under("attend", plain)
    with ExitStack() as stack:
        # Cross-attention reads text alone, with no groups: no branch and no reference changes it.
        of_picture = lambda q, k, v, *groups: (named if groups else plain)(q, k, v, *groups)  # noqa: E731
        stack.enter_context(patch.object(block, "attend", of_picture))
        stack.enter_context(patch.object(block, "project", under("project", block.project)))
        stack.enter_context(patch.object(attention, "read_into", under("read", attention.read_into)))
        yield
