"""One settings object: from the call or the command line into the PNG, and out of it again."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from pipeline_case import picture, tiny_pipeline
from typer.testing import CliRunner

import snapref
from snapref.cli import app
from snapref.reference.cache import ReferenceCache
from snapref.sampling.settings import Settings, SettingsError, read_record

OLD = Path(__file__).parent / "golden" / "settings_v1.png"  # written before weights, blocks and regions existed
PROMPT = "1girl, beach, waving"


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """nano is the tiny pipeline, and the folder holds two pictures and a mask."""
    monkeypatch.setattr(snapref, "load", lambda name, **files: tiny_pipeline())
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a.png", 1), ("b.png", 2)):
        picture(seed).save(name)
    mask = np.zeros((64, 48), np.uint8)
    mask[:, :24] = 255
    Image.fromarray(mask).save("left.png")
    return mask


def run(*words) -> dict:
    result = CliRunner().invoke(app, ["generate", "-p", PROMPT, *map(str, words), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*words) -> str:
    result = CliRunner().invoke(app, ["generate", "-p", PROMPT, *map(str, words)], catch_exceptions=False)
    *notices, sentence = result.stderr.splitlines()
    assert result.exit_code == 2 and all("drawn world" in notice for notice in notices)
    return sentence


def test_settings_of_an_older_version_open_unchanged():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no region is missing in an old picture
        settings = Settings.from_png(OLD)
    stored = read_record(OLD)["settings"]
    assert stored["version"] == 1 and len(stored) == 23
    found = json.loads(json.dumps(settings.to_dict()))
    assert {name: found[name] for name in stored} == stored
    fresh = Settings().to_dict()
    assert {name: v for name, v in found.items() if name not in stored} == {
        name: v for name, v in fresh.items() if name not in stored
    }
    resolved = settings.resolved(tiny_pipeline().config)
    assert resolved == settings  # nothing was left to a default


def test_everything_is_recorded_and_reopened(tmp_path):
    pipe, pictures = tiny_pipeline(), [picture(1), picture(2)]
    mask = np.zeros((64, 48), np.float32)
    mask[:, :24] = 1
    areas = {"regions": [mask, "right"], "ref_masks": [None, (0, 0, 1, 0.5)]}
    options = {"weights": [0.5, 2], "block_weights": "1-:0.5", "steps": 2}
    result = pipe(PROMPT, pictures, quiet=True, **areas, **options)
    path = result.save(tmp_path / "out.png")[0]
    record = read_record(path)
    assert record["regions"][1] == [0.5, 0, 1, 1] and record["ref_masks"] == [None, [0, 0, 1, 0.5]]
    assert record["regions"][0]["size"] == [48, 64] and len(record["regions"][0]["mask"]) == 64
    told = r"drawn with regions a mask of 48x64 \(\w{8}…\); 0.5,0,1,1 and ref_masks none; 0,0,1,0.5; give them again"
    with pytest.warns(UserWarning, match=told):
        settings = Settings.from_png(path)
    assert settings == result.settings and settings.block_weights == (1, 0.5, 0.5)
    again = pipe(PROMPT, pictures, settings=settings, quiet=True, **areas)
    assert torch.equal(again.latents, result.latents) and json.loads(json.dumps(again.record())) == record
    other = pipe(PROMPT, pictures, settings=settings, quiet=True, regions=["right", "left"])
    assert other.record()["regions"] != record["regions"]


def test_weights_that_a_cache_brings_are_recorded():
    pipe = tiny_pipeline()
    cache = pipe.encode([picture(1), picture(2)], weights=[0.5, 1])
    found = pipe(PROMPT, cache, quiet=True, steps=1)
    assert found.settings.weights == (0.5, 1)
    plain = pipe.encode([picture(1), picture(2)])
    assert torch.equal(pipe(PROMPT, plain, settings=found.settings, quiet=True).latents, found.latents)
    assert pipe(PROMPT, plain, quiet=True, steps=1).settings.weights is None


@pytest.mark.parametrize("options", [
    {"cache_form": "thin:0.25"}, {"cache_form": "fp8"}, {"ref_caption": "night, smile"}, {"mode": "char"},
    {"ref_megapixels": 0.001}, {"layout": "stitch", "stitch_direction": "down", "stitch_spacing": 4},
])  # fmt: skip
def test_a_picture_drawn_with_a_cache_is_drawn_again_from_its_settings_alone(options, tmp_path):
    pipe, pictures = tiny_pipeline(), [picture(1), picture(2)]
    pipe.encode(pictures, **options).save(tmp_path / "kept.safetensors")
    drawn = pipe(PROMPT, ReferenceCache.load(tmp_path / "kept.safetensors"), quiet=True, steps=2)
    assert {name: getattr(drawn.settings, name) for name in options} == options
    settings = Settings.from_png(drawn.save(tmp_path / "out.png")[0])
    assert torch.equal(pipe(PROMPT, pictures, settings=settings, quiet=True).latents, drawn.latents)


def test_levels_of_its_own_are_recorded(tmp_path):
    drawn = tiny_pipeline()(PROMPT, levels=[1, 0.5, 0], quiet=True)
    path = drawn.save(tmp_path / "out.png")[0]
    assert read_record(path)["levels"] == [1, 0.5, 0] and drawn.settings.steps == 2
    with pytest.warns(UserWarning, match="drawn with levels of its own; give them again"):
        Settings.from_png(path)


@pytest.mark.parametrize("stored, sentence", [
    ({"version": "1"}, "settings have version '1'; it must be a whole number"),
    ({"version": None}, "settings have version None"),
    ([], "stored settings are a list; give what `to_dict` returned"),
])  # fmt: skip
def test_stored_settings_that_are_none(stored, sentence):
    with pytest.raises(SettingsError, match=sentence):
        Settings.from_dict(stored)


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_record_is_said(text, tmp_path):
    info = PngInfo()
    info.add_itxt("snapref", text)
    picture().save(tmp_path / "cut.png", pnginfo=info)
    with pytest.raises(SettingsError, match="carries settings that are damaged; use the picture as it was saved"):
        Settings.from_png(tmp_path / "cut.png")


def test_the_command_line_is_the_call(tiny):
    words = ["-r", "a.png", "-r", "b.png", "--steps", 2, "--weight", 0.5, "--weight", 1.5]
    words += ["--block-weights", "0:0,1-:1"]
    words += ["--region", "left.png", "--region", "0.5,0,1,1", "--ref-mask", "all", "--ref-mask", "top"]
    report = run(*words)
    direct = tiny_pipeline()(
        PROMPT, ["a.png", "b.png"], steps=2, weights=[0.5, 1.5], block_weights=[0, 1, 1], quiet=True,
        regions=[tiny, "right"], ref_masks=[None, "top"],
    )  # fmt: skip
    assert direct.image.tobytes() == Image.open("out.png").tobytes()
    assert report["settings"]["weights"] == [0.5, 1.5] and report["reference"]["tokens"] == [6, 4]

    first = Image.open("out.png").tobytes()
    areas = words[words.index("--region"):]
    with pytest.warns(UserWarning, match="out.png was drawn with regions a mask of 48x64"):
        run("-r", "a.png", "-r", "b.png", "--settings", "out.png", "-o", "again.png", *areas)
    assert Image.open("again.png").tobytes() == first
    run(*words, "--save-reference", "two.safetensors", "-o", "saved.png")
    assert Image.open("saved.png").tobytes() == first
    run("-r", "two.safetensors", *words[4 : words.index("--ref-mask")], "-o", "read.png")
    assert Image.open("read.png").tobytes() == first
    run("-r", "two.safetensors", "-r", "a.png", "--weight", 1, "--weight", 0, "--weight", 1, "--steps", 1)


def test_what_a_picture_switched_on_is_switched_off_again(tiny):
    assert run("-r", "a.png", "--steps", 1, "--ref-in-uncond")["settings"]["ref_in_uncond"] is True
    assert run("-r", "a.png", "--settings", "out.png")["settings"]["ref_in_uncond"] is True
    assert run("-r", "a.png", "--settings", "out.png", "--no-ref-in-uncond")["settings"]["ref_in_uncond"] is False


def test_stitch_from_the_command_line(tiny):
    words = ["--layout", "stitch", "--stitch-direction", "down", "--stitch-spacing", 3, "--stitch-colour", "red"]
    report = run("-r", "a.png", "-r", "b.png", "--steps", 1, "--no-stitch-match", *words, "--region", "left")
    assert report["reference"]["tokens"] == [12]  # 32×100 pixels → 32×96
    assert report["settings"]["stitch_match"] is False and report["settings"]["stitch_colour"] == "red"


@pytest.mark.parametrize("words, sentence", [
    (["--weight", 1], "weights has 1 entries for 2 pictures; give one for each"),
    (["--weight", 1, "--weight", "nan"], "weights[1] is nan; it must be a number from 0 to 10"),
    (["--block-weights", "9:0"], "block_weights names blocks 9 to 9; the model has 0 to 2"),
    (["--region", "left"], "regions has 1 entries for 2 pictures; give one for each"),
    (["--region", "left", "--region", "middle"], "regions[1]: 'middle' does not exist"),
    (["--ref-mask", "left.png", "--ref-mask", "all"], "ref_masks[0] is a mask of 48×64 pixels, its picture has 32×48"),
    (["--layout", "grid"], "layout is 'grid'; it must be one of separate, stitch"),
])
def test_what_cannot_be_is_one_sentence(tiny, words, sentence):
    assert sentence in refused("-r", "a.png", "-r", "b.png", *words)
