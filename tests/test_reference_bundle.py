"""The adapter as a file: written and read back, other trainers' names understood, misfits listed."""

import json

import pytest
import torch
from reference_case import PLACE, TINY, TINY_ADAPTER, WIDE_REACH, tiny_adapter
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from snapref.config import NANO, NANO_V1A
from snapref.files.loader import WeightsError
from snapref.reference import Adapter, BundleError, load_bundle, save_bundle
from snapref.reference.branches import Spec

UNDERSCORES = str.maketrans({".": "_"})


def same(one: Adapter, other: Adapter) -> bool:
    return one.specs == other.specs and all(
        torch.equal(weight, other.state_dict()[name]) for name, weight in one.state_dict().items()
    )


def renamed(tensors, spelling) -> dict:
    """ "ref.blocks.0.mlp.layer1.lora_A.weight" → spelling("ref", "blocks.0.mlp.layer1", "A")."""
    out = {}
    for name, tensor in tensors.items():
        side, stem = name.split(".", 1)
        stem, matrix, _ = stem.rsplit(".", 2)
        out[spelling(side, stem, matrix[-1])] = tensor
    return out


@pytest.mark.parametrize("config", [TINY_ADAPTER, WIDE_REACH], ids=lambda config: config.name)
def test_written_and_read_back(tmp_path, config):
    adapter, path = tiny_adapter(config), tmp_path / "adapter.safetensors"
    save_bundle(adapter, path, notes={"trained": "for 3 steps"})
    loaded = load_bundle(path, TINY)
    assert same(adapter, loaded) and loaded.config == config
    assert all(weight.requires_grad for weight in loaded.parameters())  # ready to be trained on
    with safe_open(path, "pt") as file:
        header = file.metadata()
    assert header["format"] == "anima_ref_kv/1" and header["trained"] == "for 3 steps"
    settings = json.loads(header["config"])
    assert (settings["width"], settings["blocks"], settings["place"]) == (96, 3, list(PLACE))
    assert settings["captions"] == config.captions
    assert [p.name for p in tmp_path.iterdir()] == ["adapter.safetensors"]


def test_stored_in_half_precision(tmp_path):
    adapter, path = Adapter(NANO_V1A, NANO), tmp_path / "adapter.safetensors"
    save_bundle(adapter, path, dtype=torch.float16)
    assert path.stat().st_size < adapter.parameter_count * 2 + 50_000
    loaded = load_bundle(path, NANO)
    for name, weight in loaded.state_dict().items():
        assert weight.dtype == torch.float32 and torch.equal(
            weight, adapter.state_dict()[name].half().float()
        )


STATED = {"place": PLACE, "captions": {"cs": "a caption"}}  # what a foreign header leaves out
FOREIGN = {
    "lora_down/up": lambda side, stem, m: f"{side}.{stem}.lora_{'down' if m == 'A' else 'up'}.weight",
    "lora.down/up": lambda side, stem, m: f"{side}.{stem}.lora.{'down' if m == 'A' else 'up'}.weight",
    "default": lambda side, stem, m: f"{side}.{stem}.lora_{m}.default.weight",
    "prefix": lambda side, stem, m: f"{side}.diffusion_model.{stem}.lora_{m}.weight",
    "long prefix": lambda side, stem, m: f"{side}.model.diffusion_model.{stem}.lora_{m}.weight",
    "net": lambda side, stem, m: f"{side}.net.{stem}.lora_{m}.weight",
    "underscores": lambda side, stem, m: (
        f"{side}.lora_unet_{stem.translate(UNDERSCORES)}.lora_{'down' if m == 'A' else 'up'}.weight"
    ),
}


@pytest.mark.parametrize("naming", FOREIGN)
@pytest.mark.parametrize("where", ["tensor", "config", "header", "absent"])
def test_foreign_namings_and_alphas(tmp_path, naming, where):
    adapter, path = tiny_adapter(WIDE_REACH), tmp_path / "foreign.safetensors"
    tensors = renamed(adapter.state_dict(), FOREIGN[naming])
    header = {}
    if where == "tensor":
        for name in list(tensors):
            if name.endswith(("lora_A.weight", "down.weight", "A.default.weight")):
                stem = name.rsplit(".lora", 1)[0]
                tensors[f"{stem}.alpha"] = torch.tensor(12.0 if name.startswith("ref") else 2.0).bfloat16()
    elif where == "config":
        header = {
            "format": "anima_ref_kv/1",
            "config": json.dumps({"reference_alpha": 12, "target_alpha": 2}),
        }
    elif where == "header":
        header = {"ss_network_alpha": "3.0"}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, header)
    loaded = load_bundle(path, TINY, **STATED)
    wanted = {"tensor": (2.0, 0.5), "config": (2.0, 0.5), "header": (0.5, 0.75), "absent": (1.0, 1.0)}[where]
    assert {(name[:3], spec.scale) for name, spec in loaded.specs.items()} == set(
        zip(("ref", "tgt"), wanted, strict=True)
    )
    for name, weight in adapter.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name])


