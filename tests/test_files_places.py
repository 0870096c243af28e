"""Finding Anima's files: explicit paths, a ComfyUI folder, a plain one, a diffusers repository, adapters by name."""

import pytest
import torch
from files_case import (
    comfyui_folder,
    diffusers_folder,
    plain_folder,
    write_base,
    write_comfyui_program,
    write_lora,
    write_tokenizers,
    write_vae,
)
from pipeline_case import TINY, picture, tiny_parts, tiny_pipeline

from snapref.files.loader import WeightsError, load_model, load_tokenizer
from snapref.files.places import check_slot, check_tokenizers, find_adapter, find_anima, find_tokenizers


def test_a_comfyui_folder(tmp_path):
    """The program's folder and its models/ alike; of several bases the published name is taken."""
    root = comfyui_folder(tmp_path)
    for folder, tokenizers in ((root, None), (root / "models", (root / "tokenizers/qwen", root / "tokenizers/t5"))):
        places = find_anima(folder, tokenizers=tokenizers)
        assert places.base == root / "models/diffusion_models/anima-base-v1.0.safetensors"
        assert places.text_encoder == root / "models/text_encoders/qwen_3_06b_base.safetensors"
        assert places.vae == root / "models/vae/qwen_image_vae.safetensors"
        assert places.tokenizers == (root / "tokenizers/qwen", root / "tokenizers/t5")


def test_the_tokenizers_inside_comfyui(tmp_path):
    """Found beside models/ too; CLIP's, which look much like Qwen's, are not taken for them."""
    root = comfyui_folder(tmp_path)
    (root / "tokenizers").rename(tmp_path / "away")
    write_comfyui_program(root)
    texts = (root / "comfy/text_encoders").resolve()
    for folder in (root, root / "models"):
        found = [place.resolve() for place in find_anima(folder).tokenizers]
        assert found == [texts / "qwen25_tokenizer", texts / "t5_tokenizer"]


def test_of_several_qwen_vocabularies_animas_is_taken(tmp_path):
    write_tokenizers(tmp_path)
    (tmp_path / "qwen").rename(tmp_path / "a_later_qwen")
    right = tmp_path / "b_qwen"
    right.mkdir()
    (right / "tokenizer.json").write_text('{"id": 151643, "content": "<|endoftext|>"}')
    assert find_tokenizers(tmp_path)[0] == right


def test_tokenizers_the_wrong_way_round(tmp_path):
    write_tokenizers(tmp_path)
    check_tokenizers(tmp_path / "qwen", tmp_path / "t5")
    with pytest.raises(WeightsError, match=r"t5 is T5's tokenizer, but was given as Qwen's; give tokenizers="):
        check_tokenizers(tmp_path / "t5", tmp_path / "qwen")


def test_a_tokenizer_half_fetched_is_none(tmp_path):
    write_tokenizers(tmp_path)
    for name, file in (("qwen", "tokenizer.json"), ("t5", "tokenizer.json")):
        (tmp_path / name / file).rename(tmp_path / name / "tokenizer_config.json")
    with pytest.raises(WeightsError, match="lacks the tokenizer of Qwen and of T5"):
        find_tokenizers(tmp_path)


def test_a_broken_file_is_named_where_it_is_looked_for(tmp_path):
    root = comfyui_folder(tmp_path)
    (root / "models/diffusion_models/anima-base-v1.0.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"anima-base-v1.0.safetensors \(0 bytes\) is empty; fetch it again"):
        find_anima(root)  # another merge lies beside it, and is not taken in its place
    vae = root / "models/vae/qwen_image_vae.safetensors"
    vae.rename(vae.with_name("mine.safetensors")).write_bytes(b"<html>")
    with pytest.raises(WeightsError, match=r"no VAE that can be opened \(mine.safetensors cannot\); put qwen"):
        find_anima(root, base="b")


def test_the_folder_of_downloads_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path)
    with pytest.raises(WeightsError, match="anima needs the paths of its files: base, .*or folder=, or download=True"):
        find_anima(None)
    plain_folder(tmp_path / ".cache/snapref/anima")
    assert find_anima(None).base == tmp_path / ".cache/snapref/anima/my-anima.safetensors"


