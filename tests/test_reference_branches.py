"""The two branches: what they touch, how many numbers they hold, and that merging leaves no trace."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_case import TINY, TINY_ADAPTER, context, latent, tiny_adapter, tiny_model

from snapref.anima.model import AnimaDiT
from snapref.config import BASE, NANO, NANO_V1A, V1A, V1B
from snapref.reference import Adapter, MergeError, is_merged, merged
from snapref.reference.branches import Spec, linear_shapes


@pytest.mark.parametrize("config, count", [(V1A, 190_840_832), (V1B, 381_681_664)], ids=["v1a", "v1b"])
def test_full_size_counts(config, count):
    with torch.device("meta"):
        adapter = Adapter(config, BASE)
    assert adapter.parameter_count == count
    assert len(list(adapter.parameters())) == 672
    shape = adapter.get_parameter("ref.blocks.27.mlp.layer1.lora_B.weight").shape
    assert shape == (8192, config.reference_rank)


def test_names_and_shapes_are_those_of_the_base():
    with torch.device("meta"):
        model = AnimaDiT(NANO)
    for name, shape in linear_shapes(NANO.dit).items():
        assert model.blocks[0].get_submodule(name).weight.shape == shape
    adapter = Adapter(NANO_V1A, NANO)
    assert "ref.blocks.0.self_attn.q_proj.lora_A.weight" in adapter.state_dict()
    assert len(adapter.reference) == len(adapter.target) == NANO.dit.blocks
    assert set(adapter.target[5]) == set(NANO_V1A.target_targets)


def test_a_new_adapter_changes_nothing_and_learns():
    adapter = Adapter(TINY_ADAPTER, TINY)
    x, sigma, text = latent(6, 6, 0), torch.tensor([0.5]), context(9, 1)
    base = tiny_model()(x, sigma, text)
    velocity = tiny_model()(x, sigma, text, branch=adapter.target)
    assert torch.equal(velocity, base)
    velocity.sum().backward()
    assert adapter.get_parameter("tgt.blocks.0.self_attn.q_proj.lora_B.weight").grad.any()
    assert (
        adapter.reference[0]["mlp.layer1"].scale == 2.0 and adapter.target[0]["self_attn.q_proj"].scale == 0.5
    )
    # A keeps the variance of what it is given, whatever the width.
    down = Adapter(V1A, NANO).get_parameter("ref.blocks.0.mlp.layer2.lora_A.weight")
    assert abs(down.std() * down.shape[1] ** 0.5 - 1) < 0.03


def test_any_layout_can_be_asked_for():
    """One target projection only and other ranks per module, as a file may have them."""
    specs = {"ref.blocks.1.cross_attn.k_proj": Spec(3, 1.0), "tgt.blocks.2.mlp.layer2": Spec(5, 0.5)}
    adapter = Adapter(TINY_ADAPTER, TINY, specs)
    assert [list(block) for block in adapter.reference] == [[], ["cross_attn.k_proj"], []]
    assert adapter.target[2]["mlp.layer2"].a.shape == (5, 384)
    assert adapter.parameter_count == 3 * (48 + 96) + 5 * (384 + 96)
    for wrong in (
        "ref.blocks.3.mlp.layer1",
        "ref.blocks.0.mlp.layer3",
        "other.blocks.0.mlp.layer1",
        "ref.mlp",
    ):
        with pytest.raises(ValueError, match=f"'tiny' has no place for '{wrong}'; names are"):
            Adapter(TINY_ADAPTER, TINY, {wrong: Spec(1, 1.0)})


def test_merged_is_the_branch():
    adapter, x, sigma, text = tiny_adapter(), latent(6, 6, 0), torch.tensor([0.5]), context(9, 1)
    wanted = tiny_model()(x, sigma, text, branch=adapter.target)
    with merged(tiny_model(), adapter.target) as model:
        assert model is tiny_model() and is_merged(model)
        found = model(x, sigma, text)
    assert (found - wanted).abs().max() / wanted.abs().max() < 1e-5
    assert not is_merged(tiny_model())


class Stop(BaseException):
    pass


@given(
    st.sampled_from([None, ValueError, KeyboardInterrupt, Stop]),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    st.integers(0, 99),
)
@settings(max_examples=20, deadline=None)
def test_originals_come_back_bit_for_bit(reason, dtype, seed):
    torch.manual_seed(seed)
    model = AnimaDiT(TINY).requires_grad_(False).to(dtype)
    before = {name: (weight, weight.data_ptr(), weight.clone()) for name, weight in model.named_parameters()}
    try:
        with merged(model, tiny_adapter(seed=seed).target):
            changed = {
                name for name, weight in model.named_parameters() if not torch.equal(weight, before[name][2])
            }
            assert len(changed) == 3 * 4
            assert all(weight.dtype == dtype for weight in model.parameters())
            if reason:
                raise reason("stop")
    except (ValueError, KeyboardInterrupt, Stop):
        assert reason
    for name, weight in model.named_parameters():
        parameter, address, values = before[name]
        assert weight is parameter and weight.data_ptr() == address and torch.equal(weight, values)
    assert not is_merged(model)


def test_a_failure_half_way_through_merging_is_undone():
    branch = tiny_adapter().target
    misfit = [branch[0], {**branch[1], "mlp.layer1": branch[1]["self_attn.q_proj"]}, branch[2]]
    before = dict(tiny_model().named_parameters())
    for wrong, kind in ((misfit, RuntimeError), (branch[:2], ValueError)):
        with pytest.raises(kind):
            with merged(tiny_model(), wrong):
                raise AssertionError("never entered")
        assert all(weight is before[name] for name, weight in tiny_model().named_parameters())
    with merged(tiny_model(), branch):
        pass


def test_nested_use_is_refused_in_one_sentence():
    adapter = tiny_adapter()
    with merged(tiny_model(), adapter.target):
        with pytest.raises(MergeError, match="already carries a branch; leave that"):
            with merged(tiny_model(), adapter.target):
                pass
        assert is_merged(tiny_model())  # the refused one did not undo the outer one
    with merged(tiny_model(), adapter.reference), merged(tiny_model(seed=9), adapter.target):
        pass  # another model is another matter


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_summed_in_fp32(dtype):
    torch.manual_seed(0)
    model, adapter = AnimaDiT(TINY).requires_grad_(False).to(dtype), tiny_adapter()
    linear, low_rank = model.blocks[0].self_attn.q_proj, adapter.target[0]["self_attn.q_proj"]
    exact = linear.weight.double() + low_rank.scale * low_rank.b.double() @ low_rank.a.double()
    with merged(model, adapter.target):
        error = (linear.weight.double() - exact).abs()
    assert (error <= exact.abs() * torch.finfo(dtype).eps / 2 + 1e-7).all()  # rounded once
