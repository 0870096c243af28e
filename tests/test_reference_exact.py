"""The cached route gives the numbers of the joint forward: one sequence, a sigma per token, a mask."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_forward import Segment, joint_forward
from reference_case import (
    PLACE,
    TINY_ADAPTER,
    WIDE_REACH,
    context,
    latent,
    noise,
    segment,
    tiny_adapter,
    tiny_model,
)
from safetensors.torch import load_file

from snapref.reference import encode_reference, joint_velocity, merged

GOLDEN = Path(__file__).parent / "golden"
SIZES = st.sampled_from([2, 4, 6, 8, 10])
SIGMAS = st.floats(0.0, 1.0, width=32)
PLACES = st.tuples(st.sampled_from([0.0, 1.0]), st.floats(-40, 600, width=32), st.floats(-40, 40, width=32))
TOLERANCE = 1e-5  # relative to the largest value; fp32


def error(found, wanted) -> float:
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def joint(target, sigma, text, pictures, caption, adapter, place=PLACE, weights=None, visible=None):
    model = tiny_model()
    segments = [segment(target, sigma, text, adapter, "tgt")]
    for i, picture in enumerate(pictures):
        options = {"weight": weights[i] if weights else 1.0, "visible": visible[i] if visible else None}
        segments.append(segment(picture, 0.0, caption, adapter, "ref", place, **options))
    return joint_forward(model.state_dict(), segments, heads=3)


def cached(target, sigma, text, cache, adapter, strength=1.0):
    memory = cache.memory(strength=strength)
    with torch.no_grad():
        return tiny_model()(target, torch.tensor([sigma]), text, memory=memory, branch=adapter.target)[
            0, :, 0
        ]


@pytest.mark.parametrize("config", [TINY_ADAPTER, WIDE_REACH], ids=lambda config: config.name)
@pytest.mark.parametrize("pictures", [1, 2, 3])
@pytest.mark.parametrize("height, width", [(8, 8), (6, 10), (2, 12)])
def test_cached_equals_joint(config, pictures, height, width):
    adapter = tiny_adapter(config)
    target, text, caption = latent(height, width, 0), context(9, 1), context(7, 2)
    references = [latent(8, 6 + 2 * i, 10 + i) for i in range(pictures)]
    cache = encode_reference(tiny_model(), adapter, references, caption)
    wanted = joint(target, 0.6, text, references, caption, adapter)
    assert error(cached(target, 0.6, text, cache, adapter), wanted) < TOLERANCE
    # The comparison sees a lost reference, a lost branch and a wrong place.
    without = tiny_model()(target, torch.tensor([0.6]), text, branch=adapter.target)[0, :, 0]
    assert error(without, wanted) > 1e-2
    moved = encode_reference(tiny_model(), adapter, references, caption, place=(0, 21, 0))
    assert error(cached(target, 0.6, text, moved, adapter), wanted) > 1e-3
    other = encode_reference(tiny_model(), tiny_adapter(config, seed=5), references, caption)
    assert error(cached(target, 0.6, text, other, adapter), wanted) > 1e-3


@given(
    height=SIZES,
    width=SIZES,
    sigma=SIGMAS,
    place=PLACES,
    seed=st.integers(0, 99),
    weights=st.lists(st.sampled_from([0.0, 0.3, 1.0, 2.0]), min_size=1, max_size=3),
)
@settings(max_examples=25, deadline=None)
def test_cached_equals_joint_anywhere(height, width, sigma, place, seed, weights):
    """Any target size, any sigma, whole and fractional places, one to three pictures with weights."""
    adapter = tiny_adapter()
    target, text, caption = latent(height, width, seed), context(9, seed + 1), context(7, seed + 2)
    references = [latent(4, 6, seed + 10 + i) for i in range(len(weights))]
    cache = encode_reference(tiny_model(), adapter, references, caption, place=place, weights=weights)
    wanted = joint(target, sigma, text, references, caption, adapter, place, weights)
    assert error(cached(target, sigma, text, cache, adapter), wanted) < TOLERANCE


@given(seeds=st.tuples(*[st.integers(0, 999)] * 2), sizes=st.tuples(SIZES, SIZES), sigma=SIGMAS)
@settings(max_examples=10, deadline=None)
def test_using_a_cache_does_not_change_it(seeds, sizes, sigma):
    """The same cache whatever was drawn with it in between: another prompt, noise, seed and target size."""
    adapter, caption, reference = tiny_adapter(), context(7, 2), latent(6, 4, 3)
    first = encode_reference(tiny_model(), adapter, [reference], caption)
    before = [(k.clone(), v.clone()) for k, v in first.layers]
    torch.manual_seed(seeds[0])
    with merged(tiny_model(), adapter.target):
        tiny_model()(
            latent(*sizes, seeds[1]), torch.tensor([sigma]), context(9, seeds[0]), memory=first.memory()
        )
    again = encode_reference(tiny_model(), adapter, [reference], caption)
    for old, kept, new in zip(before, first.layers, again.layers, strict=True):
        for a, b, c in zip(old, kept, new, strict=True):
            assert torch.equal(a, b) and torch.equal(a, c)
    assert again.fingerprint == first.fingerprint


def test_a_picture_is_encoded_as_if_it_were_alone():
    adapter, caption = tiny_adapter(), context(7, 2)
    references = [latent(6, 4, 3), latent(4, 8, 4)]
    both = encode_reference(tiny_model(), adapter, references, caption)
    for i, reference in enumerate(references):
        alone = encode_reference(tiny_model(), adapter, [reference], caption)
        for one, picked in zip(alone.layers, both.select([i]).layers, strict=True):
            assert all(map(torch.equal, one, picked))
        assert both.select([i]).fingerprint == alone.fingerprint


def test_masked_reference_tokens_cannot_be_read():
    adapter, caption, text, target = tiny_adapter(), context(7, 2), context(9, 1), latent(6, 6, 0)
    reference, keep = latent(6, 8, 3), torch.arange(12) % 3 > 0
    cache = encode_reference(tiny_model(), adapter, [reference], caption, keep=[keep])
    assert cache.tokens == (8,)
    wanted = joint(target, 0.4, text, [reference], caption, adapter, visible=[keep])
    assert error(cached(target, 0.4, text, cache, adapter), wanted) < TOLERANCE


DEAD = (
    "self_attn.q_proj",
    "self_attn.output_proj",
    "cross_attn.q_proj",
    "cross_attn.output_proj",
    "mlp.layer1",
    "mlp.layer2",
)


@pytest.mark.parametrize("module", [*DEAD, "self_attn.k_proj", "self_attn.v_proj"])
def test_only_k_and_v_of_the_last_block_are_alive(module):
    caption, reference = context(7, 2), latent(6, 4, 3)
    plain = encode_reference(tiny_model(), tiny_adapter(), [reference], caption)
    changed = tiny_adapter()
    pair = changed.get_submodule(f"ref.blocks.2.{module}")
    pair.lora_A.weight.add_(1)
    pair.lora_B.weight.add_(1)
    cache = encode_reference(tiny_model(), changed, [reference], caption)
    same = all(
        torch.equal(a, b)
        for one, two in zip(plain.layers, cache.layers, strict=True)
        for a, b in zip(one, two, strict=True)
    )
    assert same == (module in DEAD)
    earlier = tiny_adapter()
    earlier.get_submodule(f"ref.blocks.1.{module}").lora_B.weight.add_(1)
    touched = encode_reference(tiny_model(), earlier, [reference], caption)
    assert not torch.equal(plain.layers[2][0], touched.layers[2][0])


@given(weight=st.floats(0.125, 4, width=32), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_a_weight_of_two_is_the_picture_twice(weight, seed):
    adapter, caption, text, target = tiny_adapter(), context(7, 2), context(9, 1), latent(6, 6, seed)
    one = encode_reference(tiny_model(), adapter, [latent(6, 4, 3)], caption)
    twice = cached(target, 0.5, text, one.select([0, 0]), adapter)
    assert error(cached(target, 0.5, text, one.with_weights([2]), adapter), twice) < TOLERANCE
    assert error(cached(target, 0.5, text, one, adapter, strength=2.0), twice) < TOLERANCE
    # Strength and weight multiply, and each half of a doubled picture carries half the weight.
    split = one.select([0, 0]).with_weights([weight / 2] * 2)
    assert (
        error(
            cached(target, 0.5, text, split, adapter, strength=1.0),
            cached(target, 0.5, text, one.with_weights([weight * 2]), adapter, strength=0.5),
        )
        < TOLERANCE
    )


def test_off_means_the_base_bit_for_bit():
    """With nothing to read the memory is empty, and without the target branch the base remains."""
    adapter, text, target, sigma = tiny_adapter(), context(9, 1), latent(6, 6, 0), torch.tensor([0.5])
    cache = encode_reference(tiny_model(), adapter, [latent(6, 4, 3), latent(4, 4, 4)], context(7, 2))
    base = tiny_model()(target, sigma, text)
    for memory in (cache.memory(strength=0), cache.with_weights([0, 0]).memory(), cache.memory(rows=())):
        assert torch.equal(tiny_model()(target, sigma, text, memory=memory), base)
    # A picture of weight 0 is as if it were not there.
    one = cached(target, 0.5, text, cache.with_weights([1, 0]), adapter)
    assert torch.equal(one, cached(target, 0.5, text, cache.select([0]), adapter))


def test_each_row_of_a_batch_reads_its_own():
    adapter, target = tiny_adapter(), latent(6, 6, 0)
    text = torch.cat([context(9, 1), context(9, 5), context(9, 6)])
    first, second = (
        encode_reference(tiny_model(), adapter, [latent(6, 4, i)], context(7, 2)) for i in (3, 4)
    )
    memory = [
        a + b for a, b in zip(first.memory(rows=(0,)), second.memory(rows=(2,), strength=0.7), strict=True)
    ]
    sigma = torch.full((3,), 0.5)
    batch = tiny_model()(target.expand(3, -1, -1, -1, -1), sigma, text, memory=memory, branch=adapter.target)
    alone = [
        cached(target, 0.5, text[:1], first, adapter),
        tiny_model()(target, sigma[:1], text[1:2], branch=adapter.target)[0, :, 0],
        cached(target, 0.5, text[2:], second, adapter, strength=0.7),
    ]
    for row, wanted in enumerate(alone):
        assert error(batch[row, :, 0], wanted) < TOLERANCE


def test_training_computes_the_same_and_reaches_every_live_matrix():
    adapter = tiny_adapter().requires_grad_(True)
    noisy, text = noise(3, 16, 1, 6, 6, seed=0), torch.cat([context(9, i) for i in range(3)])
    references, caption = noise(2, 16, 1, 4, 6, seed=7), context(7, 2)
    sigma = torch.tensor([0.2, 0.5, 0.9])
    velocity = joint_velocity(
        tiny_model(), adapter, noisy, sigma, text, references, caption, reference_rows=(0, 2)
    )
    for row, reference in ((0, references[:1]), (1, None), (2, references[1:])):
        pictures = [] if reference is None else [reference]
        wanted = joint(
            noisy[row : row + 1], sigma[row].item(), text[row : row + 1], pictures, caption, adapter
        )
        assert error(velocity[row, :, 0].detach(), wanted.detach()) < TOLERANCE
    velocity.square().mean().backward()
    dead = {name for name, p in adapter.named_parameters() if p.grad is None or not p.grad.any()}
    assert dead == {f"ref.blocks.2.{module}.lora_{m}.weight" for module in DEAD for m in "AB"}


def test_training_without_any_reference_runs_the_target_branch():
    adapter, target, text = tiny_adapter(), latent(6, 6, 0), context(9, 1)
    wanted = tiny_model()(target, torch.tensor([0.5]), text, branch=adapter.target)
    for latents in (None, noise(0, 16, 1, 4, 6, seed=7)):
        found = joint_velocity(
            tiny_model(), adapter, target, torch.tensor([0.5]), text, latents, None, reference_rows=()
        )
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("case", ["a", "b"])
def test_the_oracle_itself_gives_the_published_numbers(case):
    """The joint forward of a target alone, against vectors made with the base model's training code."""
    tensors = load_file(GOLDEN / "tiny_anima_state_dict.safetensors")
    weights = {name.removeprefix("net."): tensor for name, tensor in tensors.items()}
    io = load_file(GOLDEN / "dit_io.safetensors")
    for row, wanted in enumerate(io[f"{case}.out"]):
        alone = Segment(io[f"{case}.x"][row, :, 0], io[f"{case}.t"][row].item(), io[f"{case}.context"][row])
        assert error(joint_forward(weights, [alone], heads=3), wanted[:, 0]) < TOLERANCE
