"""Attention over a sequence's own keys and any number of remembered groups of keys."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class KeyGroup:
    """Keys and values that a self-attention reads besides its own, for instance one reference picture's."""

    k: Tensor  # (g, n, r, d) after norm and RoPE; g = number of rows that read it, or 1 if they share it
    v: Tensor  # (g, n, r, d)
    log_weight: float = 0.0  # added to the logits of these keys: log 2 acts as if every key stood there twice
    rows: tuple[int, ...] | None = None  # the batch rows that read it; None: every row


def attend(q: Tensor, k: Tensor, v: Tensor, groups: Sequence[KeyGroup] = ()) -> Tensor:
    """softmax over own and remembered keys together, times the values: (b, n, t, d).

    q, k, v: (b, n, t, d). Every row gets what it would get in a batch by itself.
    Raises ValueError if a group fits neither the heads nor the rows that are to read it.
    """
    # No keys, or keys of weight 0: dropped, for a zero-length key set kills the process in the fused CPU
    # kernel.
    groups = [g for g in groups if g.k.shape[2] and g.log_weight > -math.inf and g.rows != ()]
    if not groups:
        return F.scaled_dot_product_attention(q, k, v)
    for group in groups:
        check_group(group, q)
    if all(group.rows is None for group in groups):
        return attend_together(q, k, v, groups)

    readers: dict[tuple[int, ...], list[int]] = {}  # which groups → the rows that read exactly those
    for row in range(len(q)):
        seen = tuple(i for i, g in enumerate(groups) if g.rows is None or row in g.rows)
        readers.setdefault(seen, []).append(row)
    outputs = []
    for seen, rows in readers.items():
        outputs.append(attend_together(q[rows], k[rows], v[rows], [for_rows(groups[i], rows) for i in seen]))
    order = torch.tensor([row for rows in readers.values() for row in rows], device=q.device)
    return torch.cat(outputs)[order.argsort()]


def check_group(group: KeyGroup, q: Tensor) -> None:
    rows = len(q) if group.rows is None else len(group.rows)
    if group.k.shape[1::2] != q.shape[1::2]:
        raise ValueError(
            f"remembered keys have {group.k.shape[1]} heads of width {group.k.shape[3]}, the model has "
            f"{q.shape[1]} of {q.shape[3]}: encode the reference again with this model"
        )
    if len(group.k) not in (1, rows):
        raise ValueError(
            f"remembered keys have {len(group.k)} rows, {rows} batch rows read them: give {rows} rows, or 1"
        )
    if group.rows and not ({*group.rows} <= {*range(len(q))} and len({*group.rows}) == rows):
        raise ValueError(f"rows {group.rows} are not distinct rows of a batch of {len(q)}: count from 0")


def for_rows(group: KeyGroup, rows: list[int]) -> KeyGroup:
    """The same group for a batch that holds only `rows`, all of which read it."""
    if len(group.k) == 1:
        return KeyGroup(group.k, group.v, group.log_weight)
    own = rows if group.rows is None else [group.rows.index(row) for row in rows]
    return KeyGroup(group.k[own], group.v[own], group.log_weight)


def attend_together(q: Tensor, k: Tensor, v: Tensor, groups: Sequence[KeyGroup]) -> Tensor:
    """`attend` where every row reads every group."""
    parts: dict[float, list[tuple[Tensor, Tensor]]] = {0.0: [(k, v)]}  # log weight → keys that carry it
    for group in groups:
        shape = (len(q), -1, -1, -1)
        pair = group.k.to(k.dtype).expand(shape), group.v.to(v.dtype).expand(shape)
        parts.setdefault(group.log_weight, []).append(pair)
    joined = {
        weight: [torch.cat(side, dim=2) for side in zip(*pairs, strict=True)]
        for weight, pairs in parts.items()
    }
    if len(joined) == 1:
        return F.scaled_dot_product_attention(q, *joined[0.0])
    results = [(*attention_with_lse(q, *pair), weight) for weight, pair in joined.items()]
    return merge(results).to(q.dtype)


def merge(results: Sequence[tuple[Tensor, Tensor, float]]) -> Tensor:
    """Several attentions of the same queries as one softmax over all their keys, fp32: (b, n, t, d).

    Each result is (out (b, n, t, d), log-sum-exp of its logits (b, n, t), log weight):
    Σ softmax_i(lse_i + log w_i) · out_i. Half precision would lose the small shares.
    """
    shares = torch.stack([lse.float() + weight for _, lse, weight in results]).softmax(dim=0)
    total = torch.zeros_like(results[0][0], dtype=torch.float32)
    for share, (out, _, _) in zip(shares, results, strict=True):
        total = torch.addcmul(total, share[..., None], out.float())
    return total


def attention_with_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention and the log-sum-exp of its logits: (b, n, t, d), (b, n, t) fp32.

    The one place that touches torch's private kernels. None of them gives a gradient through the log-sum-exp,
    and other devices have no such kernel: both take the plain road.
    """
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    aten = torch.ops.aten
    if needs_grad or q.device.type not in ("cpu", "cuda"):
        return plain_attention_with_lse(q, k, v)
    if q.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False)
    ampere = torch.cuda.get_device_capability(q.device) >= (8, 0)
    if ampere and q.dtype != torch.float32 and q.shape[3] % 8 == 0:
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False)[:2]
    out, lse = aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[:2]
    return out, lse[..., : q.shape[2]]  # this kernel pads the log-sum-exp to a multiple of 32


def plain_attention_with_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """`attention_with_lse` written out: slower, keeps all logits in memory, has gradients everywhere."""
    logits = (q.float() @ k.float().transpose(-1, -2)) * q.shape[-1] ** -0.5  # (b, n, t, r)
    lse = logits.logsumexp(dim=-1)
    return ((logits - lse[..., None]).exp() @ v.float()).to(q.dtype), lse
