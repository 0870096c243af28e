"""Files into a pipeline: nano's folder and Anima's paths, with random weights under the official names."""

import dataclasses
from pathlib import Path

import pytest
import torch
from files_case import comfyui_folder
from pipeline_case import TINY, picture, tiny_parts, tiny_tokenizer
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import snapref
from snapref.anima.codec import NanoCodec
from snapref.anima.model import AnimaDiT
from snapref.anima.qwen import new_qwen
from snapref.cli import app
from snapref.config import NANO, NANO_V1A, NANO_V1B, CodecConfig
from snapref.files.download import ANIMA
from snapref.files.loader import WeightsError, read_tensors
from snapref.files.nano import MADE_BY, nano_file
from snapref.files.weights import save_weights
from snapref.reference.branches import Adapter
from snapref.reference.bundle import save_bundle
from snapref.sampling.opening import open_files, pick_dtype

GOLDEN = Path(__file__).parent / "golden"


def prefixed(module, prefix: str) -> dict:
    return {prefix + name: tensor for name, tensor in module.state_dict().items()}


@pytest.fixture(scope="module")
def nano_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("nano")
    torch.manual_seed(0)
    save_weights(prefixed(AnimaDiT(NANO), "net."), folder / "base.safetensors")
    save_weights(prefixed(new_qwen(NANO.text), "model."), folder / "text.safetensors")
    save_weights(NanoCodec(NANO.codec).state_dict(), folder / "codec.safetensors")
    save_bundle(Adapter(NANO_V1A, NANO), folder / "adapter_v1a.safetensors", torch.float16)
    for name in ("qwen_tokenizer.json", "t5_tokenizer.json"):
        tiny_tokenizer().save(str(folder / name))
    return folder


def test_load_nano(nano_folder):
    pipe = snapref.load("nano", folder=nano_folder, device="cpu")
    assert isinstance(pipe, snapref.Pipeline)
    stored = load_file(nano_folder / "base.safetensors")
    weights = pipe.model.state_dict()
    assert {f"net.{name}" for name in weights} == set(stored)
    assert all(torch.equal(weights[name[4:]], tensor.float()) for name, tensor in stored.items())
    assert not any(p.requires_grad for p in (*pipe.model.parameters(), *pipe.adapter.parameters()))
    result = pipe("1girl, beach", picture(size=(96, 64)), steps=1, quiet=True)
    assert result.image.size == NANO.default_size[::-1] and result.references[0].tokens == (24,)


def test_adapters_of_nano_by_name(nano_folder):
    stored = Adapter(NANO_V1B, NANO)
    save_bundle(stored, nano_folder / "adapter_v1b.safetensors", torch.float32)
    pipe = snapref.load("nano", folder=nano_folder, adapter="v1b", device="cpu")
    assert pipe.adapter.config.name == "nano-v1b"
    assert all(torch.equal(a, b) for a, b in zip(pipe.adapter.parameters(), stored.parameters(), strict=True))
    with pytest.raises(WeightsError, match="v2a.safetensors is missing; `snapref train family FOLDER --only nano-v2a`"):
        snapref.load("nano", folder=nano_folder, adapter="v2a")
    with pytest.raises(WeightsError, match="v9 does not exist"):
        snapref.load("nano", folder=nano_folder, adapter="v9")


@pytest.mark.parametrize("name", ["v1a", "v1b", "v2a"])
def test_shipped_adapters_are_what_they_are_called(name):
    adapter = snapref.load("nano", adapter=name, device="cpu").adapter
    ranks = (64, 32) if name == "v1b" else (32, 16)
    assert (adapter.config.name, adapter.config.reference_rank, adapter.config.target_rank) == (f"nano-{name}", *ranks)


