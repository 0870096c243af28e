"""The numbers of sd-scripts and ComfyUI (specification, golden vectors), to 1e-5."""

import pytest
import torch
from anima_golden import apart, golden, tiny_model

from snapref.anima.model import Sinusoid
from snapref.anima.rope import cos_sin, rope_angles
from snapref.anima.text import contexts
from snapref.config import BASE

CLOSE = 1e-5


@pytest.mark.parametrize("case, out", [("a", "a.out"), ("b", "b.out"), ("c", "c.out_comfy")])
def test_velocity(case, out):
    io = golden("dit_io")
    found = tiny_model()(io[f"{case}.x"], io[f"{case}.t"], io[f"{case}.context"])
    assert found.shape == io[out].shape
    assert apart(found, io[out]) < CLOSE


@pytest.mark.parametrize("case", ["a", "b"])
def test_every_intermediate_value(case):
    io, model, seen = golden("dit_io"), tiny_model(), {}
    watched = {
        "x_embedder": model.x_embedder,
        "t_sinusoid": model.t_embedder[0],
        "adaln_lora": model.t_embedder[1],
        "t_emb": model.t_embedding_norm,
        "block0.self_attn": model.blocks[0].self_attn.output_proj,
        "block0.cross_attn": model.blocks[0].cross_attn.output_proj,
        "block0.mlp": model.blocks[0].mlp,
        "final_layer": model.final_layer,
        **{f"block{i}.out": block for i, block in enumerate(model.blocks)},
    }
    for name, module in watched.items():
        module.register_forward_hook(lambda _, __, out, name=name: seen.update({name: out}))
    model(io[f"{case}.x"], io[f"{case}.t"], io[f"{case}.context"])

    expected = {name: t for name, t in io.items() if name.startswith(f"{case}.mid.")}
    assert {f"{case}.mid.{name}" for name in seen} == expected.keys()
    for name, found in seen.items():
        value = expected[f"{case}.mid.{name}"]
        assert apart(found.reshape(value.shape), value) < CLOSE, name


def test_queries_keys_and_values_after_norm_and_rope():
    io, model = golden("dit_io"), tiny_model()
    attention, x = model.blocks[0].self_attn, io["qkv.in"]
    angles = rope_angles(model.config.dit, 1, 3, 5)
    q = attention.query(x, cos_sin(angles), {})
    k, v = attention.key_value(x, cos_sin(angles), {})
    for name, found in (("q", q), ("k", k), ("v", v)):
        assert apart(found.transpose(1, 2), io[f"qkv.{name}"]) < CLOSE, name


@pytest.mark.parametrize("case, grid", [("a", (1, 4, 4)), ("b", (1, 3, 5))])
def test_rope_of_the_tiny_model(case, grid):
    both_halves = golden("dit_io")[f"{case}.rope_angles"]
    assert apart(rope_angles(tiny_model().config.dit, *grid), both_halves[:, :16]) < CLOSE


def test_rope_at_full_size():
    io = golden("dit_io")
    assert apart(rope_angles(BASE.dit, 1, 4, 6), io["real.rope_angles_4x6"][:, :64]) < CLOSE
    large = rope_angles(BASE.dit, 1, 96, 64)
    assert apart(large[95 * 64 + 63], io["real.rope_angles_96x64_last"][:64]) < CLOSE
    assert apart(large[40 * 64 + 7], io["real.rope_angles_96x64_r40_c7"][:64]) < CLOSE


def test_sinusoid_at_full_width():
    io = golden("dit_io")
    assert apart(Sinusoid(2048)(io["real.sigmas_in"]), io["real.t_sinusoid_2048"]) < CLOSE


@pytest.mark.parametrize("dtype, name", [(torch.float16, "fp16"), (torch.bfloat16, "bf16")])
def test_half_precision(dtype, name):
    """As near to fp32 as ComfyUI's own half precision is, and nearer to ComfyUI than that.

    By norms, 0.95 to 1.01 of ComfyUI's with every kind of vector instructions: which number is farthest off is chance.
    """
    io = golden("dit_io")
    own = (io[f"b.out_comfy_{name}"] - io["b.out"]).norm()
    found = tiny_model(dtype)(io["b.x"], io["b.t"], io["b.context"])
    assert found.dtype == torch.float32, "latents stay fp32 around the model"
    assert (found - io["b.out"]).norm() < 1.25 * own
    assert (found - io[f"b.out_comfy_{name}"]).norm() < own


def test_residual_stream_is_fp32_only_for_fp16():
    io = golden("dit_io")
    for dtype, stream in ((torch.float16, torch.float32), (torch.bfloat16, torch.bfloat16)):
        model, seen = tiny_model(dtype), []
        for block in model.blocks:
            block.register_forward_hook(lambda _, __, out, seen=seen: seen.append(out.dtype))
        model(io["b.x"], io["b.t"], io["b.context"])
        assert seen == [stream] * 3


def test_adapter():
    io, adapter = golden("adapter_io"), tiny_model().llm_adapter
    assert apart(adapter(io["one.ids"], io["one.source"]), io["one.out"]) < CLOSE
    assert apart(adapter(io["empty.ids"], io["empty.source"]), io["empty.out_comfy_rule"]) < CLOSE
    masked = adapter(io["empty.ids"], torch.zeros(1, 8, 40), source_mask=torch.zeros(1, 8))
    assert apart(masked, io["empty.out_kohya_rule_row0"]) < CLOSE


def test_adapter_in_a_padded_batch():
    io, adapter = golden("adapter_io"), tiny_model().llm_adapter
    found = contexts(
        adapter, io["two.ids"], io["two.target_mask"], io["two.source"], io["two.source_mask"], 20
    )
    assert apart(found[:, :12], io["two.out_zeroed"]) < CLOSE
    assert found.shape == (2, 20, 48) and not found[:, 12:].any()
