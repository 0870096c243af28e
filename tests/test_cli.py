"""The command line: what it writes, what it prints, and how it fails."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from PIL import Image
from pipeline_case import picture, tiny_pipeline
from typer.testing import CliRunner

import snapref
from snapref.cli import app
from snapref.sampling.settings import Settings
from snapref.world.samples import references

RUN = CliRunner()


@pytest.fixture
def tiny(monkeypatch, tmp_path) -> Path:
    """nano is the tiny pipeline, and the folder holds a picture of somebody."""
    monkeypatch.setattr(snapref, "load", lambda name, **files: tiny_pipeline())
    monkeypatch.chdir(tmp_path)
    picture().save("her.png")
    return tmp_path


def run(*words) -> dict:
    result = RUN.invoke(app, [*map(str, words), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*words) -> str:
    result = RUN.invoke(app, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == 2
    sentence = result.stderr
    assert sentence.startswith("snapref: ") and sentence.count("\n") == 1 and "Traceback" not in sentence
    return sentence


def test_version_is_the_projects():
    declared = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert run("version")["snapref"] == re.search(r'^version = "(.+)"', declared, re.MULTILINE)[1]
    assert RUN.invoke(app, ["version"]).stdout.startswith(f"snapref {snapref.__version__}\n")


def test_generate(tiny):
    words = ["generate", "--reference", "her.png", "--prompt", "1girl, beach", "--out", "new/out.png"]
    report = run(*words, "--size", "64x48", "--steps", 3, "--seed", 5, "--strength", 0.8, "--mode", "char")
    image = Image.open("new/out.png")
    assert image.size == (64, 48) and report["out"] == ["new/out.png"]
    assert report["reference"] == {"tokens": [6], "bytes": 3 * 2 * 6 * 48 * 4}
    assert report["branches"] == 6 and report["seconds"] >= 0
    settings = Settings.from_png("new/out.png")
    assert Settings.from_dict(report["settings"]) == settings
    assert (settings.seed, settings.steps, settings.strength, settings.mode) == (5, 3, 0.8, "char")
    direct = tiny_pipeline()("1girl, beach", "her.png", settings=settings, quiet=True)
    assert direct.image.tobytes() == image.convert("RGB").tobytes()


def test_generate_for_a_person(tiny):
    result = RUN.invoke(app, ["generate", "-p", "1girl", "-q", "--steps", "2"], catch_exceptions=False)
    assert re.fullmatch(r"out.png: 48x64, 2 steps, \d+\.\d s\n", result.stdout)


def test_settings_come_from_a_picture(tiny):
    run("generate", "-p", "1girl", "--steps", 3, "--seed", 9, "-o", "a.png")
    run("generate", "-p", "1girl", "--settings", "a.png", "-o", "b.png")
    run("generate", "-p", "1girl", "--settings", "a.png", "--seed", 1, "-o", "c.png")
    a, b, c = (Image.open(f"{name}.png").tobytes() for name in "abc")
    assert a == b != c and Settings.from_png("c.png").steps == 3


def test_a_saved_reference_is_read_again(tiny):
    picture(1).save("also.png")
    run("generate", "-p", "1girl", "-r", "her.png", "-r", "also.png", "--save-reference", "two.safetensors")
    first = Image.open("out.png").tobytes()
    report = run("generate", "-p", "1girl", "-r", "two.safetensors")
    assert report["reference"]["tokens"] == [6, 6] and Image.open("out.png").tobytes() == first


@pytest.mark.filterwarnings("ignore:fidelity")
def test_every_setting_is_an_option(tiny):
    values = {
        "seed": 1, "steps": 2, "size": "32x48", "sampler": "er_sde", "schedule": "normal", "denoise": 0.5,
        "s_noise": 0.5, "noise_device": "cpu", "guidance": 2.0, "apg_eta": 0.5, "apg_momentum": -0.5,
        "apg_threshold": 9.0, "cfg_rescale": 0.5, "strength": 0.5, "mode": "char", "ref_caption": "smile",
        "fidelity": 0.5, "ref_guidance": 2.0, "ref_start": 0.1, "ref_end": 0.9, "ref_megapixels": 0.001,
        "block_weights": "0:0.5,1-:1", "cache_form": "fp8", "layout": "stitch",
        "stitch_direction": "down", "stitch_spacing": 2, "stitch_colour": "black",
    }  # fmt: skip
    assert {f.name for f in dataclasses.fields(Settings)} == {
        *values, "ref_in_uncond", "weights", "stitch_match"
    }
    words = [w for name, value in values.items() for w in (f"--{name.replace('_', '-')}", value)]
    words += ["--weight", 0.5, "--no-stitch-match"]
    values |= {"weights": [0.5], "block_weights": [0.5, 1, 1], "stitch_match": False}
    report = run("generate", "-p", "1girl", "-r", "her.png", "--image", "her.png", *words)
    stored = report["settings"]
    assert stored["size"] == [48, 32]
    assert {name: stored[name] for name in values if name != "size"} == {
        name: value for name, value in values.items() if name != "size"
    }
    assert run("generate", "-p", "1girl", "--ref-in-uncond")["settings"]["ref_in_uncond"] is True


@pytest.mark.parametrize("words, sentence", [
    (["--size", "64"], "size is '64'; give WIDTHxHEIGHT in pixels, such as 96x128"),
    (["--size", "60x64"], "width is 60 px, no multiple of 16; the nearest is 48 or 64"),
    (["--strength", "nan"], "strength is nan; it must be a number from 0 to 2"),
    (["--mode", "face", "-r", "her.png"], "mode is 'face'"),
    (["-r", "nowhere.png"], "nowhere.png"),
    (["-r", "pyproject.safetensors"], "pyproject.safetensors does not exist"),
    (["--settings", "nowhere.png"], "nowhere.png"),
    (["--save-reference", "x.safetensors"], "no reference was read"),
])
def test_what_cannot_be_is_one_sentence(tiny, words, sentence):
    assert sentence in refused("generate", "-p", "1girl", *words)


def test_a_picture_that_is_none_is_one_sentence(tiny):
    Path("text.png").write_text("no picture")
    assert "text.png" in refused("generate", "-p", "1girl", "-r", "text.png")


def test_unknown_tags_and_strangers_are_noticed(tiny, monkeypatch):
    result = RUN.invoke(app, ["generate", "-p", "1girl, beech, masterpiece", "-q"], catch_exceptions=False)
    assert "nano does not know the tag 'beech'; the nearest it knows: beach" in result.stderr
    assert result.stderr.count("\n") == 1
    Image.fromarray(references()[0].picture()).save("drawn.png")
    Image.effect_noise((96, 128), 80).convert("RGB").save("noise.png")
    for name, count in (("drawn.png", 0), ("noise.png", 1)):
        told = run("generate", "-p", "1girl", "-r", name)["notices"]
        assert len(told) == count and all("knows only its drawn world" in sentence for sentence in told)


def test_missing_weights_are_one_sentence(tmp_path):
    sentence = refused("generate", "-p", "1girl", "--folder", tmp_path)
    assert "base.safetensors is missing; `snapref train run base` makes it" in sentence
