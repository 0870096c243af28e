"""Held-out characters cannot be trained on, whatever a list of pictures or a catalog says of them."""

import dataclasses
import json

import pytest
from data_case import CATALOG, prepared, relisted, rendered
from PIL import Image

import snapref
from snapref.training.datagen import new_manifest
from snapref.training.held_out import WORLD, kept_back, world_identity, world_split
from snapref.training.prepared import PreparedPairs
from snapref.training.records import read_pictures
from snapref.world import character, split_of

LAW = {"adapter": "train", "heldout": "heldout", "held_back": "heldout", "base": "other"}


def test_the_law_is_the_worlds_and_knows_a_set_by_its_tags():
    for seed in range(200):
        person = character(seed, "any")
        tags = [tag for tag in person.identity if tag]
        assert world_split(reversed(tags)) == world_split([f" {tag.upper()} " for tag in tags]) == LAW[split_of(person)]
        assert world_identity(tags) == WORLD.identity_hash(vars(person), person.artist)
        assert world_split(tags[1:]) is None and not world_identity(["sketch", "red hair"])


def without_notes(folder):
    for path in folder.rglob("*.png"):
        Image.open(path).convert("RGB").save(path)


@pytest.mark.parametrize("plain, changes", [
    (True, {}),  # only the tags tell, of which closed eyes hide some
    (False, {"style": ""}),
    (False, {"tags": ["1girl"]}),
], ids=["tags", "no style", "no tags"])
def test_a_held_out_set_listed_as_ones_own_is_refused(tmp_path, plain, changes):
    made = rendered(tmp_path, split="heldout")
    hashes = {made.picture(n).identity for n in range(24)}
    relisted(tmp_path, **changes)
    if plain:
        without_notes(tmp_path)
    with pytest.raises(ValueError, match=r"pictures.jsonl lists 24 pictures of characters that no training may see .*: "
                                         "held out from all training; .*take them out, or prepare .* --heldout"):
        read_pictures(tmp_path, CATALOG)
    open_law = dataclasses.replace(CATALOG, heldout=(0.5, 0.51), kept_back={})
    with pytest.raises(ValueError, match="24 pictures of characters that no training may see"):
        read_pictures(tmp_path, open_law)
    watched = read_pictures(tmp_path, CATALOG, "heldout").records
    assert len(watched) == 24 and {record.identity for record in watched} == hashes


def test_a_training_set_listed_as_ones_own_keeps_its_hashes_and_refuses_what_is_kept_back(tmp_path):
    made = rendered(tmp_path)
    lines = relisted(tmp_path) / "pictures.jsonl"
    hashes = {made.picture(n).identity for n in range(24)}
    assert {record.identity for record in read_pictures(tmp_path, CATALOG).records} == hashes
    with pytest.raises(ValueError, match="none of the 24 pictures of .*pictures.jsonl is held out"):
        read_pictures(tmp_path, CATALOG, "heldout")
    person = next(p for seed in range(999) if split_of(p := character(seed, "base", outfit="overalls")) == "base")
    assert kept_back(vars(person)) == ["overalls"]
    first = json.loads(lines.read_text().splitlines()[0])
    first |= {"tags": [tag for tag in person.identity if tag], "character": "new", "style": ""}
    lines.write_text(json.dumps(first))
    with pytest.raises(ValueError, match=r"1 pictures of characters that no training may see .*0000000.png: overalls"):
        read_pictures(tmp_path, CATALOG)


def test_held_out_pictures_of_ones_own_open_only_to_be_watched(tmp_path):
    rendered(tmp_path / "pictures", split="heldout")
    pipe = snapref.load("nano", adapter=False, device="cpu")
    prepared(relisted(tmp_path / "pictures"), tmp_path / "out", pipe, "heldout")
    path = tmp_path / "out/index.json"
    index = json.loads(path.read_text())
    for changes in ({}, {"heldout": {"named": [], "range": [0.5, 0.51]}}):
        path.write_text(json.dumps({**index, **changes}))
        with pytest.raises(ValueError, match="held-out characters .* which no training may see"):
            PreparedPairs(tmp_path / "out")
    del index["world"]  # as sets were written before; all of nano's were the drawn world's
    path.write_text(json.dumps({**index, "heldout": {"named": [], "range": [0.5, 0.51]}}))
    with pytest.raises(ValueError, match="held-out characters"):
        PreparedPairs(tmp_path / "out")
    assert len(PreparedPairs(tmp_path / "out", allow=True))


def renamed(catalog):
    names = {"hair_colour": "hair"}
    shown = {names.get(name, name): tags for name, tags in catalog.appearance.items()}
    return {"appearance": shown, "identity": tuple(names.get(name, name) for name in reversed(catalog.identity))}


@pytest.mark.parametrize("split, changes", [
    ("train", {"heldout": (0.5, 0.6), "train": (0.0, 0.5)}),
    ("heldout", {"heldout": (0.5, 0.6), "train": (0.0, 0.5)}),
    ("train", {"heldout": (0.1, 0.15), "train": (0.0, 0.1)}),
    ("train", {"kept_back": {}}),
    ("train", {"identity": ("artist", *CATALOG.identity[:-1])}),
    ("train", renamed(CATALOG)),
    ("heldout", renamed(CATALOG)),
])
def test_a_catalog_of_the_drawn_world_cannot_move_its_characters(split, changes):
    catalog = dataclasses.replace(CATALOG, name="mine", **changes)
    made = dataclasses.replace(new_manifest("nano", CATALOG, 240, per_character=2), catalog=catalog, split=split)
    with pytest.raises(ValueError, match=r"character \d+ of the catalog mine \(.*\) is .* in the drawn world, the set "
                                         r"is .*; give it the drawn world's own heldout \[0.0, 0.15\]"):
        made.people  # noqa: B018


def test_a_shorter_catalog_of_the_drawn_world_and_another_worlds_are_taken():
    shorter = {**CATALOG.appearance, "hair_colour": ("red hair", "blue hair")}
    for catalog in (dataclasses.replace(CATALOG, name="mine", appearance=shorter),
                    dataclasses.replace(CATALOG, name="mine", styles=("sketch", "oil"), heldout=(0.5, 0.6))):
        assert dataclasses.replace(new_manifest("nano", CATALOG, 36), catalog=catalog).people
