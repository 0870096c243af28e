"""The floor of a training step of an adapter: the time of its matrix products and attentions, and nothing else.

Which products belong to a step follows from the sizes, not from our code: every linear forward, its input's gradient
where something before it learns, no gradient of a frozen weight, the four small products of a low-rank pair's
backward, and with gradient checkpointing every block's forward once more. Each distinct product is timed by itself.
Of that second forward ours leaves out each block's last product (`spared_products`), about a twentieth of the whole.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from snapref.config import AdapterConfig, DiTConfig
from snapref.reference.branches import linear_shapes


@dataclass(frozen=True)
class Product:
    """kind: forward x (m, k) · Wᵀ → (m, n); input dy (m, n) · W → (m, k); weight dyᵀ (n, m) · x → (n, k);
    attend and attend_back: m queries, k keys, n heads."""

    kind: str
    m: int
    k: int
    n: int
    head: int = 0  # features per head, of an attention

    @property
    def sides(self) -> tuple[int, int]:
        """Of the matrix that all rows meet."""
        return self.k, self.n

    @property
    def flops(self) -> int:
        if self.kind == "attend":
            return 4 * self.m * self.k * self.n * self.head
        if self.kind == "attend_back":  # logits again, then the gradients of weights, values, queries and keys
            return 10 * self.m * self.k * self.n * self.head
        return 2 * self.m * self.k * self.n


@dataclass(frozen=True)
class Stream:
    """Tokens that go through the blocks with one branch."""

    tokens: int
    keys: int  # that its self-attention reads
    rank: int
    modules: tuple[str, ...]  # that carry the branch
    ends_at_keys: bool  # the last block gives keys and values only


def step_products(
    dit: DiTConfig, adapter: AdapterConfig | None, tokens: int, reference: int, context_rows: int,
    recompute: bool = True,
) -> Counter[Product]:
    """Products of one pair's forward and backward. adapter None: the plain target, its weights frozen, its input not:
    what reading a reference is compared with."""
    if adapter is None:
        streams = [Stream(tokens, tokens, 0, (), False)]
    else:
        streams = [
            Stream(tokens, tokens + reference, adapter.target_rank, adapter.target_targets, False),
            Stream(reference, reference, adapter.reference_rank, adapter.reference_targets, True),
        ]
    products: Counter[Product] = Counter()
    for stream in streams:
        products[Product("forward", stream.tokens, (dit.latent_channels + 1) * dit.patch**2, dit.width)] += 1
        for block in range(dit.blocks):
            last = stream.ends_at_keys and block == dit.blocks - 1
            first = block == 0 and adapter is not None
            forward, backward = block_products(dit, stream, context_rows, first, last)
            products.update({p: c * (1 + recompute) for p, c in forward.items()})
            products.update(backward)
    out = dit.latent_channels * dit.patch**2
    products[Product("forward", tokens, dit.width, out)] += 1
    products[Product("input", tokens, dit.width, out)] += 1
    return products


def spared_products(dit: DiTConfig, tokens: int, reference: int) -> Counter[Product]:
    """Of `step_products` those that `training.recompute` need not do again: nothing but a block's sum needs them."""
    products: Counter[Product] = Counter()
    products[Product("forward", tokens, dit.mlp_ratio * dit.width, dit.width)] += dit.blocks
    products[Product("forward", reference, dit.mlp_ratio * dit.width, dit.width)] += dit.blocks - 1
    products[Product("forward", reference, dit.width, dit.width)] += 1  # the values, of the last block
    return products


def block_products(
    dit: DiTConfig, stream: Stream, context_rows: int, first: bool, last: bool
) -> tuple[Counter[Product], Counter[Product]]:
    """(forward, backward) of a block. first: its input needs no gradient; last: only keys and values are wanted."""
    forward, backward = Counter(), Counter()
    for name, (n, k) in linear_shapes(dit).items():
        of_text = name in ("cross_attn.k_proj", "cross_attn.v_proj")
        if last and name not in ("self_attn.k_proj", "self_attn.v_proj"):
            continue
        m, rank = (context_rows if of_text else stream.tokens), stream.rank if name in stream.modules else 0
        forward[Product("forward", m, k, n)] += 1
        to_input = not of_text and not (first and name in [f"self_attn.{side}_proj" for side in "qkv"])
        if to_input:
            backward[Product("input", m, k, n)] += 1
        if rank:
            forward[Product("forward", m, k, rank)] += 1
            forward[Product("forward", m, rank, n)] += 1
            backward[Product("input", m, rank, n)] += 1
            backward[Product("weight", m, rank, n)] += 1
            backward[Product("weight", m, k, rank)] += 1
            if to_input:
                backward[Product("input", m, k, rank)] += 1
    if not last:
        for keys in (stream.keys, context_rows):
            forward[Product("attend", stream.tokens, keys, dit.heads, dit.head_dim)] += 1
            backward[Product("attend_back", stream.tokens, keys, dit.heads, dit.head_dim)] += 1
    return forward, backward


def flops(products: Counter[Product]) -> int:
    return sum(product.flops * count for product, count in products.items())


class Stopwatch:
    """Seconds of products, each distinct one timed once per round; the best round counts, for a floor is a floor."""

    def __init__(self, dtype: torch.dtype, device: torch.device, rounds: int = 2):
        self.dtype, self.device, self.rounds = dtype, device, rounds
        self._known: dict[Product, float] = {}
        self._calls: dict[Product, Callable[[], object]] = {}

    def seconds(self, products: Counter[Product]) -> float:
        return sum(self.one(product) * count for product, count in products.items())

    def round(self, products: Counter[Product]) -> float:
        """Times each distinct product once, now, and keeps the quickest; returns what all of them take now."""
        self._calls |= {product: self.call(product) for product in products if product not in self._calls}
        found = {product: self._timed(self._calls[product]) for product in products}
        for product, seconds in found.items():
            self._known[product] = min(seconds, self._known.get(product, seconds))
        return sum(found[product] * count for product, count in products.items())

    def one(self, product: Product) -> float:
        if product not in self._known:
            call = self.call(product)
            call()
            self._known[product] = min(self._timed(call) for _ in range(self.rounds))
        return self._known[product]

    def call(self, product: Product):
        def filled(*shape):
            return torch.randn(shape, device=self.device, dtype=self.dtype)

        m, k, n = product.m, product.k, product.n
        if product.kind == "forward":
            x, w = filled(m, k), filled(n, k)
            return lambda: F.linear(x, w)
        if product.kind == "input":
            dy, w = filled(m, n), filled(n, k)
            return lambda: dy @ w
        if product.kind == "weight":
            dy, x = filled(m, n), filled(m, k)
            return lambda: dy.T @ x
        q, keys, values = (filled(1, n, length, product.head) for length in (m, k, k))
        if product.kind == "attend":
            return lambda: F.scaled_dot_product_attention(q, keys, values)
        for x in (q, keys, values):
            x.requires_grad_()
        out = F.scaled_dot_product_attention(q, keys, values)
        dy = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (q, keys, values), dy, retain_graph=True)

    def _timed(self, call) -> float:
        self._wait()
        begun = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - begun

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