def test_a_plain_folder(tmp_path):
    """Files are known by what they hold, whatever their names."""
    places = find_anima(plain_folder(tmp_path))
    assert places.base == tmp_path / "my-anima.safetensors"
    assert places.text_encoder == tmp_path / "qwen.safetensors"
    assert places.vae == tmp_path / "split_files/vae/vae.safetensors"


def test_a_diffusers_repository_gives_the_same_model(tmp_path):
    places = find_anima(diffusers_folder(tmp_path))
    assert places.base == (tmp_path / "transformer", tmp_path / "text_conditioner")
    assert places.tokenizers == (tmp_path / "tokenizer", tmp_path / "t5_tokenizer")
    model, original = load_model(places.base, TINY, torch.float32), tiny_parts()[0]
    weights = original.state_dict()
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert load_tokenizer(places.tokenizers[0])("1girl")["input_ids"]


def test_explicit_paths_win(tmp_path):
    root = comfyui_folder(tmp_path)
    other = root / "models/diffusion_models/another-merge.safetensors"
    assert find_anima(root, base=other).base == other


def test_what_is_missing_or_ambiguous_is_said(tmp_path):
    root = comfyui_folder(tmp_path / "c")
    (root / "models/diffusion_models/anima-base-v1.0.safetensors").rename(
        root / "models/diffusion_models/third.safetensors"
    )
    with pytest.raises(WeightsError, match="2 files that are a diffusion model: another-merge.*third.*; give base="):
        find_anima(root)
    with pytest.raises(WeightsError, match="no Qwen3 text encoder; put qwen_3_06b_base.safetensors there .*encoder="):
        write_vae(tmp_path / "d/vae.safetensors")
        write_base(tmp_path / "d/base.safetensors")
        find_anima(tmp_path / "d")
    with pytest.raises(WeightsError, match="is no folder; give the folder"):
        find_anima(tmp_path / "nowhere")
    (root / "tokenizers").rename(tmp_path / "away")
    with pytest.raises(WeightsError, match="lacks the tokenizer of Qwen and of T5 .*tokenizers=\\(qwen, t5\\)"):
        find_anima(root, base="b", text_encoder="t", vae="v")


def test_adapters_by_name(tmp_path):
    root = comfyui_folder(tmp_path)
    loras = root / "models/loras"
    assert find_adapter("snapref_v1a", root) == loras / "snapref_v1a.safetensors"
    assert find_adapter("snapref_v1b_fp8.safetensors", root) == loras / "snapref_v1b_fp8.safetensors"
    assert find_adapter(loras / "snapref_v1a.safetensors", None) == loras / "snapref_v1a.safetensors"
    with pytest.raises(WeightsError, match="no adapter 'snapref_v2a_pre1' .* it has snapref_v1a, snapref_v1b_fp8;"):
        find_adapter("snapref_v2a_pre1", root)
    with pytest.raises(WeightsError, match="published are snapref_v1a, snapref_v1b, .*each also as FP8"):
        find_adapter("snapref_v1a", tmp_path / "tokenizers")


@pytest.mark.parametrize("slot, write, words", [
    ("base", write_lora, "is a LoRA, .* but was given as base; give it as loras="),
    ("text_encoder", write_vae, "is a Wan/Qwen-Image VAE .* but was given as text_encoder; give it as vae="),
    ("adapter", write_base, "is a diffusion model: 3 blocks.* but was given as adapter; give it as base="),
    ("vae", write_base, "is a diffusion model: .* but was given as vae; give it as base="),
])  # fmt: skip
def test_a_file_in_the_wrong_slot(slot, write, words, tmp_path):
    with pytest.raises(WeightsError, match=words):
        check_slot(write(tmp_path / "file.safetensors"), slot)


def test_a_saved_reference_is_no_adapter(tmp_path):
    tiny_pipeline().encode(picture()).save(tmp_path / "r.safetensors")
    with pytest.raises(WeightsError, match="a saved reference of 1 picture, .* given as adapter; give it as the ref"):
        check_slot(tmp_path / "r.safetensors", "adapter")
