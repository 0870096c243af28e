"""Files in eight bits: each public layout gives what dividing and multiplying by hand gives; others are refused."""

import json

import pytest
import torch
import torch.nn.functional as F
from pipeline_case import TINY, tiny_adapter, tiny_parts
from safetensors.torch import save_file

from snapref.anima.linear import Float8Linear, effective_weight
from snapref.files.loader import WeightsError, load_model, load_qwen
from snapref.reference.branches import merged
from snapref.reference.fingerprint import hash_module

E4M3 = torch.float8_e4m3fn
FP8_MODULES = ("self_attn", "cross_attn", "mlp.layer")  # as in the real header that was seen
LATENT = torch.randn(2, 16, 1, 6, 4, generator=torch.Generator().manual_seed(0))
CONTEXT = torch.randn(2, 12, 32, generator=torch.Generator().manual_seed(1))
SIGMA = torch.tensor([0.9, 0.3])


def is_quantised(name: str, tensor: torch.Tensor) -> bool:
    ours = any(m in name for m in FP8_MODULES) and "adaln" not in name
    return name.startswith("blocks.") and ours and tensor.ndim == 2


def scale_of(weight: torch.Tensor, rows: str) -> torch.Tensor:
    top = {
        "one": weight.abs().max(),
        "row": weight.abs().amax(1, keepdim=True),
        "pieces": weight.unflatten(1, (4, -1)).abs().amax(2, keepdim=True),
    }[rows]
    return top.float() / 448