def test_the_language_model_keeps_its_positions(nano_folder):
    """RoPE's speeds are in no file; they must be those of a model made the ordinary way."""
    pipe = snapref.load("nano", folder=nano_folder, device="cpu")
    usual = new_qwen(NANO.text).eval()
    usual.load_state_dict({n[6:]: t.float() for n, t in load_file(nano_folder / "text.safetensors").items()})
    ids = torch.arange(20)[None]
    assert torch.equal(pipe.text.qwen(ids).last_hidden_state, usual(ids).last_hidden_state)


def test_without_an_adapter(nano_folder):
    assert snapref.load("nano", folder=nano_folder, adapter=False).adapter is None


@pytest.mark.parametrize("name, command", MADE_BY.items())
def test_a_missing_file_says_what_makes_it(name, command, tmp_path):
    with pytest.raises(WeightsError, match=rf"{name} is missing; `{command}` makes it"):
        nano_file(name, tmp_path)


def test_a_file_in_the_wrong_slot_is_named(nano_folder, tmp_path):
    for file in nano_folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "base.safetensors").unlink()
    (tmp_path / "base.safetensors").symlink_to(nano_folder / "codec.safetensors")
    with pytest.raises(WeightsError, match="is nano's codec, but was given as base; it is no part of a model"):
        snapref.load("nano", folder=tmp_path)


