"""LoRA files of three namings: every module found, every scale right, everything else refused in a sentence."""

import csv
import dataclasses
import json
from functools import cache
from pathlib import Path

import pytest
import torch
from lora_case import random_pairs, stem, tensors_of, write
from pipeline_case import TINY
from safetensors.torch import save_file

from snapref.anima.model import AnimaDiT
from snapref.anima.qwen import new_qwen
from snapref.config import BASE, NANO, ModelConfig
from snapref.files.keys import KeyMismatch
from snapref.files.loader import WeightsError
from snapref.files.lora import LoraError, read_lora, spellings
from snapref.sampling.loras import Loras, file_and_strength

NAMINGS = ("kohya", "comfyui", "diffusers")
TABLE = list(
    csv.DictReader((Path(__file__).parent / "golden/lora_modules.tsv").open(newline=""), delimiter="\t")
)
STEMS = {"kohya": "kohya_stem", "comfyui": "comfy_stem", "diffusers": "diffusers_stem"}
SOME = (
    "blocks.0.self_attn.q_proj", "blocks.2.mlp.layer2", "blocks.1.adaln_modulation_cross_attn.2",
    "llm_adapter.blocks.0.cross_attn.k_proj", "llm_adapter.blocks.0.mlp.0", "x_embedder.proj.1",
    "final_layer.adaln_modulation.1", "t_embedder.1.linear_2",
)  # fmt: skip


@cache
def shapes_of(config: ModelConfig, text_encoder: bool = False) -> dict[str, tuple[int, int]]:
    with torch.device("meta"):
        return Loras(AnimaDiT(config), new_qwen(config.text) if text_encoder else None).shapes


def deeper(blocks: int) -> ModelConfig:
    return dataclasses.replace(TINY, dit=dataclasses.replace(TINY.dit, blocks=blocks))


def test_the_full_size_model_has_exactly_the_published_linears():
    published = {row["module"]: (int(row["out"]), int(row["in"])) for row in TABLE}
    assert shapes_of(BASE) == published and len(published) == 515


@pytest.mark.parametrize("naming", NAMINGS)
def test_every_published_name_finds_its_module(naming):
    known = spellings(shapes_of(BASE))
    assert {row[STEMS[naming]]: row["module"] for row in TABLE} == {
        name: module for name, (module, found) in known.items() if name in {row[STEMS[naming]] for row in TABLE}
    }
    assert all(known[row[STEMS[naming]]][1] == naming for row in TABLE)
    assert all(stem(row["module"], naming) == row[STEMS[naming]] for row in TABLE)


@pytest.mark.parametrize("config", [TINY, NANO, BASE], ids=lambda config: config.name)
def test_no_name_can_mean_two_modules(config):
    """`spellings` raises where it can; underscores could make two modules one."""
    shapes = shapes_of(config, text_encoder=config is not BASE)
    named = {module for module, _ in spellings(shapes).values()}
    assert named == set(shapes)


def test_the_turbo_lora_finds_its_508_modules(tmp_path):
    """Rank 1 on the meta device's shapes: attention, MLP and AdaLN of all blocks, and the whole LLM adapter."""
    targets = [row["module"] for row in TABLE if row["in_official_turbo_lora"] == "y"]
    assert len(targets) == 508
    path = write(tmp_path / "turbo.safetensors", random_pairs(shapes_of(BASE), targets, rank=1))
    lora = read_lora(path, shapes_of(BASE))
    assert set(lora.pairs) == set(targets)
    assert (lora.naming, lora.ranks) == ("comfyui", (1,))


@pytest.mark.parametrize("config", [TINY, NANO], ids=lambda config: config.name)
@pytest.mark.parametrize("naming", NAMINGS)
def test_what_was_written_is_read(naming, config, tmp_path):
    shapes = shapes_of(config, text_encoder=True)
    pairs = random_pairs(shapes, [*SOME, "text_encoder.layers.0.mlp.down_proj"])
    lora = read_lora(write(tmp_path / "some.safetensors", pairs, naming, alpha=6.0), shapes)
    assert (lora.naming, lora.ranks) == (naming, (3,)) and set(lora.pairs) == set(pairs)
    for module, (a, b) in pairs.items():
        found = lora.pairs[module]
        assert torch.equal(found.a, a) and torch.equal(found.b, b) and found.scale == 2.0


