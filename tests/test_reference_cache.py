"""The cache as a value: what it weighs, what it is made from, how it is cut, joined, stored and refused."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_case import TINY, context, latent, noise, tiny_adapter, tiny_model

from snapref.anima.model import AnimaDiT
from snapref.files.loader import WeightsError
from snapref.files.weights import save_weights
from snapref.reference import CacheError, MergeError, NonFiniteError, ReferenceCache, encode_reference, merged


def encode(*pictures, model=None, adapter=None, **options) -> ReferenceCache:
    pictures = pictures or (latent(6, 4, 3), latent(4, 8, 4))
    return encode_reference(
        model or tiny_model(), adapter or tiny_adapter(), pictures, context(7, 2), **options
    )


def equal(one: ReferenceCache, other: ReferenceCache) -> bool:
    tensors = [[side for pair in cache.layers for side in pair] for cache in (one, other)]
    same = all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))
    return same and (one.groups, one.fingerprint) == (other.groups, other.fingerprint)


def storage(cache: ReferenceCache) -> int:
    owners = {
        side.untyped_storage().data_ptr(): side.untyped_storage() for pair in cache.layers for side in pair
    }
    return sum(owner.nbytes() for owner in owners.values())


def test_shapes_and_bytes():
    cache = encode()
    assert cache.tokens == (6, 8) and cache.weights == (1.0, 1.0)
    assert all(side.shape == (1, 3, 14, 32) for pair in cache.layers for side in pair)
    by_hand = 3 * 2 * 14 * 96 * 4  # blocks · (k, v) · tokens · width · bytes
    for one in (cache, cache.select([1, 0]), ReferenceCache.concat([cache.select([0]), cache.select([1])])):
        assert one.nbytes == storage(one) == by_hand
    assert cache.select([1]).nbytes == storage(cache.select([1])) == by_hand * 8 // 14
    half = cache.to(dtype=torch.float16)
    assert half.nbytes == storage(half) == by_hand // 2 and half.fingerprint.dtype == "float16"


def test_a_cache_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        encode().layers = ()


@given(
    st.lists(st.sampled_from([0.0, 0.25, 1.0, 2.0]), min_size=2, max_size=2),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
)
@settings(max_examples=30, deadline=None)
def test_memory_follows_strength_times_weight(weights, strength):
    cache = encode().with_weights(weights)
    wanted = [math.log(w * strength) for w in weights if w * strength > 0]
    memory = cache.memory(rows=(1,), strength=strength)
    assert len(memory) == 3
    for groups in memory:
        assert [group.log_weight for group in groups] == wanted
        assert all(group.rows == (1,) for group in groups)
        assert sum(group.k.shape[2] for group in groups) == sum(
            tokens for tokens, w in zip((6, 8), weights, strict=True) if w * strength > 0
        )


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_weights_out_of_range(wrong):
    cache = encode()
    with pytest.raises(CacheError, match=r"strength is .*; give a number from 0 upward"):
        cache.memory(strength=wrong)
    with pytest.raises(CacheError, match=r"the weight of picture 2 is"):
        cache.with_weights([1, wrong])


def test_wrong_calls_say_what_to_give():
    cache = encode()
    for call, message in [
        (lambda: cache.with_weights([1]), "1 weights for 2 pictures; give one per picture"),
        (lambda: cache.select([2]), r"pictures \[2\] of a cache of 2; name some of 0 to 1"),
        (lambda: cache.select([]), "name some of 0 to 1"),
        (lambda: ReferenceCache.concat([]), "give at least one"),
        (lambda: encode_reference(tiny_model(), tiny_adapter(), [], context(7, 2)), "give at least one"),
        (lambda: encode(weights=[1.0]), "1 weights for 2 pictures"),
        (lambda: encode(weights=[1.0, -2.0]), "weight of picture 2 is -2.0; give a number from 0"),
        (
            lambda: encode(noise(2, 16, 1, 4, 4, seed=0)),
            r"has shape \(2, 16, 1, 4, 4\); give each picture by itself",
        ),
        (lambda: encode(keep=[None]), "1 masks to keep for 2 pictures"),
        (
            lambda: encode(keep=[None, torch.ones(3, dtype=torch.bool)]),
            r"mask of picture 2 is torch.bool \(3,\); give \(8,\) bools",
        ),
        (lambda: encode(keep=[None, torch.zeros(8, dtype=torch.bool)]), "keeps no token"),
        (lambda: ReferenceCache(cache.layers, cache.groups[:1], cache.fingerprint), "give"),
        (
            lambda: ReferenceCache(encode(latent(6, 4, 3)).layers, cache.groups[:1], cache.fingerprint),
            "1 groups for 2",
        ),
    ]:
        with pytest.raises(CacheError, match=message):
            call()


def test_saved_and_loaded(tmp_path):
    cache = encode(weights=[1.0, 0.5], mode="cs", caption="a character")
    for dtype in (torch.float32, torch.bfloat16):
        stored = cache.to(dtype=dtype)
        stored.save(tmp_path / "reference.safetensors")
        assert equal(
            ReferenceCache.load(tmp_path / "reference.safetensors", expect=stored.fingerprint), stored
        )
    assert [path.name for path in tmp_path.iterdir()] == ["reference.safetensors"]
    assert (tmp_path / "reference.safetensors").stat().st_size < cache.nbytes / 2 + 4096


def test_files_that_are_no_cache(tmp_path):
    path = tmp_path / "reference.safetensors"
    with pytest.raises(WeightsError, match="does not exist"):
        ReferenceCache.load(path)
    encode().save(path)
    whole = path.read_bytes()
    for data, message in ((whole[: len(whole) // 2], "cut short"), (b"<html>", "a web page"), (b"", "empty")):
        path.write_bytes(data)
        with pytest.raises(WeightsError, match=message):
            ReferenceCache.load(path)
    save_weights({"a": torch.zeros(1)}, path)
    with pytest.raises(CacheError, match="has format None, not 'snapref_cache/1'; save an encoded"):
        ReferenceCache.load(path)


def marked(number: int, **options) -> ReferenceCache:
    """A cache of one picture whose pixels are named by a number."""
    settings = {"pixels": [torch.full((1, 3, 4, 4), float(number))], "mode": "cs", "caption": "a character"}
    return encode(latent(6, 4, 3), **{**settings, **options})


@pytest.mark.parametrize(
    "change, part",
    [
        ({"model": tiny_model(seed=9)}, r"the base \(\w{8}… here, \w{8}… expected\)"),
        ({"adapter": tiny_adapter(seed=9)}, "the adapter"),
        ({"pixels": [torch.zeros(1, 3, 4, 4)]}, "the pixels of picture 1"),
        ({"mode": "char"}, r"the mode of picture 1 \('char' here, 'cs' expected\)"),
        ({"caption": "a style"}, "the caption of picture 1"),
        (
            {"place": (0, 21, 0)},
            r"the place of picture 1 \(\(0.0, 21.0, 0.0\) here, \(0.0, 20.0, 0.0\) expected\)",
        ),
        ({"keep": [torch.arange(6) > 2]}, "the tokens of picture 1"),
    ],
)
def test_a_loaded_cache_must_be_of_the_same_things(tmp_path, change, part):
    expected = marked(1).fingerprint
    marked(1, **change).save(tmp_path / "other.safetensors")
    with pytest.raises(
        CacheError, match=rf"was made from something else: {part}[^;]*; encode the picture again"
    ):
        ReferenceCache.load(tmp_path / "other.safetensors", expect=expected)
    ReferenceCache.load(tmp_path / "other.safetensors")  # without an expectation it is read


def test_all_differences_are_named_at_once(tmp_path):
    both = encode(mode="char").to(dtype=torch.float16)
    both.save(tmp_path / "two.safetensors")
    with pytest.raises(CacheError, match="the dtype .*; the number of pictures .*; the pixels .*; the mode"):
        ReferenceCache.load(tmp_path / "two.safetensors", expect=marked(1).fingerprint)


def test_the_fingerprint_follows_pixels_not_the_object():
    assert marked(1).fingerprint == marked(1).fingerprint
    assert marked(1).fingerprint != marked(2).fingerprint
    size = marked(1).fingerprint.pictures[0].size
    assert size == (1, 6, 4)


def test_a_hash_is_made_anew_once_a_weight_changes():
    torch.manual_seed(0)
    model, adapter = AnimaDiT(TINY).requires_grad_(False), tiny_adapter()
    first = encode(model=model, adapter=adapter).fingerprint
    weight = model.blocks[1].mlp.layer2.weight
    weight.view(-1)[-1] += 1e-3  # one number of one tensor
    changed = encode(model=model, adapter=adapter).fingerprint
    assert changed.base != first.base and changed.adapter == first.adapter
    weight.view(-1)[-1] -= 1e-3
    adapter.get_submodule("tgt.blocks.0.self_attn.q_proj").lora_B.weight.mul_(2)
    assert encode(model=model, adapter=adapter).fingerprint.adapter != first.adapter
    with merged(model, adapter.target):
        pass
    assert encode(model=model, adapter=adapter).fingerprint.base in (first.base, changed.base)


def test_joining_needs_the_same_base_and_adapter():
    ours = marked(1)
    joined = ReferenceCache.concat([ours, marked(2, mode="char")])
    assert [picture.mode for picture in joined.fingerprint.pictures] == ["cs", "char"]
    assert equal(joined.select([0]), ours)
    with pytest.raises(
        CacheError, match="cache 2 does not fit the first: the adapter .* encode all pictures with"
    ):
        ReferenceCache.concat([ours, marked(1, adapter=tiny_adapter(seed=9))])
    with pytest.raises(CacheError, match="the dtype .'float16' here, 'float32' expected"):
        ReferenceCache.concat([ours, ours.to(dtype=torch.float16)])


def test_joining_needs_one_language_model_where_it_is_known():
    def heard(model):
        cache = marked(1)
        return dataclasses.replace(cache, fingerprint=dataclasses.replace(cache.fingerprint, language_model=model))

    assert ReferenceCache.concat([heard(""), heard("a"), heard("")]).fingerprint.language_model == "a"
    for models in (["a", "b"], ["", "a", "b"], ["a", "", "b"]):
        with pytest.raises(CacheError, match="the language model .'b' here, 'a' expected"):
            ReferenceCache.concat([heard(model) for model in models])


def test_never_encoded_through_the_target_branch():
    with merged(tiny_model(), tiny_adapter().target):
        with pytest.raises(MergeError, match="encode the reference before merging"):
            encode()
    encode()


@pytest.mark.parametrize("dtype, bound", [(torch.float16, 2e-3), (torch.bfloat16, 4e-2)])
def test_half_precision_stays_near(dtype, bound):
    torch.manual_seed(0)
    model = AnimaDiT(TINY).requires_grad_(False).to(dtype)
    wide = AnimaDiT(TINY).requires_grad_(False)
    wide.load_state_dict(model.state_dict())
    exact = encode(model=wide)
    before = {name: (weight, weight.clone()) for name, weight in model.named_parameters()}
    half = encode(model=model)
    for (k, v), (k32, v32) in zip(half.layers, exact.layers, strict=True):
        assert k.dtype == v.dtype == dtype
        assert (k - k32).abs().max() / k32.abs().max() < bound
        assert (v - v32).abs().max() / v32.abs().max() < bound
        if dtype == torch.float16:  # encoded in fp32, rounded once: the nearest half-precision number
            assert torch.equal(k, k32.half()) and torch.equal(v, v32.half())
    for name, weight in model.named_parameters():
        assert weight is before[name][0] and torch.equal(weight, before[name][1])


def test_a_number_out_of_range_names_the_block():
    torch.manual_seed(0)
    model = AnimaDiT(TINY).requires_grad_(False).half()
    model.blocks[1].self_attn.v_proj.weight.fill_(60_000)
    with pytest.raises(
        NonFiniteError, match="block 1: .* not finite in torch.float16; load the model in bfloat16"
    ):
        encode(model=model)