def divided(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (weight.unflatten(1, (4, -1)) / scale).flatten(1) if scale.ndim == 3 else weight / scale


def multiplied(fp8: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    wide = fp8.double()
    return (wide.unflatten(1, (4, -1)) * scale).flatten(1) if scale.ndim == 3 else wide * scale


def quantised(layout: str, rows: str = "one", prefix: str = "net."):
    """(tensors of a file, its header, the same weights multiplied out by hand in float64)."""
    tensors, metadata, by_hand = {}, {}, {}
    for name, tensor in tiny_parts()[0].state_dict().items():
        if not is_quantised(name, tensor):
            tensors[prefix + name], by_hand[name] = tensor.clone(), tensor
            continue
        module = prefix + name.removesuffix(".weight")
        if layout == "plain":
            tensors[f"{module}.weight"] = tensor.to(E4M3)
            by_hand[name] = tensor.to(E4M3).double()
            continue
        scale = scale_of(tensor, rows)
        fp8 = divided(tensor, scale).to(E4M3)
        tensors[f"{module}.weight"], by_hand[name] = fp8, multiplied(fp8, scale)
        entry = {"format": "float8_e4m3fn", "full_precision_matrix_mult": False}
        if layout == "older":
            tensors[f"{module}.scale_weight"] = scale
            tensors[f"{module}.scale_input"] = torch.ones(())
            tensors[f"{prefix}scaled_fp8"] = torch.empty(0, dtype=E4M3)
        else:
            tensors[f"{module}.weight_scale"] = scale
            tensors[f"{module}.input_scale"] = torch.ones(())
            if layout == "current":
                tensors[f"{module}.comfy_quant"] = torch.tensor(list(json.dumps(entry).encode()), dtype=torch.uint8)
            else:
                layers = json.loads(metadata.get("_quantization_metadata", '{"layers": {}}'))
                layers["layers"][module] = entry
                metadata["_quantization_metadata"] = json.dumps(layers)
    return tensors, metadata, {name: tensor.float() for name, tensor in by_hand.items()}


def written(tmp_path, tensors, metadata=None):
    save_file(tensors, tmp_path / "fp8.safetensors", metadata=metadata or None)
    return tmp_path / "fp8.safetensors"


LAYOUTS = [(layout, "one") for layout in ("plain", "current", "header", "older")]
LAYOUTS += [("older", "row"), ("older", "pieces")]


@pytest.mark.parametrize("layout, rows", LAYOUTS)
@torch.no_grad()
def test_every_layout_equals_multiplying_out_by_hand(layout, rows, tmp_path):
    tensors, metadata, by_hand = quantised(layout, rows)
    model = load_model(written(tmp_path, tensors, metadata), TINY, torch.float32)
    wide = [m for m in model.modules() if isinstance(m, Float8Linear)]
    assert len(wide) == 10 * TINY.dit.blocks and all(m.weight.dtype == E4M3 for m in wide), "fp8 stays fp8 in memory"
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            assert torch.allclose(effective_weight(module), by_hand[f"{name}.weight"], rtol=1e-6, atol=0), name
    plain = type(model)(TINY).eval()
    plain.load_state_dict(by_hand)
    ours, theirs = model(LATENT, SIGMA, CONTEXT), plain(LATENT, SIGMA, CONTEXT)
    assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max()
    assert (ours - tiny_parts()[0](LATENT, SIGMA, CONTEXT)).abs().max() > 1e-3, "fp8 rounds: the weights were not ours"


@torch.no_grad()
def test_casting_a_model_leaves_eight_bits_and_scales_alone(tmp_path):
    tensors, metadata, by_hand = quantised("current", "one", "model.diffusion_model.")
    model = load_model(written(tmp_path, tensors, metadata), TINY, torch.bfloat16)
    assert model.dtype == torch.bfloat16
    before = hash_module(model.blocks)
    model.blocks.float().half().bfloat16()
    linear = model.blocks[0].mlp.layer1
    assert linear.weight.dtype == E4M3 and linear.weight_scale.dtype == torch.float32
    assert hash_module(model.blocks) == before
    x = torch.randn(3, linear.in_features).bfloat16()
    exact = F.linear(x.float(), by_hand["blocks.0.mlp.layer1.weight"])
    assert (linear(x).float() - exact).abs().max() <= 2**-7 * exact.abs().max()


@torch.no_grad()
def test_a_branch_stands_beside_fp8_and_leaves_no_trace(tmp_path):
    tensors, metadata, by_hand = quantised("older")
    model = load_model(written(tmp_path, tensors, metadata), TINY, torch.float32)
    plain = type(model)(TINY).eval()
    plain.load_state_dict(by_hand)
    target = tiny_adapter().target
    alone, objects, print_ = model(LATENT, SIGMA, CONTEXT), [*model.parameters()], hash_module(model)
    with merged(model, target), merged(plain, target):
        ours, theirs = model(LATENT, SIGMA, CONTEXT), plain(LATENT, SIGMA, CONTEXT)
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
        assert (ours - alone).abs().max() > 1e-2, "the branch did nothing"
        assert hash_module(model) != print_
    with pytest.raises(KeyboardInterrupt), merged(model, target):
        raise KeyboardInterrupt
    assert torch.equal(model(LATENT, SIGMA, CONTEXT), alone) and hash_module(model) == print_
    assert all(a is b for a, b in zip(objects, model.parameters(), strict=True))


@torch.no_grad()
def test_norms_and_embeddings_in_fp8_are_widened_and_so_is_a_text_encoder(tmp_path):
    everything = {name: tensor.to(E4M3) for name, tensor in tiny_parts()[0].state_dict().items()}
    model = load_model(written(tmp_path, everything), TINY, torch.float32)
    assert model.t_embedding_norm.weight.dtype == model.llm_adapter.embed.weight.dtype == torch.float32
    assert torch.equal(model.llm_adapter.embed.weight, everything["llm_adapter.embed.weight"].float())
    assert model(LATENT, SIGMA, CONTEXT).isfinite().all()
    ids = torch.arange(5)[None]
    usual = tiny_parts()[1].qwen
    fp8 = {f"model.{name}": t.to(E4M3) if "proj" in name else t.clone() for name, t in usual.state_dict().items()}
    qwen = load_qwen(written(tmp_path, fp8), TINY.text, torch.float32)
    read, meant = (each(ids).last_hidden_state for each in (qwen, usual))
    assert qwen.layers[0].mlp.up_proj.weight.dtype == E4M3 and 0 < (read - meant).abs().max() < 0.3 * meant.abs().max()


MODULE = "net.blocks.0.mlp.layer1"


def comfy(format_: str, **more) -> torch.Tensor:
    return torch.tensor(list(json.dumps({"format": format_, **more}).encode()), dtype=torch.uint8)


@pytest.mark.parametrize("change, words", [
    ({".weight": torch.zeros(192, 48, dtype=torch.int8)}, "in the format int8"),
    ({".comfy_quant": comfy("int8_tensorwise", convrot=True)}, "in the format convrot"),
    ({".comfy_quant": comfy("int8_tensorwise")}, "in the format int8_tensorwise"),
    ({".comfy_quant": comfy("nvfp4")}, "in the format nvfp4"),
    ({".comfy_quant": comfy("mxfp8")}, "in the format mxfp8"),
    ({".weight_scale_2": torch.ones(())}, "in the format nvfp4"),
    ({".weight": torch.zeros(192, 24, dtype=torch.uint8)}, "nvfp4"),
    ({".weight_scale": torch.ones(192, 2, dtype=torch.uint8)}, "in the format mxfp8"),
    ({".comfy_quant": torch.tensor([1, 2], dtype=torch.uint8)}, "in damaged words how it is quantised"),
    ({".weight_scale": torch.ones(3)}, r"a scale \(3,\); a scale is one number, one per row"),
    ({".weight": torch.zeros(192, 48)}, "a scale for blocks.0.mlp.layer1 but a weight in float32"),
])  # fmt: skip
def test_other_formats_are_refused_by_name(change, words, tmp_path):
    tensors, metadata, _ = quantised("current")
    tensors |= {MODULE + suffix: tensor for suffix, tensor in change.items()}
    with pytest.raises(WeightsError, match=rf"fp8.safetensors.*{words}") as caught:
        load_model(written(tmp_path, tensors, metadata), TINY, torch.float32)
    assert str(caught.value).count(". ") == 0 and "take" in str(caught.value) or "fetch" in str(caught.value)


def test_gguf_is_refused_by_name(tmp_path):
    (tmp_path / "anima.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(64))
    with pytest.raises(WeightsError, match="GGUF"):
        load_model(tmp_path / "anima.gguf", TINY, torch.float32)