@pytest.mark.parametrize("rename", [
    ("diffusion_model.", ""),
    ("diffusion_model.", "net."),
    ("diffusion_model.", "model.diffusion_model."),
    (".lora_A.weight", ".lora_A.default.weight"),
    (".lora_B.weight", ".lora.up.weight"),
    (".lora_B.weight", "_lora.up.weight"),
    (".lora_B.weight", ".lora_linear_layer.up.weight"),
    (".lora_B.weight", ".lora_B"),
])
def test_other_ways_to_write_it(rename, tmp_path):
    tensors = tensors_of(random_pairs(shapes_of(TINY), SOME), "comfyui")
    save_file({name.replace(*rename): t for name, t in tensors.items()}, tmp_path / "a.safetensors")
    assert set(read_lora(tmp_path / "a.safetensors", shapes_of(TINY)).pairs) == set(SOME)


PEFT = {
    "transformer.lora_alpha": 12, "transformer.alpha_pattern": {"transformer_blocks.0.attn1.to_q": 6},
    "text_conditioner.lora_alpha": 3,
}  # fmt: skip


@pytest.mark.parametrize("metadata, scales", [
    ({}, (1.0, 1.0, 1.0)),
    ({"ss_network_alpha": "1.5"}, (0.5, 0.5, 0.5)),
    ({"ss_network_alpha": "None"}, (1.0, 1.0, 1.0)),
    ({"lora_alpha": "6"}, (2.0, 2.0, 2.0)),
    ({"lora_adapter_metadata": json.dumps(PEFT)}, (2.0, 4.0, 1.0)),
    ({"lora_adapter_metadata": json.dumps(PEFT | {"transformer.use_rslora": True})}, (6 / 3**0.5, 12 / 3**0.5, 1.0)),
])
def test_alpha_from_the_header(metadata, scales, tmp_path):
    modules = ("blocks.0.self_attn.q_proj", "blocks.2.mlp.layer2", "llm_adapter.blocks.0.mlp.0")
    path = write(tmp_path / "a.safetensors", random_pairs(shapes_of(TINY), modules), "diffusers", **metadata)
    pairs = read_lora(path, shapes_of(TINY)).pairs
    assert [pairs[module].scale for module in modules] == pytest.approx(scales)


def test_a_modules_own_alpha_goes_before_the_headers(tmp_path):
    pairs = random_pairs(shapes_of(TINY), SOME)
    path = write(tmp_path / "a.safetensors", pairs, "kohya", alpha=1.5, ss_network_alpha="99")
    assert {pair.scale for pair in read_lora(path, shapes_of(TINY)).pairs.values()} == {0.5}


@pytest.mark.parametrize("blocks, base, naming", [(28, 40, "kohya"), (28, 40, "diffusers"), (40, 28, "comfyui")])
def test_another_number_of_blocks_is_refused_with_both(blocks, base, naming, tmp_path):
    modules = [f"blocks.{i}.self_attn.q_proj" for i in range(blocks)] + ["llm_adapter.blocks.0.mlp.0"]
    path = write(tmp_path / "a.safetensors", random_pairs(shapes_of(deeper(blocks)), modules), naming)
    with pytest.raises(LoraError, match=f"a.safetensors was made for a base of {blocks} blocks, this base has {base}"):
        read_lora(path, shapes_of(deeper(base)))


def test_blocks_may_be_left_out(tmp_path):
    modules = [f"blocks.{i}.mlp.layer1" for i in (3, 11)]
    path = write(tmp_path / "a.safetensors", random_pairs(shapes_of(deeper(28)), modules))
    assert set(read_lora(path, shapes_of(deeper(28))).pairs) == set(modules)


@pytest.mark.parametrize("names, method", [
    (("lokr_w1", "lokr_w2", "alpha"), "LoKr"),
    (("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"), "LoHa"),
    (("lora_down.weight", "lora_up.weight", "dora_scale"), "DoRA"),
    (("lora_A.weight", "lora_B.weight", "lora_magnitude_vector.weight"), "DoRA"),
    (("oft_blocks",), "OFT"),
    (("a1.weight", "a2.weight", "b1.weight", "b2.weight"), "GLoRA"),
    (("lora_down.weight", "lora_mid.weight", "lora_up.weight"), "Tucker LoRA"),
    (("diff", "diff_b"), "file of whole weight differences"),
])
def test_other_methods_are_refused_by_name(names, method, tmp_path):
    modules = ("lora_unet_blocks_0_mlp_layer1", "lora_unet_blocks_1_mlp_layer1")
    save_file({f"{m}.{name}": torch.zeros(2, 2) for m in modules for name in names}, tmp_path / "a.safetensors")
    sentence = (
        rf"^a.safetensors is a {method} \(lora_unet_blocks_0_mlp_layer1, 2 modules in all\), which is not read; "
        "take the plain LoRA, or convert it"
    )
    with pytest.raises(LoraError, match=sentence):
        read_lora(tmp_path / "a.safetensors", shapes_of(TINY))


