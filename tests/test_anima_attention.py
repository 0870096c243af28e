"""Remembered keys: concatenation, weights, and who reads what."""

import math

import pytest
import torch
import torch.nn.functional as F

from snapref.anima import attention
from snapref.anima.attention import KeyGroup, attend, attention_with_lse

HEADS, DIM = 3, 16


def random(seed: int, rows: int, tokens: int) -> torch.Tensor:
    return torch.randn(rows, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def own():
    return tuple(random(seed, 2, 7) for seed in range(3))


def group(seed: int, tokens: int, rows: int = 2, **options) -> KeyGroup:
    return KeyGroup(random(seed, rows, tokens), random(seed + 1, rows, tokens), **options)


def written_out(q, k, v, groups) -> torch.Tensor:
    """One softmax over all keys, each with its log weight as a bias."""
    keys = torch.cat([k, *(g.k.expand(len(q), -1, -1, -1) for g in groups)], dim=2)
    values = torch.cat([v, *(g.v.expand(len(q), -1, -1, -1) for g in groups)], dim=2)
    counts = [k.shape[2], *(g.k.shape[2] for g in groups)]
    weights = [0.0, *(g.log_weight for g in groups)]
    bias = torch.cat([torch.full((n,), w) for n, w in zip(counts, weights, strict=True)])
    return ((q @ keys.transpose(-1, -2)) / math.sqrt(DIM) + bias).softmax(-1) @ values


@pytest.fixture(params=["in turn", "side by side"])
def way(request, monkeypatch):
    """With a kernel that gives the log-sum-exp, and without one."""
    if request.param == "side by side":
        monkeypatch.setattr(attention, "gives_lse", lambda *_: False)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weight_one_is_concatenation(own, way, dtype):
    groups = [group(10, 5), group(20, 4)]
    q, k, v = (side.to(dtype) for side in own)
    groups = [KeyGroup(g.k.to(dtype), g.v.to(dtype)) for g in groups]
    together = F.scaled_dot_product_attention(
        q, torch.cat([k, *(g.k for g in groups)], 2), torch.cat([v, *(g.v for g in groups)], 2)
    )
    found = attend(q, k, v, groups)
    if way == "in turn":
        # In half precision each of the three attentions was rounded before they were merged.
        bound = 1e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps * float(together.abs().max())
        assert (found - together).abs().max() < bound
    else:
        assert torch.equal(found, together)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_no_remembered_key_is_copied(own, dtype, monkeypatch):
    q, k, v = (side.to(dtype) for side in own)
    one = group(10, 5)
    groups = [KeyGroup(one.k.to(dtype), one.v.to(dtype), tokens=seen) for seen in (None, torch.arange(q.shape[2]) < 1)]
    read = []

    def noted(q, k, v):
        read.append((k.data_ptr(), v.data_ptr()))
        return attention_with_lse(q, k, v)

    monkeypatch.setattr(attention, "attention_with_lse", noted)
    attend(q, k, v, groups)
    assert read[1:] == [(g.k.data_ptr(), g.v.data_ptr()) for g in groups]


def test_weight_two_is_the_keys_twice(own, way):
    once = group(10, 5)
    doubled = attend(*own, [KeyGroup(once.k, once.v, math.log(2))])
    assert torch.allclose(doubled, attend(*own, [once, once]), atol=1e-6)


@pytest.mark.parametrize("weights", [(0.5,), (-1.0, 0.7), (0.3, 0.0, 0.3, -4.0)])
def test_merge_is_one_biased_softmax(own, way, weights):
    groups = [group(10 * i + 10, 3 + i, log_weight=w) for i, w in enumerate(weights)]
    assert (attend(*own, groups) - written_out(*own, groups)).abs().max() < 1e-6


def test_merge_has_the_gradient_of_the_biased_softmax(own):
    groups = [group(10, 5, log_weight=0.5), group(20, 4, log_weight=-1.0)]
    gradients = []
    for function in (attend, written_out):
        leaves = [t.clone().requires_grad_() for t in (*own, groups[0].k, groups[0].v)]
        read = [KeyGroup(leaves[3], leaves[4], 0.5), groups[1]]
        function(*leaves[:3], read).square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for found, expected in zip(*gradients, strict=True):
        assert (found - expected).abs().max() < 1e-5


def test_no_keys_and_no_weight_are_nothing_at_all(own, way):
    empty, silent = group(10, 0), group(20, 5, log_weight=-math.inf)
    assert torch.equal(attend(*own, [empty, silent]), attend(*own))


@pytest.mark.parametrize("weight", [0.0, 0.4])
def test_each_row_gets_what_it_gets_alone(way, weight):
    q, k, v = (random(seed, 4, 7) for seed in range(3))
    groups = [
        KeyGroup(random(10, 2, 5), random(11, 2, 5), weight, (0, 3)),
        KeyGroup(random(20, 1, 4), random(21, 1, 4), 0.0, (3, 1)),
        KeyGroup(random(30, 1, 6), random(31, 1, 6), weight, None),
        KeyGroup(random(40, 4, 3), random(41, 4, 3), 0.0, None),
    ]
    together = attend(q, k, v, groups)
    for row in range(4):
        alone = []
        for g in groups:
            if g.rows is None or row in g.rows:
                at = 0 if len(g.k) == 1 else (row if g.rows is None else g.rows.index(row))
                alone.append(KeyGroup(g.k[at : at + 1], g.v[at : at + 1], g.log_weight))
        one = slice(row, row + 1)
        assert torch.allclose(together[one], attend(q[one], k[one], v[one], alone), atol=1e-6), row


def test_shared_keys_are_every_rows_keys(own, way):
    shared = group(10, 5, rows=1, log_weight=0.2)
    repeated = KeyGroup(shared.k.repeat(2, 1, 1, 1), shared.v.repeat(2, 1, 1, 1), 0.2)
    assert torch.equal(attend(*own, [shared]), attend(*own, [repeated]))


@pytest.mark.parametrize(
    "dtype, close", [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]
)
def test_the_kernel_gives_the_log_sum_exp(own, dtype, close):
    q, k, v = (side.to(dtype) for side in own)
    out, lse = attention_with_lse(q, k, v)
    logits = q.float() @ k.float().transpose(-1, -2) / math.sqrt(DIM)
    assert out.dtype == dtype and lse.dtype == torch.float32
    assert torch.allclose(out.float(), logits.softmax(-1) @ v.float(), atol=close)
    assert torch.allclose(lse, logits.logsumexp(-1), atol=close)


def test_nothing_of_the_caller_is_changed(own, way):
    """A merge writes in place: into its own results alone."""
    groups = [group(10, 5), KeyGroup(random(20, 1, 4), random(21, 1, 4), 0.3, None, torch.arange(7) < 3)]
    sides = [*own, *(side for g in groups for side in (g.k, g.v))]
    before = [side.clone() for side in sides]
    first, second = attend(*own, groups), attend(*own, groups)
    assert torch.equal(first, second)
    assert all(torch.equal(side, kept) for side, kept in zip(sides, before, strict=True))


@pytest.mark.parametrize("rows", [(0, 2, 1, 3), (3, 2), (0, 3), (2, 3), (1,)])
def test_rows_in_any_order_read_their_own_keys(way, rows):
    q, k, v = (random(seed, 4, 7) for seed in range(3))
    keys, values = random(10, len(rows), 5), random(11, len(rows), 5)
    found = attend(q, k, v, [KeyGroup(keys, values, 0.0, rows)])
    for i, row in enumerate(rows):
        at, one = slice(row, row + 1), slice(i, i + 1)
        alone = attend(q[at], k[at], v[at], [KeyGroup(keys[one], values[one])])
        assert torch.allclose(found[at], alone, atol=1e-6)


@pytest.mark.parametrize(
    "bad, sentence",
    [
        (KeyGroup(torch.zeros(2, 4, 5, DIM), torch.zeros(2, 4, 5, DIM)), "4 heads of width 16"),
        (group(10, 5, rows=3), "have 3 rows, 2 batch rows read them"),
        (KeyGroup(random(1, 1, 5), random(2, 1, 5), 0.0, (0, 2)), "not distinct rows of a batch of 2"),
    ],
)
def test_what_does_not_fit_is_said(own, bad, sentence):
    with pytest.raises(ValueError, match=sentence):
        attend(*own, [bad])
