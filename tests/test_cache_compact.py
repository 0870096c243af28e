"""Smaller forms of a cache, and the store that keeps caches between runs."""

import dataclasses
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_case import picture, tiny_adapter, tiny_parts, tiny_pipeline
from reading_case import SCALES, pipe_of
from safetensors.torch import load_file

from snapref.anima.attention import times
from snapref.anima.model import AnimaDiT
from snapref.config import BASE, V1A
from snapref.reference.branches import Adapter
from snapref.reference.bundle import load_bundle, save_bundle
from snapref.reference.cache import CacheError, ReferenceCache, reference_bytes
from snapref.reference.compact import compacted, read_form, to_fp8
from snapref.reference.store import ReferenceStore
from snapref.reference.thin import farthest, longest_and_apart, thinned
from snapref.sampling.pipeline import Pipeline
from snapref.sampling.settings import Settings, SettingsError

PICTURES = [picture(0, (64, 48)), picture(1, (48, 64))]
FORMS = ["whole", "fp8", "thin:0.5", "fp8+thin:0.25"]


def tensors_of(cache):
    return [side for pair in (*cache.layers, *(cache.scales or ())) for side in pair]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("form", FORMS)
def test_reported_size_is_measured_size(scale, form, tmp_path):
    cache = compacted(pipe_of(scale).encode(PICTURES), form)
    cache.save(tmp_path / "a.safetensors")
    assert cache.nbytes == sum(t.nbytes for t in load_file(tmp_path / "a.safetensors").values())
    assert cache.nbytes == sum(t.untyped_storage().nbytes() for t in tensors_of(cache))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_saved_and_drawn_as_it_is(scale, form, tmp_path):
    pipe = pipe_of(scale)
    cache = pipe.encode(PICTURES, cache_form=form)
    cache.save(tmp_path / "a.safetensors")
    again = ReferenceCache.load(tmp_path / "a.safetensors", expect=cache.fingerprint)
    assert all(torch.equal(x, y) for x, y in zip(tensors_of(cache), tensors_of(again), strict=True))
    assert {p.form for p in again.fingerprint.pictures} == {form}
    drawn = [pipe("1girl", c, steps=2, size=(64, 48), quiet=True).latents for c in (cache, again)]
    assert torch.equal(*drawn)
    with pytest.raises(CacheError, match="the form of picture 1 "):
        other = "fp8" if form == "whole" else "whole"
        ReferenceCache.load(tmp_path / "a.safetensors", expect=pipe.encode(PICTURES, cache_form=other).fingerprint)


