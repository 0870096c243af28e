"""What a config may say: every value out of range is named with its range before anything starts."""

import json

import pytest
from training_case import tiny_config
from typer.testing import CliRunner

from snapref.cli import app
from snapref.evaluation.compare import candidates, compare
from snapref.files.loader import WeightsError
from snapref.reference.bundle import save_bundle
from snapref.training.adapter_task import AdapterTask
from snapref.training.config import CONFIGS, load_run_config
from snapref.training.loop import train
from snapref.training.options import check_options
from snapref.training.resume import noted

RUN = CliRunner()


def refused(*words) -> str:
    result = RUN.invoke(app, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == 2
    assert result.stderr.startswith("snapref: ") and result.stderr.count("\n") == 1
    return result.stderr


def written(folder, values, name="mine.json"):
    path = folder / name
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


def changed(folder, name="nano-v1a", options=None, **fields):
    """A config of the package with some things changed; None takes one out."""
    values = json.loads((CONFIGS / f"{name}.json").read_text())
    values.update(fields)
    values["options"].update(options or {})
    values["options"] = {k: v for k, v in values["options"].items() if v is not None}
    return written(folder, {k: v for k, v in values.items() if v is not None})


@pytest.mark.parametrize("fields, sentence", [
    ({"steps": "many"}, "steps is 'many'; it must be a whole number"),
    ({"steps": 10.5}, "steps is 10.5; it must be a whole number"),
    ({"steps": 10**400}, "00; it must be a whole number"),
    ({"clip": float("nan")}, "clip is nan; it must be a number"),
    ({"muon_lr": -1}, "muon_lr is -1; it must be at least 0"),
    ({"adamw_lr": "fast"}, "adamw_lr is 'fast'; it must be a number"),
    ({"ema": 1.5}, "ema is 1.5; it must be below 1"),
    ({"tensorboard": "yes"}, "tensorboard is 'yes'; it must be true or false"),
    ({"options": []}, r"options is []; it must be an object"),
    ({"name": ""}, "task and name must not be empty"),
    ({"task": None}, "mine.json lacks task; copy one of"),
    ({"task": "adaptor"}, "task is 'adaptor'; it must be one of codec, text, base, tagger, adapter"),
])
def test_fields_of_a_config(tmp_path, fields, sentence):
    values = json.loads((CONFIGS / "nano-v1a.json").read_text()) | fields
    path = written(tmp_path, {k: v for k, v in values.items() if v is not None})
    assert sentence in refused("train", "run", path, "--runs", tmp_path)


@pytest.mark.parametrize("text, sentence", [
    ("[1, 2]", "mine.json is no object of names and values"),
    ("{", "mine.json is no JSON file"),
])
def test_a_file_that_is_no_config(tmp_path, text, sentence):
    assert sentence in refused("train", "adapter", "--config", written(tmp_path, text))
    assert "no training config called" in refused("train", "plan", tmp_path)


@pytest.mark.parametrize("options, sentence", [
    ({"shift": -3}, "shift is -3; it must be a number above 0"),
    ({"spread": 0}, "spread is 0; it must be a number above 0"),
    ({"jitter": [1, 2]}, "jitter is [1, 2]; it must be three numbers of at least 0"),
    ({"jitter": "wide"}, "jitter is 'wide'; it must be three numbers"),
    ({"adapter": None}, "nano-v1a lacks the option adapter; it must be one of V1A, V1B, V2A, NANO_V1A"),
    ({"adapter": "V9"}, "adapter is 'V9'; it must be one of V1A, V1B"),
    ({"adapter_changes": {"reference_rank": 0}}, "adapter_changes is {'reference_rank': 0}; it must be an object of"),
    ({"model": "huge"}, "model is 'huge'; it must be one of nano, anima"),
    ({"dtype": ["float32"]}, "dtype is ['float32']; it must be one of float32, bfloat16, float16"),
    ({"gap": 1}, "gap is 1; it must be a number of pairs from 2, or 0"),
    ({"previews": -1}, "previews is -1; it must be a whole number of at least 0"),
    ({"columns": 0}, "columns is 0; it must be a whole number of at least 1"),
    ({"shfit": 3}, "has unknown options: shfit; adapter knows adapter,"),
])
def test_options_of_an_adapter_by_training_and_by_plan(tmp_path, options, sentence):
    path = changed(tmp_path, options=options)
    assert sentence in refused("train", "adapter", "--config", path, "--runs", tmp_path / "runs")
    assert sentence in refused("plan", "--train", path)


@pytest.mark.parametrize("task, options, sentence", [
    ("base", {"shift": -3}, "shift is -3"), ("base", {"kinds": {"cube": 1}}, "it must be an object of numbers above 0"),
    ("base", {"weights": None}, "base lacks the option weights"), ("tagger", {"noise": "much"}, "noise is 'much'"),
    ("codec", {"crop": 4}, "crop is 4; it must be a whole number from 8 to 96"),
])
def test_options_of_the_other_tasks(tmp_path, task, options, sentence):
    assert sentence in refused("train", "run", changed(tmp_path, task, options), "--runs", tmp_path)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda p: p.stem)
