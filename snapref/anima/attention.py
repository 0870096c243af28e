"""Attention over a sequence's own keys and any number of remembered groups of keys."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

HEADS_WIDENED = 4  # at once, of a group in fp8, on a CPU


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
        return tuple(times(*pair).to(dtype) for pair in zip((self.k, self.v), self.scales, strict=True))

    def of_heads(self, at: slice) -> "KeyGroup":
        """The group of some heads, which shares its memory."""
        scales = self.scales and tuple(scale[:, at] for scale in self.scales)
        return replace(self, k=self.k[:, at], v=self.v[:, at], scales=scales)

    def spread(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values for the rows of q, which all read the group; no copy where they are in q's dtype."""
        k, v = self.wide(q.dtype)
        return k.expand(len(q), -1, -1, -1), v.expand(len(q), -1, -1, -1)


def times(numbers: Tensor, scale: Tensor) -> Tensor:
    """fp8 numbers (e4m3, finite) times their scale, in the scale's dtype, fp32.

    Shifted by one place around the sign, e4m3 is fp16 without its factor of 2⁸, also below the normal numbers.
    Three passes over small integers: on a CPU a seventh of the time of the cast.
    """
    shifted = numbers.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~0x4000)
    return shifted.view(torch.float16).to(scale.dtype).mul_(scale * 256)


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
    # A merge copies no key. In half precision it rounds once more than one softmax would, by less than rounding the
    # queries and keys did.
    if gives_lse(q, k, v, *(side for g in groups for side in (g.k, g.v))):
        return attend_in_turn(q, k, v, groups)
    return attend_by_row(q, k, v, groups)


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


def run_of(rows: Sequence[int]) -> slice | list[int]:
    """Neighbouring rows as a slice: a view, where a list is a copy, and on a GPU a wait, in every block."""
    together = [*rows] == [*range(rows[0], rows[0] + len(rows))]
    return slice(rows[0], rows[0] + len(rows)) if together else [*rows]


def attend_in_turn(q: Tensor, k: Tensor, v: Tensor, groups: Sequence[KeyGroup]) -> Tensor:
    """`attend` to its own keys, then to one group after the other, each merged into what is there, in fp32.

    No mask, no copy of remembered keys, and no work for rows and tokens that do not read a group.
    """
    out, lse = attention_with_lse(q, k, v)
    out = out.float()
    for group in groups:
        read_into(out, lse, q, group)
    return out.to(q.dtype)


def read_into(out: Tensor, lse: Tensor, q: Tensor, group: KeyGroup) -> None:
    """Changes out (b, n, t, d) and lse (b, n, t), both fp32, to those of a softmax over the group's keys too."""
    rows = slice(None) if group.rows is None else run_of(group.rows)
    q, some, some_lse = q[rows], out[rows], lse[rows]
    if group.tokens is None or group.tokens.all():
        fold(some, some_lse, q, group)
    elif group.tokens.any():
        # A wait for the numbers would make a GPU idle in every block.
        at = group.tokens.nonzero()[:, 0].to(q.device, non_blocking=True)
        q, part, part_lse = (side.index_select(2, at) for side in (q, some, some_lse))
        fold(part, part_lse, q, group)
        some.index_copy_(2, at, part)
        some_lse.index_copy_(2, at, part_lse)
    if isinstance(rows, list):
        out[rows], lse[rows] = some, some_lse


def fold(out: Tensor, lse: Tensor, q: Tensor, group: KeyGroup) -> None:
    """`read_into` where every row and token reads the group."""
    heads = q.shape[1]
    # Widened keys are written, read once and thrown away: of a few heads they never leave a processor's cache.
    step = HEADS_WIDENED if group.scales is not None and q.device.type == "cpu" else heads
    for first in range(0, heads, step):
        at = slice(first, first + step)
        read = attention_with_lse(q[:, at], *group.of_heads(at).spread(q))
        merge(out[:, at], lse[:, at], *read, group.log_weight)


def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor, log_weight: float = 0.0) -> None:
    """Changes an attention, fp32, to that over its own and another's keys, as one softmax over both.

    Of each (out (b, n, t, d), log-sum-exp of its logits (b, n, t)): the other's share is
    w e^other_lse / (e^lse + w e^other_lse). Half precision would lose small shares.
    """
    if log_weight:
        other_lse = other_lse + log_weight
    out.lerp_(other.float(), (other_lse - lse).sigmoid()[..., None])
    torch.logaddexp(lse, other_lse, out=lse)


def gives_lse(*sides: Tensor) -> bool:
    """Whether `attention_with_lse` works on these: no kernel gives a gradient through the log-sum-exp."""
    needs_grad = torch.is_grad_enabled() and any(side.requires_grad for side in sides)
    return sides[0].device.type in ("cpu", "cuda") and not needs_grad


def attention_with_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention and the log-sum-exp of its logits: (b, n, t, d), (b, n, t) fp32; see `gives_lse`.

    The one place that touches torch's private kernels.
    """
    aten = torch.ops.aten
    if q.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False)
    ampere = torch.cuda.get_device_capability(q.device) >= (8, 0)
    if ampere and q.dtype != torch.float32 and q.shape[3] % 8 == 0:
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False)[:2]
    out, lse = aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[:2]
    return out, lse[..., : q.shape[2]]  # this kernel pads the log-sum-exp to a multiple of 32


def attend_by_row(q: Tensor, k: Tensor, v: Tensor, groups: Sequence[KeyGroup]) -> Tensor:
    """`attend` with keys side by side: rows that read the same groups together."""
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
        return attend_side_by_side(q, k, v, groups)
    out = torch.empty_like(q)
    for seen, tokens in token_classes(groups, q.shape[2]):
        read = [groups[i] for i in seen]
        if len(tokens) == q.shape[2]:
            return attend_side_by_side(q, k, v, read)
        at = tokens.to(q.device, non_blocking=True)  # a wait here would make a GPU idle in every block
        out.index_copy_(2, at, attend_side_by_side(q.index_select(2, at), k, v, read))
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


def attend_side_by_side(q: Tensor, k: Tensor, v: Tensor, groups: Sequence[KeyGroup]) -> Tensor:
    """`attend` where every row and token reads every group: one attention over all keys, laid side by side."""
    pairs = [(k, v), *(group.spread(q) for group in groups)]
    bias = None
    if any(group.log_weight for group in groups):  # only without a log-sum-exp: a bias shuts out the fastest kernel
        weights = [0.0, *(group.log_weight for group in groups)]
        bias = torch.cat([q.new_full((1, k.shape[2]), w) for (k, _), w in zip(pairs, weights, strict=True)], dim=1)
    keys, values = (torch.cat(side, dim=2) for side in zip(*pairs, strict=True))
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=bias)