def test_fp8_is_widened_exactly():
    """Every finite number of the format, times scales from tiny to large: as torch's own cast, to the bit."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    codes = codes[codes.float().isfinite()]
    scale = torch.logspace(-30, 30, 61)[:, None]
    assert torch.equal(times(codes.expand(61, -1), scale), codes.float() * scale)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_with_numbers_that_are_none_is_refused(form, tmp_path):
    cache = tiny_pipeline().encode(PICTURES, cache_form=form)
    broken = torch.full_like(cache.layers[1][0].float(), torch.nan).to(cache.layers[1][0].dtype)
    layers = (cache.layers[0], (broken, cache.layers[1][1]), *cache.layers[2:])
    dataclasses.replace(cache, layers=layers).save(tmp_path / "a.safetensors")
    with pytest.raises(CacheError, match="'a.safetensors' holds numbers that are not finite in block 1"):
        ReferenceCache.load(tmp_path / "a.safetensors")


def test_fp8_is_half_of_sixteen_bits_and_near():
    cache = tiny_pipeline().encode(PICTURES).to(dtype=torch.bfloat16)
    small = to_fp8(cache)
    width = cache.layers[0][0].shape[3]
    assert small.nbytes / cache.nbytes == pytest.approx(0.5 + 2 / width)  # the scales: 4 bytes a token and head
    for pair, wide in zip(cache.layers, small.widened().layers, strict=True):
        for a, b in zip(pair, wide, strict=True):
            assert (a.float() - b.float()).norm() < 0.04 * a.float().norm()  # e4m3 keeps 3 bits behind the point
    assert to_fp8(small) is small


@given(st.sampled_from([0.1, 0.25, 0.5, 0.9, 1.0]), st.integers(0, 3))
@settings(max_examples=12, deadline=None)
def test_thinning_keeps_what_a_head_had_of_a_token(share, seed):
    """Every kept key and value of a head are those of one token of its picture, each token once."""
    cache = tiny_pipeline().encode([picture(seed, (64, 48)), picture(seed + 9, (48, 32))])
    thin = thinned(cache, share)
    assert thin.tokens == tuple(max(1, -(-int(share * 100) * n // 100)) for n in cache.tokens)
    for (k, v), (few_k, few_v) in zip(cache.layers, thin.layers, strict=True):
        for part, few in zip(cache.parts(), thin.parts(), strict=True):
            for head in range(k.shape[1]):
                whole = torch.cat([k[0, head, part], v[0, head, part]], dim=1)
                kept = torch.cat([few_k[0, head, few], few_v[0, head, few]], dim=1)
                found = (whole[None] == kept[:, None]).all(dim=2)
                assert (found.sum(dim=1) == 1).all() and (found.sum(dim=0) <= 1).all()


def test_longest_first_then_what_differs():
    """Three long values of one kind are kept first, then one of each other kind before any second one."""
    kinds = torch.eye(4).repeat_interleave(torch.tensor([4, 3, 2, 1]), dim=0)
    values = kinds * torch.tensor([9.0] * 4 + [1.0] * 6)[:, None]
    chosen = longest_and_apart([(kinds[None], values[None])] * 2, 4)
    assert len(chosen) == 2 and {*chosen[0][0, :3].tolist()} < {0, 1, 2, 3} and chosen[0][0, 3] >= 4
    more = farthest(kinds[None], torch.tensor([[0]]), 4)[0]
    assert sorted(int(kinds[i].argmax()) for i in more) == [0, 1, 2, 3]
    assert sorted(farthest(kinds[None], torch.tensor([[0]]), 10)[0].tolist()) == list(range(10))


def test_forms_side_by_side():
    pipe = tiny_pipeline()
    whole, small = (pipe.encode(PICTURES[0], cache_form=form) for form in ("whole", "fp8"))
    assert ReferenceCache.concat([small, small]).scales is not None
    mixed = ReferenceCache.concat([whole, small])
    assert mixed.scales is None and torch.equal(mixed.layers[0][0][:, :, :12], whole.layers[0][0])
    assert torch.equal(mixed.select([1]).layers[1][1], small.widened().layers[1][1])
    chosen = ReferenceCache.concat([small, small]).select([1])
    assert all(torch.equal(x, y) for x, y in zip(tensors_of(chosen), tensors_of(small), strict=True))


def test_fp8_in_a_batch_of_two_references():
    pipe = tiny_pipeline()
    caches = [pipe.encode(p, cache_form="fp8") for p in PICTURES]
    noise = torch.randn(2, 16, 1, 8, 6, generator=torch.Generator().manual_seed(0))
    together = pipe(["1girl", "beach"], references=caches, noise=noise, steps=2, quiet=True).latents
    for i, prompt in enumerate(["1girl", "beach"]):
        alone = pipe(prompt, caches[i], noise=noise[i : i + 1], steps=2, quiet=True).latents
        assert torch.allclose(together[i : i + 1], alone, atol=1e-4)


@pytest.mark.parametrize("form", ["", "fp4", "thin", "thin:0", "thin:1.5", "fp8+", "fp8thin:0.5", "+thin:0.5"])
def test_unknown_forms_are_refused_before_anything_is_read(form):
    words = re.escape(f"cache_form is '{form}'; give whole, fp8, thin:SHARE or fp8")
    with pytest.raises(CacheError, match=words):
        read_form(form)
    with pytest.raises(SettingsError, match="cache_form is "):
        Settings(cache_form=form)


def test_what_cannot_be_thinned():
    cache = tiny_pipeline().encode(PICTURES[0])
    with pytest.raises(CacheError, match="in fp8 cannot be thinned any more; thin it first"):
        thinned(to_fp8(cache), 0.5)
    with pytest.raises(CacheError, match="the share of tokens is 0; give a number above 0"):
        thinned(cache, 0)


class Counted:
    """Counts how often a codec encodes: once per picture that is read."""

    def __init__(self, pipe):
        self.codec, self.calls = pipe.codec, 0

    def __getattr__(self, name):
        return getattr(self.codec, name)

    def encode(self, pixels):
        self.calls += 1
        return self.codec.encode(pixels)


def test_a_picture_is_read_once():
    pipe = tiny_pipeline()
    pipe.codec = counted = Counted(pipe)
    run = {"steps": 1, "quiet": True}
    first = pipe("1girl", PICTURES[0], **run)
    again = pipe("beach", PICTURES[0].copy(), seed=4, size=(48, 64), **run)  # equal pixels, another object
    assert counted.calls == 1 and again.references[0].layers is first.references[0].layers
    pipe("1girl", PICTURES[1], **run)  # other pixels of the same shape
    pipe("1girl", PICTURES[0], mode="char", **run)
    pipe("1girl", PICTURES[0], cache_form="fp8", **run)
    pipe("1girl", PICTURES[0], ref_masks=["left"], **run)
    assert counted.calls == 5
    pipe.free()
    assert len(pipe.store) == 0 and pipe.store.nbytes == 0
    pipe("1girl", PICTURES[0], **run)
    assert counted.calls == 6


def test_another_adapter_is_another_reading():
    pipe = tiny_pipeline()
    pipe.encode(PICTURES[0])
    pipe.adapter = tiny_adapter(seed=2)
    pipe.encode(PICTURES[0])
    assert len(pipe.store) == 2


def test_the_budget_holds_and_the_oldest_goes_first():
    cache = tiny_pipeline().encode(PICTURES[0])
    store = ReferenceStore(budget=2 * cache.nbytes)
    made = []

    def make(name):
        return lambda: made.append(name) or dataclasses.replace(cache)

    for name in ("a", "b", "a", "c", "a", "b"):  # c drives out b, which was used before a
        store.get(name, make(name))
    assert made == ["a", "b", "c", "b"] and store.nbytes <= store.budget
    small = ReferenceStore(budget=cache.nbytes - 1)
    assert small.get("a", make("d")).nbytes == cache.nbytes and len(small) == 0
    with pytest.raises(ValueError, match="the budget is -1 bytes; give 0 or more"):
        ReferenceStore(-1)


def test_a_failed_reading_is_not_kept():
    store = ReferenceStore()
    with pytest.raises(RuntimeError):
        store.get("a", lambda: (_ for _ in ()).throw(RuntimeError("stop")))
    assert len(store) == 0


def test_a_bundle_in_fp8(tmp_path):
    adapter = tiny_adapter()
    for name, dtype in (("wide", torch.float32), ("small", torch.float8_e4m3fn)):
        save_bundle(adapter, tmp_path / f"{name}.safetensors", dtype)
    small = load_bundle(tmp_path / "small.safetensors", adapter.model)
    for name, weight in adapter.state_dict().items():
        error = (small.state_dict()[name] - weight).abs()
        assert (error <= weight.abs() / 16 + weight.abs().amax(1, keepdim=True) / 448 / 4).all(), name


def test_a_full_size_bundle_in_fp8_is_half_the_size(tmp_path):
    """Both files, whole: 190,840,832 numbers at two bytes and at one, with a scale for every row."""
    with torch.device("meta"):
        adapter = Adapter(V1A, BASE).bfloat16()
    adapter = adapter.to_empty(device="cpu").requires_grad_(False)
    for weight in adapter.parameters():
        weight.fill_(0.01)
    sizes = {}
    for name, dtype in (("whole", torch.bfloat16), ("small", torch.float8_e4m3fn)):
        save_bundle(adapter, tmp_path / name, dtype)
        sizes[name] = (tmp_path / name).stat().st_size
        (tmp_path / name).unlink()
    assert sizes["whole"] > 2 * adapter.parameter_count == 2 * 190_840_832
    assert sizes["small"] / sizes["whole"] <= 0.52


def test_the_store_of_a_model_has_room_for_two_of_its_references():
    """Or two pictures in one run would push each other out, every time."""
    dit = replace(BASE.dit, blocks=2)
    with torch.device("meta"):
        model = AnimaDiT(replace(BASE, dit=dit, text=None)).float()
    for blocks, roomy in ((2, False), (28, True)):
        config = replace(BASE, dit=replace(dit, blocks=blocks))
        one = reference_bytes(config.dit, 1e6 / 256, torch.float32)
        budget = Pipeline(model, tiny_parts()[1], None, config).store.budget
        assert budget == max(2**30, 2 * one) and (budget > 2**30) == roomy
