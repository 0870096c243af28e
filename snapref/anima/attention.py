"""Attention over a sequence's own keys and any number of remembered groups of keys."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    tokens: Tensor | None = None  # bool (t,), on the CPU: the tokens of those rows that read it; None: all
    scales: tuple[Tensor, Tensor] | None = None  # (g, n, r, 1) each: what fp8 keys and values are multiplied by

    def wide(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values in a dtype that can be computed with; the same tensors where they are in it already."""
        if self.scales is None:
            return self.k.to(dtype), self.v.to(dtype)
        k, v = (side.to(scale.dtype).mul_(scale) for side, scale in zip((self.k, self.v), self.scales, strict=True))
        return k.to(dtype), v.to(dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, groups: Sequence[KeyGroup] = ()) -> Tensor:
    """softmax over own and remembered keys together, times the values: (b, n, t, d).

    q, k, v: (b, n, t, d). Every row gets what it would get in a batch by itself, every token what it would
    get if all tokens read the groups that it reads.
    Raises ValueError if a group fits neither the heads nor the rows and tokens that are to read it.
    """
    # No keys, or keys of weight 0: dropped, for a zero-length key set kills the process in the fused CPU
    # kernel.
    groups = [g for g in groups if g.k.shape[2] and g.log_weight > -math.inf and g.rows != ()]
    if not groups:
        return F.scaled_dot_product_attention(q, k, v)
    for group in groups:
        check_group(group, q)
    if all(group.rows is None for group in groups):
        return attend_by_token(q, k, v, groups)

    readers: dict[tuple[int, ...], list[int]] = {}  # which groups → the rows that read exactly those
    for row in range(len(q)):
        seen = tuple(i for i, g in enumerate(groups) if g.rows is None or row in g.rows)
        readers.setdefault(seen, []).append(row)
    out = torch.empty_like(q)
    for seen, rows in readers.items():
        at = run_of(rows)
        out[at] = attend_by_token(q[at], k[at], v[at], [for_rows(groups[i], rows) for i in seen])
    return out


def run_of(rows: list[int]) -> slice | list[int]:
    """Neighbouring rows as a slice: a view, where a list is a copy, and on a GPU a wait, in every block."""
    return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else rows


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
    if group.tokens is not None and (group.tokens.dtype, *group.tokens.shape) != (torch.bool, q.shape[2]):
        raise ValueError(
            f"remembered keys are for {group.tokens.dtype} {tuple(group.tokens.shape)} of the tokens, this "
            f"picture has {q.shape[2]}: give ({q.shape[2]},) bools"
        )


def for_rows(group: KeyGroup, rows: list[int]) -> KeyGroup:
    """The same group for a batch that holds only `rows`, all of which read it."""
    if len(group.k) == 1:
        return replace(group, rows=None)
    own = rows if group.rows is None else [group.rows.index(row) for row in rows]
    scales = group.scales and tuple(scale[own] for scale in group.scales)
    return replace(group, k=group.k[own], v=group.v[own], rows=None, scales=scales)


def attend_by_token(q: Tensor, k: Tensor, v: Tensor, groups: Sequence[KeyGroup]) -> Tensor:
    """`attend` where every row reads every group, but some groups are read by some tokens only.

    Tokens that read the same groups are one batch of queries of a fused attention: no mask, and no work for
    keys that a token does not read.
    """
    if all(group.tokens is None for group in groups):
        return attend_together(q, k, v, groups)
    out = torch.empty_like(q)
    for seen, tokens in token_classes(groups, q.shape[2]):
        read = [groups[i] for i in seen]
        if len(tokens) == q.shape[2]:
            return attend_together(q, k, v, read)
        at = tokens.to(q.device, non_blocking=True)  # a wait here would make a GPU idle in every block
        out.index_copy_(2, at, attend_together(q.index_select(2, at), k, v, read))
    return out


def token_classes(groups: Sequence[KeyGroup], count: int) -> list[tuple[list[int], Tensor]]:
    """Which of `count` tokens read the same groups: [(numbers of the groups, numbers of the tokens)]."""
    bounded = [(i, group.tokens) for i, group in enumerate(groups) if group.tokens is not None]
    codes = torch.zeros(count, dtype=torch.int64)  # bit j: the token reads the j-th bounded group
    for bit, (_, tokens) in enumerate(bounded):
        codes += tokens.cpu().long() << bit
    classes = []
    for code in codes.unique().tolist():
        unread = {i for bit, (i, _) in enumerate(bounded) if not code >> bit & 1}
        classes.append(([i for i in range(len(groups)) if i not in unread], (codes == code).nonzero()[:, 0]))
    return classes


def attend_together(q: Tensor, k: Tensor, v: Tensor, groups: Sequence[KeyGroup]) -> Tensor:
    """`attend` where every row reads every group."""
    parts: dict[float, list[Sequence[Tensor]]] = {0.0: [(k, v)]}  # log weight → keys that carry it
    for group in groups:
        pair = [side.expand(len(q), -1, -1, -1) for side in group.wide(k.dtype)]
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