def test_every_config_of_the_package_is_in_range(path):
    check_options(load_run_config(path.stem))


@pytest.mark.parametrize("words, sentence", [
    (["--tflops", "-5"], "tflops is -5; it must be above 0"), (["--tflops", "0"], "tflops is 0; it must be above 0"),
    (["--card", "-5"], "card is -5; it must be above 0 GB"), (["--card", "nan"], "card is nan; it must be above 0 GB"),
    (["--cards", "0"], "cards is 0; it must be above 0"), (["--cards", "-1"], "cards is -1; it must be above 0"),
    (["--batch", "0"], "batch is 0; it must be at least 1"),
])
def test_a_plan_of_what_cannot_be(words, sentence):
    assert sentence in refused("train", "plan", "nano-v1a", *words)
    assert sentence in refused("plan", "--train", "nano-v1a", *words)


def test_both_plans_of_a_training_are_one():
    words = ["nano-v1b", "--card", "24", "--batch", "64", "--no-recompute", "--optimizer", "adamw", "--pictures", "9"]
    one, other = (RUN.invoke(app, [*command, *words], catch_exceptions=False).stdout
                  for command in (["train", "plan"], ["plan", "--train"]))
    assert one == other and "trainable parameters" in one and "9 pictures" in one
    assert "--size is for drawing, not --train" in refused("plan", "--train", "nano-v1a", "--size", "64x64")
    assert "--cards is for --train; leave it out" in refused("plan", "--cards", "2")


@pytest.mark.parametrize("until", [-1, 0])
def test_until_is_a_step(tmp_path, until):
    settings = tiny_config(tmp_path)
    with pytest.raises(ValueError, match=f"until is {until}; give the step to stop at, from 1 to 30"):
        train(AdapterTask(settings), settings, tmp_path / "runs", until)


def test_what_cannot_be_split_names_processes_and_parts(tmp_path):
    settings = tiny_config(tmp_path, accumulate=3)
    with pytest.raises(ValueError, match="batch of 4 cannot be split over 1 processes in 3 parts each; make it a mul"):
        train(AdapterTask(settings), settings, tmp_path / "runs")


def test_a_run_that_does_not_say_what_it_was_is_not_compared(tmp_path):
    from reference_case import tiny_adapter

    save_bundle(tiny_adapter(), tmp_path / "a/bundles/00000005.safetensors")
    assert noted(tmp_path / "a") is None and len(candidates([tmp_path / "a"])) == 1
    for text, why in (("{}", "it has no options"), ("[]", "it has no options"), ("{", "Expecting property name")):
        written(tmp_path / "a", text, "config.json")
        with pytest.raises(ValueError, match=f"config.json does not say how the run was begun .{why}"):
            candidates([tmp_path / "a"])
    (tmp_path / "a/config.json").unlink()
    save_bundle(tiny_adapter(), tmp_path / "a/bundles/best.safetensors")
    with pytest.raises(WeightsError, match="best.safetensors is not named by its step, as 00000000.safetensors is"):
        candidates([tmp_path / "a"])
    assert candidates([tmp_path / "a/bundles/best.safetensors"])[0].step is None
    for name, value in (("n", 1), ("last", 0), ("last", -2)):
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be at least"):
            compare([tmp_path / "a"], **{name: value})
