"""Numbers out of range, files that are torn or changed, pictures that went: each one sentence that says what to do."""

import json
import re

import pytest
from data_case import CATALOG, prepared, relisted, rendered
from PIL import ExifTags, Image
from typer.testing import CliRunner

import snapref
from snapref.cli import app
from snapref.reference.picture import load_picture
from snapref.training import datagen
from snapref.training.catalog import FOLDER
from snapref.training.manifest import read_manifest
from snapref.training.own_pictures import looked_at
from snapref.training.prepare import new_plan, pixels_at
from snapref.training.prepared import PreparedPairs
from snapref.training.records import read_pictures


@pytest.fixture(scope="module")
def pipe():
    return snapref.load("nano", adapter=False, device="cpu")


@pytest.fixture(scope="module")
def ready(pipe, tmp_path_factory):
    """A drawn set and what was prepared of it."""
    root = tmp_path_factory.mktemp("ready")
    rendered(root / "pictures", 8, per_character=4)
    prepared(root / "pictures", root / "out", pipe)
    return root


def refused(*words) -> str:
    result = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("snapref: ") and result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize("words, sentence", [
    (["--per-character", 0], "per_character is 0; a pair needs two"),
    (["--batch", 0], "batch is 0; it must be a whole number from 1 to 4096"),
    (["--steps", 0], "steps is 0; it must be a whole number from 1 to 1000"),
    (["--guidance", "nan"], "guidance is nan; it must be a number from 0 to 100"),
    (["--seed", -1], "seed is -1; it must be a whole number from 0 to"),
    (["--styles", 0], "styles is 0; it must be a whole number from 1"),
    (["--pictures", 0], "pictures is 0; it must be a whole number from 2"),
    (["--model", "foo"], "there is no model 'foo'; take nano or anima"),
    (["--model", "anima"], "the renderer draws nano's world, no tags of anima"),
    (["--catalog", FOLDER / "anima.json"], "the renderer draws nano's world, no tags of anima ("),
    (["--catalog", "nowhere.json"], "nowhere.json does not exist; give a catalog in JSON, see catalogs/anima.json"),
])
def test_a_set_that_cannot_be_drawn(words, sentence, tmp_path):
    assert sentence in refused("datagen", "--renderer", "--out", tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words, sentence", [
    (["--each", 0], "each is 0; it must be a whole number from 1 to 1000"),
    (["--seed", -1], "seed is -1; it must be a whole number from 0 to"),
    (["--model", "foo"], "there is no model 'foo'; take nano or anima"),
    (["--model", "anima"], "was drawn for nano, not for anima; prepare it with --model nano, or draw a set with"),
])
def test_a_set_that_cannot_be_prepared(words, sentence, ready, tmp_path):
    assert sentence in refused("prepare", ready / "pictures", "--out", tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


def test_ones_own_pictures_are_of_no_model(tmp_path):
    rendered(tmp_path, 8, per_character=4)
    assert read_pictures(relisted(tmp_path), CATALOG, model="anima").records


def changed(path, change) -> None:
    """Rewrite a JSON file by what `change` makes of it: bytes of a cut file, or another object."""
    text = path.read_text()
    stored = json.loads(text)
    path.write_text(text[: len(text) // 2] if change is CUT else json.dumps(new if (new := change(stored)) else stored))


def without(name, *parts):
    return lambda stored: inner(stored, parts).pop(name) and None


def with_(*parts, **values):
    return lambda stored: inner(stored, parts).update(values)


def inner(stored, parts):
    return inner(stored[parts[0]], parts[1:]) if parts else stored


CUT = object()


@pytest.mark.parametrize("change, sentence", [
    (CUT, r"manifest.json \([\d,]+ bytes\) is torn or no JSON \(.*\); remove it and run snapref datagen"),
    (lambda stored: [1], r"manifest.json is \[1\], no JSON object; remove it and run snapref datagen again with"),
    (without("settings"), "manifest.json lacks settings; draw the set anew"),
    (with_(more=1), "manifest.json has the unknown more; draw"),
    (with_("settings", more=1), "settings of .*manifest.json has the unknown more; draw"),
    (without("steps", "settings"), "settings of .*manifest.json lacks steps; draw"),
    (with_("settings", pictures="x"), r"manifest.json cannot be used \(pictures is 'x'; it must be a whole .*; draw"),
    (with_("settings", pictures=[]), r"manifest.json cannot be used \(pictures is \[\]; it must be a whole number"),
    (with_("settings", split="all"), r"split is 'all'; it must be one of train, heldout"),
    (with_(characters=["x"]), "character 0 of .*manifest.json is 'x', no JSON object"),
    (without("scene", "catalog"), "the catalog in .*manifest.json lacks scene; draw the set anew"),
    (without("framing", "catalog", "scene"), "the catalog in .*manifest.json lacks framing in scene; draw"),
    (with_("settings", seed=4), "manifest.json was changed by hand; draw the set anew"),
])
def test_a_manifest_that_is_none(change, sentence, tmp_path):
    made = datagen.new_manifest("nano", CATALOG, 8, per_character=4)
    made.write(tmp_path)
    changed(tmp_path / "manifest.json", change)
    with pytest.raises(ValueError, match=sentence):
        read_manifest(tmp_path)
    with pytest.raises(ValueError, match="remove it and run snapref datagen|was begun with other settings"):
        made.write(tmp_path)


@pytest.mark.parametrize("change, sentence", [
    (CUT, r"mine.json \([\d,]+ bytes\) is torn or no JSON \(.*\); give a catalog in JSON, see catalogs/anima.json"),
    (without("styles"), "the catalog .*mine.json lacks styles; see catalogs/anima.json"),
    (without("framing", "scene"), "the catalog .*mine.json lacks framing in scene; see"),
    (with_("scene", pose=[]), "has scene .*; it must be attributes with at least one tag each"),
    (with_(styles="sketch"), "has styles 'sketch'; it must be a list of at least one tag"),
    (with_(sizes={"big": 1}), r"has sizes {'big': 1}; it must be at least one \"HEIGHTxWIDTH\""),
    (with_(per_character=1), "has per_character 1; it must be a whole number of at least 2"),
    (with_(heldout=[0.2, 0.1]), r"has heldout \[0.2, 0.1\]; it must be \[from, below\] with 0 <= from < below <= 1"),
    (with_(heldout=[0.0, 0.2]), r"holds out \[0.0, 0.2\) and trains on \[0.05, 1.0\); the two must not overlap"),
    (with_(identity=["hair"]), "names in identity hair, no attribute of appearance"),
])
def test_a_catalog_that_is_none(change, sentence, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text((FOLDER / "anima.json").read_text())
    changed(path, change)
    assert re.search(sentence, refused("datagen", "--renderer", "--out", tmp_path / "out", "--catalog", path))


@pytest.mark.parametrize("change, sentence", [
    (CUT, r"index.json \([\d,]+ bytes\) is torn or no JSON \(.*\); remove it and run snapref prepare again"),
    (lambda stored: [1], r"index.json is \[1\], no JSON object; remove it and run snapref prepare again"),
    (without("pairs"), "index.json lacks pairs; run snapref prepare again"),
    (with_(latents="x"), "index.json has latents 'x', not a list; run snapref prepare again"),
    (with_(latents=[{"file": "x"}]), "latents 0 of .*index.json lacks first, count, bytes, sha256; run"),
    (lambda stored: {"format": "snapref_merged/1", "sets": []}, "index.json names no sets; run snapref merge again"),
    (lambda stored: {"format": "snapref_merged/1", "sets": [{"folder": "a", "weight": -1}]},
     "the weight of a in .*index.json is -1; it must be a positive number: run snapref merge again"),
])
def test_an_index_that_is_none(change, sentence, ready):
    path = ready / "out/index.json"
    text = path.read_text()
    try:
        changed(path, change)
        with pytest.raises(ValueError, match=sentence):
            PreparedPairs(ready / "out")
    finally:
        path.write_text(text)


def test_a_torn_plan(ready, pipe, tmp_path):
    plan = new_plan(read_pictures(ready / "pictures", CATALOG), ready / "pictures", pipe.config)
    plan.write(tmp_path, "a print")
    changed(tmp_path / "plan.json", CUT)
    with pytest.raises(ValueError, match=r"plan.json \(.*\) is torn .*; remove the folder .* and prepare the pictures"):
        plan.write(tmp_path, "a print")


def test_a_picture_that_was_edited_is_not_gone_on_with(ready, pipe, tmp_path):
    def plan():
        return new_plan(read_pictures(tmp_path / "own", CATALOG), tmp_path / "own", pipe.config)

    rendered(tmp_path / "own", 8, per_character=4)
    plan().write(tmp_path / "out", "a print")
    plan().write(tmp_path / "out", "a print")
    path = sorted((tmp_path / "own").rglob("*.png"))[3]
    Image.new("RGB", Image.open(path).size, "red").save(path)
    with pytest.raises(ValueError, match=r"with another content of 1 pictures \(pictures/000000/0000003.png\); give"):
        plan().write(tmp_path / "out", "a print")


@pytest.mark.parametrize("base", [False, True], ids=["renderer", "base"])
def test_a_picture_that_went_is_named_and_drawn_again(base, pipe, tmp_path):
    options = {"pipe": pipe, "steps": 1} if base else {}
    made = datagen.new_manifest("nano", CATALOG, 8, per_character=4, batch=4, **options)
    made.write(tmp_path)
    draw = {"pipe": pipe} if base else {}
    assert datagen.datagen(made, tmp_path, quiet=True, **draw) == 8
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*.png")}
    gone, empty = sorted(before)[1], sorted(before)[6]
    gone.unlink()
    empty.write_bytes(b"")  # as a power cut leaves it
    with pytest.raises(ValueError, match=r"2 of the 8 pictures of .* are not there \(.*/0000001.png, …\); run"):
        read_pictures(tmp_path, CATALOG)
    assert datagen.datagen(made, tmp_path, quiet=True, **draw) == 2 and not datagen.missing(made, tmp_path)
    for path, (content, time) in before.items():
        assert path.read_bytes() == content and (path in (gone, empty) or path.stat().st_mtime_ns == time)
    assert not [*(tmp_path / "pictures").glob(".*")]


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_of_a_picture_is_the_one_it_is_shown_in(ending, orientation, tmp_path):
    path, exif = tmp_path / f"a.{ending}", Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    Image.new("RGB", (64, 40)).save(path, exif=exif)
    upright = load_picture(path)
    size = (64, 40) if orientation > 4 else (40, 64)
    assert looked_at(path)[0] == (upright.height, upright.width) == size
    assert pixels_at(path, size).shape == (1, 3, *size)


@pytest.mark.parametrize("line, sentence", [
    ({"file": "lost.png", "character": "a", "tags": []}, r"line 1 of .* \(lost.png is not there\); put the pic"),
    ({"file": "a.png", "tags": []}, r"\(it lacks 'character'\); it must be a JSON object with file, character"),
    ([], "line 1 of .*pictures.jsonl cannot be used"),
    ("x", "line 1 of .*pictures.jsonl cannot be used"),
])
def test_a_line_that_cannot_be_used(line, sentence, tmp_path):
    Image.new("RGB", (80, 96)).save(tmp_path / "a.png")
    (tmp_path / "pictures.jsonl").write_text(json.dumps(line))
    with pytest.raises(ValueError, match=sentence):
        read_pictures(tmp_path, CATALOG)
