"""Every bad weight file gets one sentence that names it; extra prompts and sizes are drawn or refused in words."""

import pytest
import torch
from files_case import TINY_VAE, write_base
from pipeline_case import TINY, tiny_parts, tiny_pipeline
from safetensors.torch import save_file

from snapref.config import CodecConfig
from snapref.files.inspect import inspect
from snapref.files.keys import KeyMismatch
from snapref.files.loader import WeightsError, load_codec, load_model, read_tensors
from snapref.sampling.settings import SettingsError


def model_of(path):
    return load_model(path, TINY, torch.float32)


def test_a_file_cut_short_says_how_much_was_expected(tmp_path):
    whole = write_base(tmp_path / "whole.safetensors")
    size, part = whole.stat().st_size, tmp_path / "part.safetensors"
    part.write_bytes(whole.read_bytes()[:50_000])
    words = rf"part.safetensors \(50,000 bytes\) is a safetensors file cut short \({size:,} bytes were expected\)"
    with pytest.raises(WeightsError, match=words):
        model_of(part)
    part.write_bytes(whole.read_bytes()[:100])  # not even the header is whole
    with pytest.raises(WeightsError, match=r"\(100 bytes\) is a safetensors file cut short; fetch it again"):
        model_of(part)


@pytest.mark.parametrize("name, content, words", [
    ("a.safetensors", b"", r"\(0 bytes\) is empty; fetch it again"),
    ("a.safetensors", b"<!DOCTYPE html><html>", "a web page, not weights; fetch it again, from its download link"),
    ("a.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4182137856\n",
     r"a Git LFS pointer, not the weights themselves \(4,182,137,856 bytes were expected\); fetch it with `git lfs"),
    ("a.gguf", b"GGUF\x03\x00\x00\x00" + b"0" * 50, "a GGUF file, whose number formats are not read; take the"),
])  # fmt: skip
def test_what_is_no_weight_file(name, content, words, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=words):
        read_tensors(tmp_path / name)


def test_a_folder_and_nothing_in_place_of_a_file(tmp_path):
    with pytest.raises(WeightsError, match="is a folder; give the safetensors file in it"):
        inspect(tmp_path)
    with pytest.raises(WeightsError, match="nothing.safetensors does not exist; check the path"):
        model_of(tmp_path / "nothing.safetensors")


class Trap:
    """Unpickled, it would leave a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


@pytest.mark.parametrize("name", ["model.ckpt", "model.pt", "model.safetensors"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_refused_and_never_unpickled(name, zipped, tmp_path):
    torch.save({"a": Trap(tmp_path / "mark")}, tmp_path / name, _use_new_zipfile_serialization=zipped)
    with pytest.raises(WeightsError, match="a pickle, which could run any program and is never opened; take the"):
        read_tensors(tmp_path / name)
    assert not (tmp_path / "mark").exists()


def test_leftovers_are_ignored_and_strangers_listed(tmp_path):
    leftovers = {"net.accum_video": torch.zeros(1), "net.blocks.0._extra_state": torch.zeros(1),
                 "model_sampling.sigmas": torch.zeros(1), "net.pos_embedder.seq": torch.zeros(1)}  # fmt: skip
    assert model_of(write_base(tmp_path / "a.safetensors", "net.", **leftovers)).blocks
    strangers = {"net.blocks.0.mlp.layer3.weight": torch.zeros(1), "net.mystery": torch.zeros(1)}
    with pytest.raises(KeyMismatch, match="2 unexpected: blocks.0.mlp.layer3.weight, mystery"):
        model_of(write_base(tmp_path / "b.safetensors", "net.", **strangers))
    with pytest.raises(KeyMismatch, match="missing: .*unexpected: theirs."):
        model_of(write_base(tmp_path / "c.safetensors", "theirs."))  # a prefix that nobody uses


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named(bad, tmp_path):
    tensors = {f"net.{name}": t.clone() for name, t in tiny_parts()[0].state_dict().items()}
    tensors["net.blocks.1.mlp.layer2.weight"][3, 4] = bad
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match="not finite in blocks.1.mlp.layer2.weight; fetch it again"):
        model_of(tmp_path / "a.safetensors")


def test_a_vae_that_is_not_finite(tmp_path):
    tensors = {name: t.clone() for name, t in read_tensors(TINY_VAE).items()}
    tensors["decoder.conv1.bias"][0] = float("nan")
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match="not finite in .*decoder"):
        load_codec(tmp_path / "a.safetensors", CodecConfig(kind="qwen_image", factor=8), torch.float32)


@pytest.mark.parametrize("blocks", [40, 52])
def test_any_number_of_blocks(blocks, tmp_path):
    """Expanded models of 40 and 52 blocks are in use: the file's count is taken."""
    tensors = {f"net.{name}": t for name, t in tiny_parts()[0].state_dict().items()}
    for i in range(3, blocks):
        tensors |= {n.replace("blocks.0.", f"blocks.{i}."): t.clone() for n, t in tensors.items()
                    if n.startswith("net.blocks.0.")}  # fmt: skip
    save_file(tensors, tmp_path / "a.safetensors")
    model = model_of(tmp_path / "a.safetensors")
    assert len(model.blocks) == model.config.dit.blocks == blocks


def test_prompts_of_any_length():
    pipe = tiny_pipeline(adapter=False)
    long = ", ".join(["1girl", "beach"] * 500)
    assert pipe("", steps=1, quiet=True).image.size == (48, 64)
    assert pipe(long, steps=1, quiet=True).image.size == (48, 64)
    assert pipe.contexts([long])[0].shape[1] >= 2000 > pipe.config.text.context_rows  # nothing is cut off


@pytest.mark.parametrize("size, words", [
    ((64, 50), "width is 50 px, no multiple of 16; the nearest is 48 or 64"),
    ((70, 48), "height is 70 px, no multiple of 16; the nearest is 64 or 80"),
    ((4112, 64), "whole, from 1 to 4096 pixels"),
])  # fmt: skip
def test_sizes_that_cannot_be_drawn(size, words):
    with pytest.raises(SettingsError, match=words):
        tiny_pipeline()("1girl", size=size, steps=1, quiet=True)


def test_a_side_of_4096_pixels():
    assert tiny_pipeline(adapter=False)("1girl", size=(16, 4096), steps=1, quiet=True).image.size == (4096, 16)