def test_a_dora_that_says_so_in_its_header_is_refused(tmp_path):
    config = json.dumps({"transformer.use_dora": True})
    pairs = random_pairs(shapes_of(TINY), SOME)
    path = write(tmp_path / "a.safetensors", pairs, "diffusers", lora_adapter_metadata=config)
    with pytest.raises(LoraError, match="says of itself that it is a DoRA"):
        read_lora(path, shapes_of(TINY))


def test_one_sentence_lists_everything_that_is_wrong(tmp_path):
    tensors = tensors_of(random_pairs(shapes_of(TINY), SOME), "kohya", alpha=3.0)
    del tensors["lora_unet_blocks_0_self_attn_q_proj.lora_up.weight"]
    del tensors["lora_unet_x_embedder_proj_1.lora_down.weight"]
    tensors["lora_unet_blocks_2_mlp_layer2.lora_up.weight"] = torch.zeros(5, 3)
    tensors["lora_unet_blocks_1_attn_to_q.lora_up.weight"] = torch.zeros(5, 3)
    tensors["diffusion_model.final_layer.adaln_modulation.1.lora_A.weight"] = torch.zeros(3, 48)
    tensors["lora_unet_blocks_0_mlp_layer1.alpha"] = torch.tensor(1.0)
    tensors["lora_unet_llm_adapter_blocks_0_mlp_0.alpha"] = torch.zeros(2)
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(KeyMismatch) as caught:
        read_lora(tmp_path / "a.safetensors", shapes_of(TINY))
    error = caught.value
    assert error.missing == [
        "the up matrix of lora_unet_blocks_0_self_attn_q_proj",
        "the down matrix of lora_unet_x_embedder_proj_1",
    ]
    assert set(error.unexpected) == {
        "lora_unet_final_layer_adaln_modulation_1.lora_down.weight",
        "lora_unet_blocks_1_attn_to_q.lora_up.weight",
        "lora_unet_blocks_0_mlp_layer1.alpha",
    }
    assert error.misshaped == [
        "lora_unet_blocks_2_mlp_layer2 is (3, 192) and (5, 3), should be (rank, 192) and (48, rank)",
        "lora_unet_llm_adapter_blocks_0_mlp_0.alpha is (2,), should be one number",
    ]
    assert all(name in str(error) for name in (*error.missing, *error.unexpected, *error.misshaped))


@pytest.mark.parametrize("broken", ["a", "b", "alpha"])
def test_numbers_that_are_not_finite_are_named(broken, tmp_path):
    pairs = random_pairs(shapes_of(TINY), SOME[:2])
    if broken != "alpha":
        pairs[SOME[1]]["ab".index(broken)][0, 0] = float("nan")
    path = write(tmp_path / "a.safetensors", pairs, alpha=float("inf") if broken == "alpha" else None)
    with pytest.raises(LoraError, match=r"not finite in .*blocks.2.mlp.layer2; fetch it again"):
        read_lora(path, shapes_of(TINY))


def test_what_is_no_lora_is_refused(tmp_path):
    save_file({"net.x_embedder.proj.1.weight": torch.zeros(2, 2)}, tmp_path / "base.safetensors")
    with pytest.raises(LoraError, match="base.safetensors is no LoRA .* like net.x_embedder.* `snapref inspect`"):
        read_lora(tmp_path / "base.safetensors", shapes_of(TINY))
    save_file({}, tmp_path / "none.safetensors")
    with pytest.raises(LoraError, match="it holds no tensors"):
        read_lora(tmp_path / "none.safetensors", shapes_of(TINY))
    with pytest.raises(WeightsError, match="nowhere.safetensors does not exist"):
        read_lora(tmp_path / "nowhere.safetensors", shapes_of(TINY))
    pairs = random_pairs(shapes_of(TINY), SOME)
    path = write(tmp_path / "odd.safetensors", pairs, lora_adapter_metadata="{")
    with pytest.raises(LoraError, match="damaged settings in its header"):
        read_lora(path, shapes_of(TINY))


def test_file_and_strength(tmp_path, monkeypatch):
    assert file_and_strength("a.safetensors") == ("a.safetensors", 1.0)
    assert file_and_strength("a.safetensors:-0.5") == ("a.safetensors", -0.5)
    assert file_and_strength("C:\\loras\\a.safetensors") == ("C:\\loras\\a.safetensors", 1.0)
    assert file_and_strength("C:\\loras\\a.safetensors:0.8") == ("C:\\loras\\a.safetensors", 0.8)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "style:2").touch()
    assert file_and_strength("style:2") == ("style:2", 1.0), "a file that is there is that file"
    with pytest.raises(LoraError, match="the strength of a LoRA is nan; it must be a number from -100 to 100"):
        file_and_strength("a.safetensors:nan")
