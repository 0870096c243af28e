"""Counts of bytes and operations are those of the model itself; what is shown as read is what was read."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from pipeline_case import picture, tiny_pipeline
from reference_case import PLACE, TINY, TINY_ADAPTER, context, latent, tiny_adapter, tiny_model

import snapref.anima.block
from snapref.anima.attention import attend
from snapref.config import BASE
from snapref.lab import attention_view, cache_view
from snapref.lab.plots import png
from snapref.reference import CacheError, encode, encode_reference
from snapref.reference.encode import offered_keys
from snapref.rivals.offset_frame import read_at
from snapref.rivals.reencode import Reencode
from snapref.training.footprint import Watcher

NOISY, TEXT, CAPTION = latent(6, 8, seed=1), context(9, seed=2), context(7, seed=3)  # 12 tokens
REFERENCE = latent(6, 4, seed=4)  # 6 tokens
PROMPT = "1girl, beach, waving"


def memory_of(adapter):
    return encode_reference(tiny_model(), adapter, [REFERENCE], CAPTION)


# Bytes and operations


def test_computed_bytes_are_the_caches_own_and_the_published_ones():
    assert cache_view.cache_bytes(TINY.dit, 6, 4) == memory_of(tiny_adapter()).nbytes
    assert cache_view.cache_bytes(BASE.dit, 1, 2) == 229_376
    assert cache_view.cache_bytes(BASE.dit, 4096, 2) == 939_524_096


def counted(call, tokens: int, modulations: int, ends: int) -> int:
    """Operations that torch counts in a call, without the modulations and what stands around the blocks.

    ends: operations behind the last block.
    """
    width, rank = TINY.dit.width, TINY.dit.adaln_rank
    with Watcher() as watcher, torch.no_grad():
        call()
    around = 2 * (tokens * 68 * width + 4 * width**2) + ends  # patches, sigma
    return watcher.flops - around - modulations * 2 * 4 * width * rank


def test_operations_are_those_that_torch_counts():
    model, sigma, memory = tiny_model(), torch.tensor([0.5]), memory_of(tiny_adapter()).memory()
    width, rank = TINY.dit.width, TINY.dit.adaln_rank
    final = 2 * (12 * 64 * width + 3 * width * rank)
    alone = counted(lambda: model(NOISY, sigma, TEXT), 12, 9, final)
    assert cache_view.pass_flops(TINY.dit, 12, 12, 9) == alone
    reading = counted(lambda: model(NOISY, sigma, TEXT, memory=memory), 12, 9, final)
    assert cache_view.pass_flops(TINY.dit, 12, 12 + 6, 9) == reading
    encoding = counted(lambda: model.keys_values(REFERENCE, sigma, CAPTION, place=PLACE), 6, 7, 0)
    assert cache_view.encode_flops(TINY.dit, 6, 7) == encoding


def test_full_size_operations_are_the_known_ones():
    tokens, dit = 52 * 76, BASE.dit
    assert 28 * dit.width**2 / 1e6 == pytest.approx(117.4, abs=0.05)  # linear, per token and block
    whole = cache_view.pass_flops(dit, tokens, tokens, 512) / tokens / dit.blocks / 1e6
    assert whole == pytest.approx(117.4 + 32.4 + 5.3, abs=0.1)
    routes = cache_view.route_flops(BASE, tokens, tokens, steps=28)
    plain, encode = routes["no reference"], cache_view.encode_flops(dit, tokens, 512)
    assert encode / plain == pytest.approx(0.018, abs=0.001)
    assert (routes["read once"] - encode) / plain == pytest.approx(1.104, abs=0.001)
    assert routes["read at every step"] - routes["read once"] == 27 * encode


# The pictures of it


def test_the_mask_says_what_may_be_read():
    for reader in range(3):
        for read in range(3):
            allowed = cache_view.kind_of(reader, read)[1] != "never"
            assert allowed == (reader == 0 or reader == read)


@pytest.mark.parametrize(
    "drawn",
    [
        lambda: cache_view.mask_picture(4, [3, 2]),
        lambda: cache_view.timeline_picture(BASE, 3952, 3952, 28),
        lambda: cache_view.bytes_picture({"model": 4e9, "reference": 1e9}, 15e9, "a card"),
    ],
    ids=["mask", "timeline", "bytes"],
)
def test_every_figure_is_a_png_that_shows_something(drawn):
    pixels = np.asarray(Image.open(io.BytesIO(png(drawn()))).convert("RGB"))
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 5


def test_calls_take_turns_and_the_first_round_does_not_count():
    called = []
    times = cache_view.interleaved({name: lambda name=name: called.append(name) for name in "ab"}, rounds=3)
    assert sorted(called) == sorted("ab" * 4) and {len(t) for t in times.values()} == {3}
    assert "aaa" not in "".join(called)
    assert cache_view.ratio([2, 4, 6], [1, 1, 2]) == (3, 2, 4)


# What is read


def test_shares_are_the_softmax_over_own_and_remembered_keys(monkeypatch):
    adapter, seen = tiny_adapter(), []

    def watched(q, k, v, groups=()):
        if groups:
            seen.append((q, k, groups))
        return attend(q, k, v, groups)

    monkeypatch.setattr(snapref.anima.block, "attend", watched)
    memory = memory_of(adapter).memory(strength=0.5)
    shares = attention_view.reference_shares(tiny_model(), NOISY, 0.7, TEXT, memory, adapter.target)
    assert shares.shape == (3, 12, 6)
    for found, (q, k, groups) in zip(shares, seen, strict=True):
        own, read = (q @ keys.mT / q.shape[-1] ** 0.5 for keys in (k, groups[0].k))
        own, read = own.double().exp(), 0.5 * read.double().exp()  # half as strong: half the weight
        wanted = (read / (own.sum(-1) + read.sum(-1))[..., None])[0].mean(0)
        assert (found - wanted).abs().max() < 1e-6


def test_watching_keeps_the_steps_asked_for_and_ends_at_the_picture():
    pipe, reference = tiny_pipeline(), picture(7, (64, 48))
    watched = attention_view.watch(pipe, PROMPT, reference, steps=(0, 3), seed=5)
    drawn = pipe(PROMPT, reference=reference, seed=5, quiet=True).image
    assert [moment.step for moment in watched.moments] == [0, 3]
    assert np.array_equal(watched.moments[-1].picture, drawn)
    assert watched.target_grid == watched.reference_grid == (4, 3)
    for moment in watched.moments:
        assert moment.shares.shape == (3, 12, 12)
        assert 0 < moment.shares.sum(axis=2).max() < 1


def test_a_memory_of_two_pictures_is_refused():
    pipe = tiny_pipeline()
    both = pipe.encode([picture(1, (64, 48)), picture(2, (64, 48))])
    with pytest.raises(CacheError, match="holds 24 tokens, the picture has 12"):
        attention_view.watch(pipe, PROMPT, picture(1, (64, 48)), cache=both)


@pytest.fixture
def watched() -> attention_view.Watched:
    shares = np.random.default_rng(0).random((2, 12, 12)) / 24
    moments = [attention_view.Moment(i, 1.0 - i, picture(i, (64, 48)), shares[::-1]) for i in (0, 1)]
    return attention_view.Watched(picture(9, (64, 48)), tuple(moments), 16)


def test_the_most_read_token_is_in_full_light_and_the_rest_is_dimmed():
    plain, amounts = picture(3, (64, 48)), np.zeros((4, 3))
    amounts[2, 1] = 0.7
    lit = np.asarray(attention_view.spotlight(plain, amounts)).astype(int)
    large = np.asarray(plain).repeat(2, 0).repeat(2, 1).astype(int)
    assert np.array_equal(lit[64:96, 32:64], large[64:96, 32:64])
    dark = np.ones(lit.shape[:2], bool)
    dark[64:96, 32:64] = False
    assert np.abs(lit[dark] - attention_view.DIMMEST * large[dark]).max() <= 2


def test_the_frame_lies_around_the_token():
    plain = Image.new("RGB", (48, 64), "white")
    changed = (np.asarray(attention_view.framed(plain, [(2, 1)], 16)) != 255).any(axis=-1)
    rows, columns = np.nonzero(changed)
    assert 60 <= rows.min() <= 64 and 95 <= rows.max() <= 98
    assert 28 <= columns.min() <= 32 and 63 <= columns.max() <= 66


def test_sliders_and_pointer_move_the_frame(watched):
    widget = attention_view.attention_widget(watched, token=(1, 1))
    pointed, read, controls = widget.children
    _, step, block, row, column = controls.children
    before = pointed.value, read.value
    pointed.token = [3, 2]
    assert (row.value, column.value) == (3, 2)
    assert pointed.value != before[0] and read.value != before[1]
    for slider, value in ((block, 1), (step, 0), (row, 0)):
        last = read.value
        slider.value = value
        assert read.value != last
    assert png(attention_view.sheet(watched, {"face": (1, 1)})).startswith(b"\x89PNG")
    assert png(attention_view.share_picture(watched)).startswith(b"\x89PNG")


# The road without a memory


def test_reading_at_every_step_gives_the_same_bits_and_reads_every_time(monkeypatch):
    model, adapter, reads = tiny_model(), tiny_adapter(), []
    once = read_at(model, adapter, REFERENCE, CAPTION, PLACE)
    anew = Reencode(model, adapter, REFERENCE, CAPTION)
    assert adapter.config.place == TINY_ADAPTER.place == PLACE

    def offered(*args):
        reads.append(1)
        return offered_keys(*args)

    monkeypatch.setattr(encode, "offered_keys", offered)
    with torch.no_grad():
        for level in (1.0, 0.6, 0.1):
            sigma = torch.tensor([level])
            for which in (True, False):
                assert torch.equal(
                    once.velocity(NOISY, sigma, TEXT, which), anew.velocity(NOISY, sigma, TEXT, which)
                )
    assert len(reads) == 3, "only a pass that reads may encode"
