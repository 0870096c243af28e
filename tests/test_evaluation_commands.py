"""The commands: JSON objects, the README's tables, and the demo's picture."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from evaluation_case import roomy_pipeline
from PIL import Image
from typer.testing import CliRunner

import snapref
from snapref.cli import app
from snapref.evaluation import runs
from snapref.evaluation.tables import TABLES, fill
from snapref.lab.demo import PROMPTS, sample_character
from snapref.training.tagger import Tagger

RUN = CliRunner()
README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """nano is the tiny pipeline and its tagger an untrained one."""
    def load(name, folder=None, adapter=None):
        return roomy_pipeline(adapter is not False)

    monkeypatch.setattr(snapref, "load", load)
    tagger = Tagger().eval()
    monkeypatch.setattr(runs, "load_tagger", lambda folder: tagger)
    monkeypatch.setattr(runs, "load_codec", lambda *files: roomy_pipeline().codec)
    monkeypatch.setattr(runs, "nano_file", lambda name, folder: name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words) -> dict:
    result = RUN.invoke(app, [*map(str, words), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_attributes(tiny):
    report = run("evaluate", "attributes", "--n", 3, "--steps", 1, "--out", "new/found.json")
    assert set(report["appearance"]) == {"all_tags", "scene_only", "reference", "wrong_reference"}
    assert (report["n"], report["steps"], report["guidance"], report["split"]) == (3, 1, 3.0, "heldout")
    assert json.loads(Path("new/found.json").read_text()) == report
    base = run("evaluate", "attributes", "--n", 2, "--steps", 1, "--base-only")
    assert set(base["scene"]) == {"all_tags", "scene_only"}


def test_heldout(tiny):
    report = run("evaluate", "heldout", "--n", 5)
    assert set(report) == {"right", "wrong", "none", "gap", "ci95", "n", "bands", "seed"} and report["n"] == 5
    told = RUN.invoke(app, ["evaluate", "heldout", "--n", "5"], catch_exceptions=False).stdout
    assert "| all |" in told and f"{report['right']:.4f}" in told


def test_codec_and_colours(tiny):
    assert run("evaluate", "codec", "--n", 3)["n"] == 3
    report = run("evaluate", "colours", "--n", 3, "--steps", 1)
    assert {"all_tags", "reference", "twin_reference", "wrong_reference", "gap"} == set(report["hair"])


def test_all_writes_the_numbers_and_the_tables_of_the_page(tiny):
    marks = "".join(f"## {name}\n<!-- table:{name} -->\nold\n<!-- /table -->\n" for name in TABLES)
    Path("README.md").write_text(f"# A page\n{marks}end\n")
    report = run("evaluate", "all", "--n", 3, "--pairs", 4, "--steps", 1)
    assert json.loads(Path("figures/evaluation.json").read_text()) == report
    page = Path("README.md").read_text()
    assert "old" not in page and page.startswith("# A page\n") and page.endswith("end\n")
    assert page.count("<!-- /table -->") == len(TABLES) == 5
    assert "| **appearance** | " in page and "ΔE" in page
    assert re.search(r"(hair style|outfit|artist): ", page)  # what is held back
    again = run("evaluate", "all", "--n", 3, "--pairs", 4, "--steps", 1)
    assert again | {"speed": 0} == report | {"speed": 0}
    assert Path("README.md").read_text().count("| **appearance** |") == 2  # replaced, not added to


def test_a_page_that_marks_an_unknown_table_is_refused_before_the_run(tiny):
    Path("README.md").write_text("<!-- table:weather -->\n<!-- /table -->\n")
    result = RUN.invoke(app, ["evaluate", "all"], catch_exceptions=False)
    assert result.exit_code == 2 and "marks a table 'weather'" in result.stderr


def test_the_readmes_marks_are_known():
    fill(README.read_text(encoding="utf-8"), dict.fromkeys(TABLES, ""))


def test_demo(tiny):
    report = run("demo", "--out", "figures/demo.png")
    assert report["out"] == "figures/demo.png" and report["prompts"] == list(PROMPTS)
    assert Image.open("figures/demo.png").mode == "RGB"
    Image.new("RGBA", (400, 300), (255, 0, 0, 0)).save("her.png")
    own = RUN.invoke(app, ["demo", "-r", "her.png", "-o", "own.png", "-q"], catch_exceptions=False)
    assert own.exit_code == 2 and "transparent everywhere" in own.stderr
    Image.new("RGB", (400, 300), "red").save("her.png")
    assert run("demo", "-r", "her.png", "-o", "own.png")["reference"] == "her.png"
    knobs = ["--set", "strength=0.5", "--set", "size=48x64", "--set", "ref_in_uncond=true", "--set", "sampler=er_sde"]
    set_ = run("demo", *knobs, "--set", "block_weights=0:0.5,1-:1")["settings"]
    assert (set_["strength"], set_["size"], set_["ref_in_uncond"], set_["sampler"]) == (0.5, [64, 48], True, "er_sde")
    assert set_["block_weights"] == [0.5, 1, 1]
    for knob, said in (("strength", "set is 'strength'; give FIELD=VALUE"), ("strenth=1", "did you mean strength?"),
                       ("strength=9", "strength is 9; it must be a number from 0 to 2")):  # fmt: skip
        assert said in RUN.invoke(app, ["demo", "--set", knob], catch_exceptions=False).stderr
    told = RUN.invoke(app, ["demo", "--character", "13"], catch_exceptions=False)
    assert told.exit_code == 2 and "give 1 to 12" in told.stderr


def test_the_demos_characters_are_those_of_data_samples():
    picture, path = sample_character(10)
    shipped = Image.open(README.parent / path).convert("RGB")
    assert np.array_equal(np.asarray(picture), np.asarray(shipped))
