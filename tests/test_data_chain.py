"""From nothing to a trained step with files in Anima's layout: datagen, prepare and training by their own commands."""

import dataclasses
import json

import pytest
from files_case import comfyui_folder
from pipeline_case import TINY
from training_case import tiny_config
from typer.testing import CliRunner

from snapref.cli import app
from snapref.config import CodecConfig
from snapref.training import adapter_task
from snapref.training.adapter_task import AdapterTask
from snapref.training.catalog import FOLDER
from snapref.training.loop import train
from snapref.training.prepared import PreparedPairs

BASE = "models/diffusion_models/anima-base-v1.0.safetensors"


@pytest.fixture
def anima(monkeypatch, tmp_path):
    """A ComfyUI folder of tiny files, which `load("anima")` and training take for the published ones."""
    room = dataclasses.replace(TINY.text, context_rows=100)  # for prompts of Anima's own catalog
    config = dataclasses.replace(TINY, text=room, codec=CodecConfig(kind="qwen_image", factor=8))
    monkeypatch.setattr("snapref.sampling.opening.BASE", config)
    monkeypatch.setitem(adapter_task.MODELS, "tiny", config)
    monkeypatch.setattr(adapter_task, "PreparedPairs", PreparedPairs)
    return comfyui_folder(tmp_path / "files")


def run(*words) -> dict:
    done = CliRunner().invoke(app, [*map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_four_pictures_become_a_step_of_training(anima, tmp_path):
    catalog = json.loads((FOLDER / "anima.json").read_text()) | {"name": "small", "sizes": {"64x48": 1.0, "48x64": 1.0}}
    (tmp_path / "small.json").write_text(json.dumps(catalog))
    model = ["--model", "anima", "--folder", anima]
    drawing = [*model, "--catalog", tmp_path / "small.json", "--pictures", 8, "--per-character", 4, "--steps", 1]
    for name, held in (("train", []), ("strangers", ["--heldout"])):
        assert run("datagen", "--out", tmp_path / f"{name}-pictures", *drawing, *held)["drawn_here"] == 8
        report = run("prepare", tmp_path / f"{name}-pictures", "--out", tmp_path / name, *model, "--verify")
        assert report["pictures"] == 8 and report["pairs"] == 24
    options = {"base": str(anima / BASE), "data": str(tmp_path / "train"), "unseen": str(tmp_path / "strangers")}
    settings = tiny_config(tmp_path, {**options, "gap": 4}, steps=1, batch=2, decay=0, save_every=1)
    folder = train(AdapterTask(settings), settings, tmp_path / "runs")
    assert (folder / "export.safetensors").is_file() and (folder / "gaps.csv").is_file()
    swapped = tiny_config(tmp_path, {**options, "data": str(tmp_path / "strangers")}, steps=1, batch=2, decay=0)
    with pytest.raises(ValueError, match="held-out characters .* which no training may see"):
        AdapterTask(swapped)
