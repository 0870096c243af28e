"""`snapref inspect` is right on every kind of file, from its header alone."""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from files_case import GOLDEN, TINY_VAE, diffusers_folder, write_adapter, write_base, write_lora, write_text_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_case import picture, tiny_pipeline
from safetensors.torch import save_file
from typer.testing import CliRunner

from snapref.cli import app
from snapref.files.inspect import by_sublayer, inspect
from snapref.files.nano import FOLDER


@pytest.mark.parametrize("prefix", ["net.", "model.diffusion_model.", "diffusion_model.", ""])
def test_diffusion_models(prefix, tmp_path):
    found = inspect(write_base(tmp_path / "a.safetensors", prefix, **{f"{prefix}accum_x": torch.zeros(1)}))
    assert (found.kind, found.slot) == ("dit", "base")
    assert found.facts["prefix"] == prefix and found.facts["blocks"] == 3 and found.facts["width"] == 48
    assert found.facts["llm_adapter"] and found.facts["dtype"] == "F32" and found.facts["ignored"] == 1
    assert found.facts["quantised"] is None


@pytest.mark.parametrize("extra, kind", [
    ({}, "plain fp8"),
    ({"weight_scale": torch.ones(())}, "fp8 with weight_scale"),
    ({"scale_weight": torch.ones(())}, "fp8 with scale_weight"),
])  # fmt: skip
def test_the_kind_of_fp8(extra, kind, tmp_path):
    name = "net.blocks.0.mlp.layer1"
    tensors = {f"{name}.weight": torch.zeros(4, 4).to(torch.float8_e4m3fn)}
    tensors |= {f"{name}.{end}": value for end, value in extra.items()}
    save_file(tensors, tmp_path / "a.safetensors")
    found = inspect(tmp_path / "a.safetensors")
    assert found.facts["quantised"] == kind and kind in found.words
    assert not found.facts["llm_adapter"] and "without the LLM adapter" in found.words


def test_all_in_one_and_diffusers_naming(tmp_path):
    many = write_base(tmp_path / "a.safetensors", "model.diffusion_model.", **{"first_stage_model.x": torch.zeros(1)})
    assert inspect(many).facts["other_models"] == ["first_stage_model"]
    root = diffusers_folder(tmp_path / "d")
    for shard in (root / "transformer").glob("*.safetensors"):
        found = inspect(shard)
        assert (found.kind, found.facts["naming"], found.facts["width"]) == ("dit", "diffusers", 48)
    found = inspect(next((root / "text_conditioner").glob("*.safetensors")))
    assert (found.kind, found.slot) == ("llm adapter", None) and "LLM adapter alone: 1 blocks" in found.words
    assert inspect(next((root / "text_encoder").glob("*.safetensors"))).kind == "text encoder"


NAMES = ["net.blocks.0.mlp.layer1.weight", "transformer_blocks.0.norm1.linear_1.weight", "embed.weight",
         "out_proj.weight", "blocks.0.cross_attn.o_proj.weight", "ref.blocks.0.mlp.layer1.lora_A.weight",
         "tgt.blocks.3.self_attn.q_proj.lora_down.weight", "model.embed_tokens.weight", "encoder.conv1.weight",
         "model.layers.0.self_attn.q_norm.weight", "lora_unet_x.lora_down.weight", "mean", "std",
         "decoder.0.weight", "heads.a.weight", "trunk.b", "", "vae.x"]  # fmt: skip
HEADERS = st.fixed_dictionaries({}, optional={
    "format": st.sampled_from(["snapref_cache/1", "anima_ref_kv/1", ""]),
    "groups": st.sampled_from(["[]", "[[3, 1.0]]", "{", "7", "[[]]"]),
    "config": st.sampled_from(["{}", "[]", "{", '{"place": [0, 1, 2], "captions": {"cs": "a"}}', '{"place": 7}',
                               '{"captions": [1], "place": "x"}']),
    "_quantization_metadata": st.just("{"),
})  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), st.lists(st.integers(0, 3), max_size=5), min_size=1), HEADERS)
def test_whatever_a_file_holds_something_is_said_of_it(shapes, header):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, path, metadata=header)
        found = inspect(path)
    assert found.words and found.facts["tensors"] == len(shapes)
    json.dumps(found.facts)