def test_layout_ranks_and_single_scales_are_read_from_the_tensors(tmp_path):
    """Another of the layouts with the published total: all ten reference modules, one target projection."""
    specs = {f"ref.blocks.{i}.{m}": Spec(2 + i, 0.5) for i in range(3) for m in WIDE_REACH.reference_targets}
    specs |= {f"tgt.blocks.{i}.self_attn.q_proj": Spec(4, 1.0) for i in range(3)}
    specs["ref.blocks.1.mlp.layer1"] = Spec(7, 3.0)
    adapter, path = Adapter(TINY_ADAPTER, TINY, specs), tmp_path / "other.safetensors"
    save_bundle(adapter, path)
    loaded = load_bundle(path, TINY)
    assert loaded.specs == specs and same(adapter, loaded)
    assert loaded.config.target_targets == ("self_attn.q_proj",)
    assert set(loaded.config.reference_targets) == set(WIDE_REACH.reference_targets)


def test_zero_matrices_and_a_missing_side_are_fine(tmp_path):
    adapter, path = Adapter(TINY_ADAPTER, TINY), tmp_path / "zero.safetensors"  # every B is zero
    only = {name: tensor for name, tensor in adapter.state_dict().items() if name.startswith("ref")}
    save_file(only, path)
    with pytest.raises(BundleError, match="does not state its place and captions; give place=, captions="):
        load_bundle(path, TINY)
    with pytest.raises(BundleError, match="does not state its captions; give captions="):
        load_bundle(path, TINY, place=PLACE)
    loaded = load_bundle(path, TINY, **STATED)
    assert loaded.config.place == PLACE and loaded.config.captions == STATED["captions"]
    assert not loaded.get_parameter("ref.blocks.2.mlp.layer2.lora_B.weight").any()
    assert loaded.target == [{}, {}, {}]


def test_everything_wrong_is_listed_at_once(tmp_path):
    path = tmp_path / "wrong.safetensors"
    save_bundle(tiny_adapter(), path)
    tensors = load_file(path)
    del (
        tensors["ref.blocks.0.mlp.layer1.lora_B.weight"],
        tensors["tgt.blocks.1.self_attn.q_proj.lora_A.weight"],
    )
    tensors["ref.blocks.2.mlp.layer1.lora_A.weight"] = torch.zeros(6, 97)
    tensors["tgt.blocks.2.self_attn.v_proj.lora_B.weight"] = torch.zeros(96, 5)
    tensors["ref.blocks.0.self_attn.q_proj.alpha"] = torch.zeros(2)
    tensors |= {
        name: torch.zeros(1)
        for name in (
            "ref.blocks.3.mlp.layer1.lora_A.weight",
            "ref.blocks.0.mlp.layer1.dora_scale",
            "other.weight",
            "ref.blocks.2.cross_attn.k_proj.alpha",
        )
    }
    save_file(tensors, path)
    with pytest.raises(BundleError) as caught:
        load_bundle(path, TINY)
    for part in (
        "'wrong.safetensors' is no adapter for 'tiny'",
        "2 missing: ref.blocks.0.mlp.layer1.lora_B.weight, tgt.blocks.1.self_attn.q_proj.lora_A.weight",
        "4 unexpected: other.weight, ref.blocks.0.mlp.layer1.dora_scale",
        "ref.blocks.3.mlp.layer1.lora_A.weight",
        "3 mis-shaped: ref.blocks.0.self_attn.q_proj.alpha (2,), expected one number",
        "ref.blocks.2.mlp.layer1 A (6, 97) and B (384, 6), expected (rank, 96) and (384, rank)",
        "tgt.blocks.2.self_attn.v_proj A (4, 96) and B (96, 5)",
        "take the adapter that was made for this base",
    ):
        assert part in str(caught.value)
    twice = load_bundle_of(
        {
            "ref.blocks.0.mlp.layer1.lora_A.weight": torch.zeros(1, 96),
            "ref.blocks.0.mlp.layer1.lora_down.weight": torch.zeros(1, 96),
            "ref.blocks.0.mlp.layer1.lora_B.weight": torch.zeros(384, 1),
        },
        path,
    )
    assert "1 unexpected: ref.blocks.0.mlp.layer1.lora_" in twice


def load_bundle_of(tensors, path, header=None) -> str:
    """The message with which such a file is refused."""
    save_file(tensors, path, header)
    with pytest.raises(BundleError) as caught:
        load_bundle(path, TINY)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_of_another_kind(tmp_path):
    path = tmp_path / "x.safetensors"
    nothing = {"ref.blocks.0.mlp.layer1.alpha": torch.zeros(1)}
    assert "format 'anima_ref_kv/2', this reads 'anima_ref_kv/1'" in load_bundle_of(
        nothing, path, {"format": "anima_ref_kv/2"}
    )
    assert "damaged config" in load_bundle_of(nothing, path, {"config": "{"})
    assert "no JSON object" in load_bundle_of(nothing, path, {"config": "[1]"})
    assert "1 unexpected: ref.blocks.0.mlp.layer1.alpha" in load_bundle_of(nothing, path)
    assert "it holds no tensors" in load_bundle_of({}, path)
    save_bundle(tiny_adapter(), path)
    with pytest.raises(
        BundleError, match=f"width 96, 'nano' has {NANO.dit.width}; take the adapter of this base"
    ):
        load_bundle(path, NANO)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="cut short"):
        load_bundle(path, TINY)
