"""An adapter in another number format: the numbers that saving it so would give, whatever its names."""

import json

import pytest
import torch
from pipeline_case import TINY, tiny_adapter
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from snapref.cli import app
from snapref.files.broken import WeightsError
from snapref.files.convert import FORMATS, convert_adapter
from snapref.files.inspect import inspect
from snapref.files.loader import read_metadata
from snapref.reference.bundle import load_bundle, save_bundle


@pytest.fixture
def bundle(tmp_path):
    save_bundle(tiny_adapter(), tmp_path / "adapter.safetensors", torch.float16, notes={"author": "somebody"})
    return tmp_path / "adapter.safetensors"


@pytest.mark.parametrize("format_", FORMATS)
def test_as_if_it_had_been_saved_so(bundle, format_, tmp_path):
    out, saved = tmp_path / "out.safetensors", tmp_path / "saved.safetensors"
    before, after = convert_adapter(bundle, out, format_)
    save_bundle(load_bundle(bundle, TINY), saved, FORMATS[format_])
    assert (before, after) == (bundle.stat().st_size, out.stat().st_size)
    assert read_metadata(out) == read_metadata(bundle)
    ours, theirs = load_file(out), load_file(saved)
    assert ours.keys() == theirs.keys() and inspect(out).kind == "adapter"
    assert all(ours[n].dtype == theirs[n].dtype and torch.equal(ours[n].float(), theirs[n].float()) for n in ours)


def test_names_of_other_trainers_stay_and_eight_bits_go_back(bundle, tmp_path):
    foreign = {
        name.replace("lora_A.weight", "lora_down").replace("lora_B.weight", "lora_up"): tensor
        for name, tensor in load_file(bundle).items()
    }
    save_file(foreign, tmp_path / "foreign.safetensors", metadata=read_metadata(bundle))
    convert_adapter(tmp_path / "foreign.safetensors", tmp_path / "fp8.safetensors")
    convert_adapter(tmp_path / "fp8.safetensors", tmp_path / "back.safetensors", "fp32")
    narrow, back, whole = (
        load_bundle(path, TINY).state_dict()
        for path in (tmp_path / "fp8.safetensors", tmp_path / "back.safetensors", bundle)
    )
    assert all(torch.equal(narrow[name], back[name]) for name in whole)
    for name, matrix in whole.items():  # e4m3 has three bits after the first: half of one step in sixteen
        error = (narrow[name] - matrix).abs()
        assert (error <= matrix.abs() / 16 + matrix.abs().amax(1, keepdim=True) / 448 / 512).all()


def test_half_of_sixteen_bits_at_full_size():
    """3 in 1000 of it are scales: 4 bytes for a row of 128 to 8,192 numbers, or of the rank."""
    from snapref.config import BASE, V1A
    from snapref.reference.branches import Adapter

    with torch.device("meta"):
        matrices = list(Adapter(V1A, BASE).state_dict().values())
    narrow = sum(matrix.numel() + 4 * len(matrix) for matrix in matrices)
    assert narrow <= 0.52 * 2 * sum(matrix.numel() for matrix in matrices)


def test_what_cannot_be_converted(bundle, tmp_path):
    with pytest.raises(WeightsError, match="format is 'int4'; it must be one of fp8, fp16, bf16, fp32"):
        convert_adapter(bundle, tmp_path / "out.safetensors", "int4")
    with pytest.raises(WeightsError, match="is the file that is read; give another name"):
        convert_adapter(bundle, bundle)
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match="no adapter; give an adapter's file"):
        convert_adapter(tmp_path / "other.safetensors", tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("number, format_", [(1e5, "fp16"), (float("nan"), "fp8"), (float("inf"), "fp8")])
def test_numbers_that_do_not_fit_are_named(bundle, number, format_, tmp_path):
    tensors = {name: tensor.float() for name, tensor in load_file(bundle).items()}
    name = next(name for name, tensor in tensors.items() if tensor.ndim == 2)
    tensors[name][0, 0] = number
    save_file(tensors, tmp_path / "wide.safetensors", metadata=read_metadata(bundle))
    with pytest.raises(WeightsError, match=f"{name}.* of .*has numbers that are not finite in {format_}"):
        convert_adapter(tmp_path / "wide.safetensors", tmp_path / "out.safetensors", format_)
    assert not (tmp_path / "out.safetensors").exists()


def test_command(bundle, tmp_path):
    run = CliRunner().invoke(app, ["convert", str(bundle), str(tmp_path / "small.safetensors"), "--json"])
    report = json.loads(run.stdout)
    assert report["bytes"] == (tmp_path / "small.safetensors").stat().st_size < report["bytes_before"]
    run = CliRunner().invoke(app, ["convert", str(bundle), str(tmp_path / "s.safetensors"), "--to", "int4"])
    assert run.exit_code == 2 and "format is 'int4'" in run.output
