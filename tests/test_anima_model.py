"""What the model promises beyond golden numbers: frames, places, sizes, memory, branches, first weights."""

import dataclasses

import pytest
import torch
from anima_golden import TINY, apart, tiny_model
from hypothesis import given
from hypothesis import strategies as st

from snapref.anima.attention import KeyGroup
from snapref.anima.init import initialise
from snapref.anima.lowrank import LowRank, project
from snapref.anima.model import AnimaDiT
from snapref.anima.rope import apply_rope, rope_angles

MODEL = tiny_model()


def inputs(frames=1, height=6, width=8, rows=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    latent = torch.randn(rows, 16, frames, height, width, generator=generator)
    return latent, torch.rand(rows, generator=generator), torch.randn(rows, 9, 48, generator=generator)


@given(height=st.integers(1, 9), width=st.integers(1, 9), frames=st.integers(1, 3))
def test_any_size_comes_back(height, width, frames):
    latent, sigma, context = inputs(frames, height, width, rows=1)
    assert MODEL(latent, sigma, context).shape == latent.shape


def test_odd_sides_are_padded_from_the_opposite_side():
    latent, sigma, context = inputs(height=5, width=7)
    wrapped = torch.cat((latent, latent[..., :1, :]), dim=-2)
    wrapped = torch.cat((wrapped, wrapped[..., :1]), dim=-1)
    model = tiny_model()
    assert torch.equal(model(latent, sigma, context), model(wrapped, sigma, context)[..., :5, :7])


def test_one_sigma_per_frame():
    model = tiny_model()
    latent, sigma, context = inputs(frames=3)
    same = model(latent, sigma[:, None].expand(-1, 3), context)
    assert apart(same, model(latent, sigma, context)) < 1e-5

    sigmas = torch.tensor([[0.0, 0.4, 0.9], [0.2, 0.2, 1.0]])
    mixed = model(latent, sigmas, context)
    assert apart(mixed, same) > 0.01
    # The blocks take a sigma for each token as well: the slow way to the same numbers.
    x, _, _, angles = model.enter(latent, sigma, (0.0, 0.0, 0.0))
    per_token = sigmas.repeat_interleave(x.shape[1] // 3, dim=1)
    waves = model.t_embedder[0](per_token)
    emb, lora = model.t_embedding_norm(waves), model.t_embedder[1](waves)
    for block in model.blocks:
        x = block(x, emb, lora, context, angles)
    assert apart(mixed, model.picture(model.final_layer(x, emb, lora), latent.shape)) < 1e-5


def test_rows_of_a_batch_do_not_meet():
    model = tiny_model()
    latent, sigma, context = inputs(rows=3)
    together = model(latent, sigma, context)
    for i in range(3):
        alone = model(latent[i : i + 1], sigma[i : i + 1], context[i : i + 1])
        assert apart(together[i : i + 1], alone) < 1e-5


def test_only_differences_of_place_matter():
    """Without memory a picture is the same wherever it sits, also at a fraction; its keys are not."""
    model = tiny_model()
    latent, sigma, context = inputs()
    here, there = (0.0, 0.0, 0.0), (1.5, 37.25, -4.0)
    assert apart(model(latent, sigma, context, place=there), model(latent, sigma, context)) < 1e-4
    keys = [model.keys_values(latent, sigma, context, place=place)[0][0] for place in (here, there)]
    assert apart(*keys) > 0.1


@given(t=st.floats(0, 4), h=st.floats(-100, 600), w=st.floats(-100, 600))
def test_angles_at_a_place_are_linear_in_it(t, h, w):
    at_zero = rope_angles(TINY.dit, 1, 1, 1)
    unit = [rope_angles(TINY.dit, 1, 1, 1, place)[0] for place in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    expected = t * unit[0] + h * unit[1] + w * unit[2]
    assert not at_zero.any()
    assert torch.allclose(rope_angles(TINY.dit, 1, 1, 1, (t, h, w))[0], expected, rtol=1e-5, atol=1e-4)


def test_rope_turns_and_keeps_length():
    x = torch.randn(1, 2, 12, 32, generator=torch.Generator().manual_seed(0))
    angles = rope_angles(TINY.dit, 1, 3, 4)
    turned = apply_rope(x, angles)
    pairs = torch.complex(x[..., :16], x[..., 16:]) * torch.polar(torch.ones_like(angles), angles)
    assert torch.allclose(turned, torch.cat((pairs.real, pairs.imag), dim=-1), atol=1e-5)
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)


def test_keys_values_are_those_the_forward_pass_uses():
    """Every key twice is a softmax like every key once: who reads a copy of its own keys stays as it is."""
    model = tiny_model()
    latent, sigma, context = inputs()
    offered = model.keys_values(latent, sigma, context)
    assert [k.shape for k, _ in offered] == [(2, 3, 12, 32)] * 3
    memory = [[KeyGroup(k, v)] for k, v in offered]
    assert apart(model(latent, sigma, context, memory=memory), model(latent, sigma, context)) < 1e-5


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_working_in_place_writes_over_nothing_of_anybodys(dtype, bound):
    """Without gradients values are written over: only such as the model made itself, and the numbers stay."""
    model = tiny_model().to(dtype)
    latent, sigma, context = inputs()
    with torch.no_grad():
        offered = model.keys_values(latent, sigma, context)
    given = [latent, sigma, context, *model.state_dict().values(), *(side for pair in offered for side in pair)]
    kept = [tensor.clone() for tensor in given]
    memory = [[KeyGroup(k, v, log_weight=0.3)] for k, v in offered]
    with torch.no_grad():
        found, again = (model(latent, sigma, context, memory=memory) for _ in range(2))
        model.keys_values(latent, sigma, context)
    model.requires_grad_()
    expected = model(latent, sigma, context, memory=memory).detach()
    assert all(torch.equal(now, then) for now, then in zip(given, kept, strict=True))
    assert torch.equal(found, again)
    assert (found - expected).norm() <= bound * expected.norm()
    assert all(side.is_contiguous() for pair in offered[:-1] for side in pair), "copied once, when made"


def test_keys_values_stop_at_the_last_block():
    model = tiny_model()
    latent, sigma, context = inputs()
    before = model.keys_values(latent, sigma, context)
    last = model.blocks[-1]
    dead = [last.self_attn.q_proj, last.self_attn.output_proj, last.mlp.layer1, last.cross_attn.v_proj]
    for linear in (*dead, model.final_layer.linear):
        linear.weight.fill_(torch.nan)
    for found, expected in zip(model.keys_values(latent, sigma, context), before, strict=True):
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_a_branch_equals_changed_weights():
    model = tiny_model()
    latent, sigma, context = inputs()
    generator = torch.Generator().manual_seed(1)
    modules = dict(model.blocks[0].named_modules())
    names = [n for n, m in modules.items() if isinstance(m, torch.nn.Linear) and "adaln" not in n]
    assert len(names) == 10

    def low_rank(linear):
        a = 0.1 * torch.randn(4, linear.in_features, generator=generator)
        return LowRank(a, 0.1 * torch.randn(linear.out_features, 4, generator=generator), 0.5)

    branch = [{name: low_rank(block.get_submodule(name)) for name in names} for block in model.blocks]
    beside = model(latent, sigma, context, branch=branch)
    keys = model.keys_values(latent, sigma, context, branch=branch)
    assert apart(beside, model(latent, sigma, context)) > 0.01
    for block, low_ranks in zip(model.blocks, branch, strict=True):
        for name, low in low_ranks.items():
            block.get_submodule(name).weight += low.scale * low.b @ low.a
    assert apart(beside, model(latent, sigma, context)) < 1e-5
    for found, expected in zip(keys, model.keys_values(latent, sigma, context), strict=True):
        assert apart(found[0], expected[0]) < 1e-5 and apart(found[1], expected[1]) < 1e-5


def test_project_by_hand():
    linear = torch.nn.Linear(2, 1, bias=False)
    linear.weight.data = torch.tensor([[1.0, 2.0]])
    low = LowRank(a=torch.tensor([[3.0, 0.0]]), b=torch.tensor([[5.0]]), scale=0.1)
    x = torch.tensor([[1.0, 1.0]])
    assert project(linear, x).item() == 3
    assert project(linear, x, low).item() == pytest.approx(3 + 0.1 * 5 * 3)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("shape", [(7,), (4, 7), (2, 4, 7), (0, 7)])
def test_a_low_rank_addition_and_its_gradients_are_the_formula(bias, scale, shape):
    torch.manual_seed(0)
    linear = torch.nn.Linear(7, 5, bias=bias).requires_grad_(False)
    x, a, b = (torch.randn(size, requires_grad=True) for size in (shape, (3, 7), (5, 3)))
    before = [side.detach().clone() for side in (x, a, b, linear.weight)]
    answers = project(linear, x, LowRank(a, b, scale)), linear(x) + scale * (x @ a.T @ b.T)
    found, wanted = ([y, *torch.autograd.grad(y.square().sum(), (x, a, b))] for y in answers)
    for ours, formula in zip(found, wanted, strict=True):
        assert torch.allclose(ours, formula, atol=1e-5)
    assert all(torch.equal(*pair) for pair in zip((x, a, b, linear.weight), before, strict=True))


def test_a_low_rank_addition_under_autocast_is_in_the_narrow_dtype():
    torch.manual_seed(0)
    linear = torch.nn.Linear(7, 5, bias=False)
    x, a, b = torch.randn(4, 7), torch.randn(3, 7), torch.randn(5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        y = project(linear, x, LowRank(a, b))
    assert y.dtype == torch.bfloat16 and torch.allclose(y.float(), linear(x) + x @ a.T @ b.T, atol=0.1, rtol=0.05)


def test_gradient_reaches_branch_memory_and_every_weight():
    model = initialise(AnimaDiT(TINY), torch.Generator().manual_seed(0))
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    latent, sigma, context = inputs(frames=2)
    low = LowRank(torch.randn(2, 96, requires_grad=True), torch.randn(96, 2, requires_grad=True))
    k, v = (torch.randn(1, 3, 5, 32, requires_grad=True) for _ in range(2))
    out = model(
        latent, sigma, context, memory=[[KeyGroup(k, v, 0.3)]] * 3, branch=[{"self_attn.q_proj": low}] * 3
    )
    out.square().mean().backward()
    leaves = [
        low.a,
        low.b,
        k,
        v,
        *(p for n, p in model.named_parameters() if not n.startswith("llm_adapter")),
    ]
    assert all(leaf.grad is not None and leaf.grad.abs().max() > 0 for leaf in leaves)


def test_a_fresh_model_changes_nothing_and_learns():
    model = initialise(AnimaDiT(TINY), torch.Generator().manual_seed(0))
    latent, sigma, context = inputs()
    assert not model(latent, sigma, context).any()
    again = initialise(AnimaDiT(TINY), torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))

    optimizer = torch.optim.AdamW([p for n, p in model.named_parameters() if "llm_adapter" not in n], lr=3e-3)
    losses = []
    for _ in range(30):
        loss = (model(latent, sigma, context) - latent).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_any_number_of_blocks(blocks):
    model = AnimaDiT(dataclasses.replace(TINY, dit=dataclasses.replace(TINY.dit, blocks=blocks)))
    latent, sigma, context = inputs()
    assert model(latent, sigma, context).shape == latent.shape
    assert len(model.keys_values(latent, sigma, context)) == blocks


def test_what_does_not_fit_is_said():
    model = tiny_model()
    latent, sigma, context = inputs(frames=2)
    with pytest.raises(ValueError, match="latent has 4 channels, the model takes 16"):
        model(latent[:, :4], sigma, context)
    with pytest.raises(ValueError, match=r"sigma has shape \(3,\): give \(2,\), or \(2, 2\)"):
        model(latent, torch.zeros(3), context)
    with pytest.raises(ValueError, match="memory has entries for 1 blocks, the model has 3"):
        model(latent, sigma, context, memory=[[]])
    with pytest.raises(ValueError, match="branch has entries for 2 blocks, the model has 3"):
        model(latent, sigma, context, branch=[{}, {}])