def test_open_the_published_layout(tmp_path):
    """A base of other blocks than the config says, ComfyUI's names for the VAE, two tokenizer files."""
    model, text, _ = tiny_parts()
    config = dataclasses.replace(TINY, codec=CodecConfig(kind="qwen_image", factor=8))
    shallow = dataclasses.replace(config, dit=dataclasses.replace(config.dit, blocks=9))
    save_file(prefixed(model, "model.diffusion_model."), tmp_path / "base.safetensors")
    save_file(prefixed(text.qwen, "model."), tmp_path / "qwen.safetensors")
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    pipe = open_files(
        shallow,
        base=tmp_path / "base.safetensors",
        text_encoder=tmp_path / "qwen.safetensors",
        codec=GOLDEN / "tiny_vae_state_dict.safetensors",
        tokenizers=(tmp_path / "tokenizer.json",) * 2,
        adapter=None,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    assert pipe.config.dit.blocks == 3 and pipe.codec.factor == 8
    assert pipe("1girl, beach", steps=2, quiet=True).image.size == (48, 64)


@pytest.mark.parametrize("content, words", [
    (b"", "empty"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
    (b"<!DOCTYPE html><html>", "a web page"),
    (b"PK\x03\x04" + b"0" * 100, "a pickle"),
    (b"\x80\x02}q\x00" + b"0" * 100, "a pickle"),
    (b"something else altogether", "no safetensors file"),
])
def test_what_is_no_weight_file_is_named(content, words, tmp_path):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=rf"\({len(content)} bytes\) is {words}"):
        read_tensors(path)


def test_a_file_cut_short_is_named(tmp_path):
    save_file({"a": torch.zeros(1000)}, tmp_path / "whole.safetensors")
    path = tmp_path / "part.safetensors"
    path.write_bytes((tmp_path / "whole.safetensors").read_bytes()[:2000])
    words = r"\(2,000 bytes\) is a safetensors file cut short \(4,0\d\d bytes were expected\); fetch"
    with pytest.raises(WeightsError, match=words):
        read_tensors(path)


@pytest.fixture
def tiny_anima(monkeypatch, tmp_path):
    """A ComfyUI folder of tiny files, which `load("anima")` takes for the published ones."""
    config = dataclasses.replace(TINY, codec=CodecConfig(kind="qwen_image", factor=8))
    monkeypatch.setattr("snapref.sampling.opening.BASE", config)
    return comfyui_folder(tmp_path)


def test_load_anima_from_a_comfyui_folder(tiny_anima):
    pipe = snapref.load("anima", folder=tiny_anima, adapter="snapref_v1a", device="cpu")
    assert pipe.adapter.config.place == (0.0, 20.0, 0.0)
    result = pipe("1girl, beach", picture(), steps=1, quiet=True)
    assert result.image.size == (48, 64) and result.references[0].tokens == (6,)
    plain = snapref.load("anima", folder=tiny_anima, loras=["style"], device="cpu")
    assert plain.adapter is None and [each.name for each in plain.loras] == ["style"]


def test_a_place_and_captions_that_no_file_states_are_asked_for(tiny_anima):
    path = tiny_anima / "models/loras/snapref_v2a_pre1.safetensors"
    save_file(load_file(tiny_anima / "models/loras/snapref_v1a.safetensors"), path)  # the tensors, no header
    with pytest.raises(ValueError, match="'snapref_v2a_pre1.safetensors' does not state its place and captions; give"):
        snapref.load("anima", folder=tiny_anima, adapter="snapref_v2a_pre1", device="cpu")
    told = {"place": (0, 30, 0), "captions": {"cs": "character and style reference"}}
    pipe = snapref.load("anima", folder=tiny_anima, adapter="snapref_v2a_pre1", device="cpu", **told)
    assert pipe.adapter.config.place == (0.0, 30.0, 0.0) and pipe.adapter.config.captions == told["captions"]
    command = [
        *("generate", "-p", "1girl", "--model", "anima", "--folder", str(tiny_anima), "--adapter", "snapref_v2a_pre1"),
        *("--steps", "1", "--device", "cpu", "-q", "--out", str(tiny_anima / "o.png")),
    ]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 2 and "does not state its place and captions; give" in run.stderr
    run = CliRunner().invoke(app, [*command, "--place", "0,30,0", "--caption", "cs=character and style reference"])
    assert run.exit_code == 0 and (tiny_anima / "o.png").is_file()


def test_what_is_wrong_is_said_before_anything_is_loaded(tiny_anima):
    tokenizers = (tiny_anima / "tokenizers/t5", tiny_anima / "tokenizers/qwen")
    with pytest.raises(WeightsError, match="T5's tokenizer, but was given as Qwen's"):
        snapref.load("anima", folder=tiny_anima, tokenizers=tokenizers)
    style = tiny_anima / "models/loras/style.safetensors"
    with pytest.raises(WeightsError, match="style.safetensors is a LoRA, .* but was given as base; give it as loras="):
        snapref.load("anima", folder=tiny_anima, base=style)
    adapter = tiny_anima / "models/loras/snapref_v1a.safetensors"
    with pytest.raises(WeightsError, match="is a reference adapter: .* but was given as lora; give it as adapter="):
        snapref.load("anima", folder=tiny_anima, loras=[adapter])


def test_download_fetches_what_is_missing(tiny_anima, monkeypatch):
    fetched = []

    def fetch(repository, path, local_dir):
        fetched.append(path)
        raise ConnectionError("no route")

    vae = tiny_anima / "models/vae/qwen_image_vae.safetensors"
    vae.rename(tiny_anima / "kept")
    monkeypatch.setattr("snapref.files.download.download_anima.__defaults__", (None, ANIMA, None, fetch))
    with pytest.raises(WeightsError, match=rf"\(no connection\); put split_files/vae/.* into {vae.parent} and load"):
        snapref.load("anima", folder=tiny_anima, download=True)
    assert fetched == ["split_files/vae/qwen_image_vae.safetensors"]
    with pytest.raises(ValueError, match="nano ships with the package, so there is nothing to download"):
        snapref.load("nano", download=True)


def test_load_says_what_it_needs(monkeypatch, tmp_path):
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path)  # without earlier downloads
    with pytest.raises(ValueError, match="there is no model 'sdxl'; load 'nano' or 'anima'"):
        snapref.load("sdxl")
    with pytest.raises(WeightsError, match="anima needs .*: base, text_encoder, vae, tokenizers not given"):
        snapref.load("anima")
    with pytest.raises(ValueError, match="nano has its own files, so base, vae cannot be given"):
        snapref.load("nano", base="a", vae="b")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = snapref.nothing


def test_dtype_on_a_cpu():
    assert pick_dtype(torch.device("cpu")) == torch.float32