@pytest.mark.parametrize("naming", ["kohya", "comfyui", "diffusers"])
def test_loras(naming, tmp_path):
    found = inspect(write_lora(tmp_path / "a.safetensors", naming))
    assert (found.kind, found.slot) == ("lora", "loras")
    assert found.facts["naming"] == naming and found.facts["ranks"] == [3] and found.facts["blocks"] == 1
    assert sum(found.facts["targets"].values()) == found.facts["modules"] > 5


def test_other_methods_are_named(tmp_path):
    save_file({"lora_unet_blocks_0_mlp_layer1.lokr_w1": torch.zeros(2, 2)}, tmp_path / "a.safetensors")
    found = inspect(tmp_path / "a.safetensors")
    assert found.kind == "lora" and "LoKr, which is not read" in found.words


def test_linears_are_named_by_their_sublayers():
    targets = ["mlp.layer1", "self_attn.k_proj", "self_attn.q_proj"]
    assert by_sublayer(targets) == "mlp (layer1), self_attn (k_proj, q_proj)"
    assert by_sublayer(["self_attn_q_proj"]) == "self_attn_q_proj" and by_sublayer([]) == "nothing"


def test_adapters_and_references(tmp_path):
    found = inspect(write_adapter(tmp_path / "a.safetensors"))
    branches = found.facts["branches"]
    assert (found.kind, found.slot) == ("adapter", "adapter")
    assert branches["reference"]["ranks"] == [6] and branches["target"]["ranks"] == [4]
    assert "self_attn.q_proj" in branches["target"]["targets"]
    assert "target rank 4 on self_attn (k_proj, output_proj, q_proj, v_proj)" in found.words
    for title in ("reference", "target"):
        names = {part for target in branches[title]["targets"] for part in target.split(".")}
        assert all(name in found.words for name in (f"{title} rank", *names))
    assert found.facts["place"] == [0.0, 20.0, 0.0] and list(found.facts["modes"]) == ["cs", "char"]
    tiny_pipeline().encode([picture(), picture(1)]).save(tmp_path / "r.safetensors")
    found = inspect(tmp_path / "r.safetensors")
    assert found.kind == "reference cache" and found.facts["tokens"] == [6, 6] and found.slot is None


def test_text_encoders_and_vaes(tmp_path):
    for prefix in ("model.", "", "text_encoders.qwen3_06b.transformer.model."):
        found = inspect(write_text_encoder(tmp_path / "t.safetensors", prefix))
        assert (found.kind, found.slot, found.facts["prefix"]) == ("text encoder", "text_encoder", prefix)
    found = inspect(TINY_VAE)
    assert (found.kind, found.slot, found.facts["naming"]) == ("vae", "vae", "ComfyUI")


@pytest.mark.parametrize("file, kind", [
    ("base", "dit"), ("text", "text encoder"), ("codec", "nano codec"), ("tagger", "tagger"),
    ("adapter_v1a", "adapter"), ("adapter_v1b", "adapter"), ("adapter_v2a", "adapter"),
])  # fmt: skip
def test_nanos_own_files(file, kind):
    assert inspect(FOLDER / f"{file}.safetensors").kind == kind


def test_none_of_these():
    found = inspect(GOLDEN / "samplers.safetensors")
    assert found.kind == "unknown" and "none of the files" in found.words and found.slot is None


def test_the_command(tmp_path):
    (tmp_path / "empty.safetensors").touch()
    good, bad = str(write_lora(tmp_path / "a.safetensors")), str(tmp_path / "empty.safetensors")
    run = CliRunner().invoke(app, ["inspect", good, bad, "--json"])
    first, second = json.loads(run.stdout)
    assert run.exit_code == 2 and first["kind"] == "lora" and second["error"].endswith("is empty; fetch it again")
    run = CliRunner().invoke(app, ["inspect", good])
    assert run.exit_code == 0 and "a LoRA, comfyui naming, rank 3" in run.stdout
