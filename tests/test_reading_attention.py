"""Who reads what, inside one attention: rows, tokens and weights against one softmax with an explicit mask."""

import math
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from snapref.anima import attention
from snapref.anima.attention import KeyGroup, attend, token_classes

HEADS, DIM, TOKENS = 2, 8, 9


def random(seed: int, rows: int, tokens: int) -> torch.Tensor:
    return torch.randn(rows, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(seed))


def own(rows: int = 2):
    return tuple(random(seed, rows, TOKENS) for seed in range(3))


def masked_softmax(q, k, v, groups) -> torch.Tensor:
    """One softmax over all keys; a key that a row or a token does not read gets a logit of -inf."""
    rows, tokens = len(q), q.shape[2]
    keys, values, bias = [k], [v], [torch.zeros(rows, tokens, k.shape[2])]
    for group in groups:
        readers = range(rows) if group.rows is None else group.rows
        for side, found in ((group.k, keys), (group.v, values)):
            full = torch.zeros(rows, *side.shape[1:])
            full[list(readers)] = side.expand(len(readers), -1, -1, -1)
            found.append(full)
        extra = torch.full((rows, tokens), -math.inf)
        seen = torch.ones(tokens, dtype=torch.bool) if group.tokens is None else group.tokens
        for row in readers:
            extra[row, seen] = group.log_weight
        bias.append(extra[..., None].expand(-1, -1, group.k.shape[2]))
    logits = q @ torch.cat(keys, 2).transpose(-1, -2) / math.sqrt(DIM) + torch.cat(bias, 2)[:, None]
    return logits.softmax(-1) @ torch.cat(values, 2)


BOUNDS = st.none() | st.lists(st.booleans(), min_size=TOKENS, max_size=TOKENS)
GROUPS = st.tuples(BOUNDS, st.sampled_from([0.0, 0.0, 0.7, -2.0]), st.sampled_from([None, (0,), (1,), (1, 0)]))


@given(st.lists(GROUPS, min_size=1, max_size=3), st.booleans())
def test_regions_rows_and_weights_are_one_masked_softmax(drawn, in_turn):
    groups = []
    for i, (seen, weight, rows) in enumerate(drawn):
        tokens = None if seen is None else torch.tensor(seen)
        groups.append(KeyGroup(random(10 + i, 1, 3 + i), random(20 + i, 1, 3 + i), weight, rows, tokens))
    with patch.object(attention, "gives_lse", lambda *_: in_turn):
        found = attend(*own(), groups)
    assert (found - masked_softmax(*own(), groups)).abs().max() < 1e-6


@pytest.mark.parametrize("weight", [0.0, 0.4])
def test_a_region_of_everything_is_none_and_one_of_nothing_reads_nothing(weight):
    group = KeyGroup(random(10, 1, 5), random(11, 1, 5), weight)
    every, none = torch.ones(TOKENS, dtype=torch.bool), torch.zeros(TOKENS, dtype=torch.bool)
    assert torch.equal(attend(*own(), [replace(group, tokens=every)]), attend(*own(), [group]))
    assert torch.equal(attend(*own(), [replace(group, tokens=none)]), attend(*own()))


def test_tokens_that_read_the_same_are_one_class():
    left = torch.arange(TOKENS) < 4
    wide = torch.arange(TOKENS) < 6
    groups = [KeyGroup(random(1, 1, 2), random(2, 1, 2), 0.0, None, t) for t in (left, None, wide)]
    classes = {tuple(seen): tokens.tolist() for seen, tokens in token_classes(groups, TOKENS)}
    assert classes == {(0, 1, 2): [0, 1, 2, 3], (1, 2): [4, 5], (1,): [6, 7, 8]}


@given(st.integers(1, 9), st.integers(1, 3), st.booleans())
def test_fp8_keys_are_widened_a_few_heads_at_a_time(heads, step, region):
    generator = torch.Generator().manual_seed(heads)
    q, k, v = torch.randn(3, 2, heads, TOKENS, DIM, generator=generator)
    narrow = torch.randn(2, 1, heads, 7, DIM, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 1, heads, 7, 1, generator=generator)
    tokens = torch.arange(TOKENS) < 5 if region else None
    group = KeyGroup(*narrow, log_weight=-0.4, rows=(1,), tokens=tokens, scales=tuple(scales))
    wide = replace(group, k=group.wide(q.dtype)[0], v=group.wide(q.dtype)[1], scales=None)
    with patch.object(attention, "HEADS_WIDENED", step):
        assert (attend(q, k, v, [group]) - attend(q, k, v, [wide])).abs().max() < 1e-6


def test_gradients_go_through_regions():
    tokens = torch.arange(TOKENS) % 2 == 0
    found = []
    for function in (attend, masked_softmax):
        leaves = [t.clone().requires_grad_() for t in (*own(), random(10, 1, 5), random(11, 1, 5))]
        function(*leaves[:3], [KeyGroup(*leaves[3:], 0.5, None, tokens)]).square().sum().backward()
        found.append([leaf.grad for leaf in leaves])
    for ours, wanted in zip(*found, strict=True):
        assert (ours - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("dtype, bound", [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
def test_half_precision_stays_near(dtype, bound):
    tokens = torch.arange(TOKENS) < 4
    groups = [KeyGroup(random(10, 1, 5), random(11, 1, 5), 0.5, None, tokens),
              KeyGroup(random(12, 1, 5), random(13, 1, 5), -0.5, None, ~tokens)]  # fmt: skip
    half = [replace(g, k=g.k.to(dtype), v=g.v.to(dtype)) for g in groups]
    found = attend(*(t.to(dtype) for t in own()), half)
    assert found.dtype == dtype and (found.float() - attend(*own(), groups)).abs().max() < bound


@pytest.mark.parametrize("tokens", [torch.ones(TOKENS + 1, dtype=torch.bool), torch.ones(TOKENS)])
def test_a_region_of_another_size_is_said(tokens):
    group = KeyGroup(random(10, 1, 5), random(11, 1, 5), 0.0, None, tokens)
    with pytest.raises(ValueError, match=r"this picture has 9: give \(9,\) bools"):
        attend(*own(), [group])
