"""What a set will consist of: catalogs, characters, scenes, pairs and prompts, before anything is drawn."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapref.training.catalog import nano_catalog, open_catalog, place_of, read_catalog
from snapref.training.cleaning import clean, clean_list
from snapref.training.datagen import new_manifest
from snapref.training.held_out import refuse_heldout
from snapref.training.manifest import read_manifest
from snapref.training.pair_rules import Record, make_pairs, training_prompt
from snapref.training.records import drawn_record, read_pictures
from snapref.world import Character, split_of, unknown_tags

NANO, ANIMA = nano_catalog(), open_catalog("anima")


def manifest(catalog=NANO, pictures=36, **changes):
    made = new_manifest("nano", NANO, 36, batch=8)
    changes = {"characters": pictures // 6, **changes}
    return dataclasses.replace(made, model=catalog.name, catalog=catalog, pictures=pictures, **changes)


@pytest.mark.parametrize("catalog", [NANO, ANIMA], ids=lambda c: c.name)
def test_a_seed_gives_the_same_set_and_another_seed_another(catalog):
    first, again, other = manifest(catalog), manifest(catalog), manifest(catalog, seed=1)
    assert first.to_json() == again.to_json() != other.to_json()
    assert [first.picture(n) for n in range(36)] == [again.picture(n) for n in range(36)]
    assert first.people != other.people
    assert sorted(n for numbers in first.batches() for n in numbers) == list(range(36))


@pytest.mark.parametrize("catalog", [NANO, ANIMA], ids=lambda c: c.name)
@pytest.mark.parametrize("styles", [1, 3])
def test_every_attribute_set_is_of_its_split_and_no_stranger_is_in_a_training_set(catalog, styles):
    train = manifest(catalog, styles=styles)
    hashes = {catalog.identity_hash(p.values, style) for p in train.people for style in p.styles}
    assert all(len(set(p.styles)) == styles for p in train.people)
    assert all(catalog.train[0] <= place_of(h) < catalog.train[1] for h in hashes)
    assert len(train.strangers) == 64 and not hashes & set(train.strangers)
    watched = manifest(catalog, split="heldout")
    assert all(catalog.split_of(p.values, p.styles[0]) == "heldout" for p in watched.people)
    assert {catalog.identity_hash(p.values, p.styles[0]) for p in watched.people} <= set(watched.strangers)


def test_nano_splits_as_its_world_does():
    for person in (*manifest().people, *manifest(split="heldout").people):
        assert split_of(Character(**person.values, artist=person.styles[0])) in ("adapter", "heldout", "held_back")
    for person in manifest(styles=3).people:
        assert {split_of(Character(**person.values, artist=style)) for style in person.styles} == {"adapter"}


def test_nano_is_asked_only_for_words_it_knows():
    made = manifest()
    assert not [w for n in range(36) for w in unknown_tags(made.prompt(made.picture(n)))]


def test_anima_escapes_the_parentheses_of_a_style():
    made = manifest(dataclasses.replace(ANIMA, styles=("watercolor (medium)",)))
    assert made.prompt(made.picture(0)).endswith(r"watercolor \(medium\)")


@pytest.mark.parametrize("catalog", [NANO, ANIMA], ids=lambda c: c.name)
@given(seed=st.integers(0, 10_000))
def test_cleaning_leaves_no_contradiction_and_changes_nothing_twice(catalog, seed):
    rng = np.random.default_rng(seed)
    drawn = {name: tags[int(rng.integers(len(tags)))]
             for part in (catalog.appearance, catalog.scene) for name, tags in part.items()}
    kept = clean(drawn, catalog)
    assert clean(kept, catalog) == kept and kept.items() <= drawn.items()
    assert not [pair for pair in catalog.clashes if set(pair) <= set(kept.values())]
    assert not [name for tag in kept.values() for name in catalog.hides.get(tag, ()) if name in kept]


def test_cleaning_of_tags_somebody_else_gave():
    tags = ["red hair", "blue hair", "blue eyes", "closed eyes", "castle in the sky", "looking at viewer"]
    assert clean_list(tags, ANIMA) == ["red hair", "closed eyes", "castle in the sky"]


def test_a_prompt_leaves_out_what_the_reference_supplies():
    record = Record("", "a", "", "@ink", ("red hair", "hoodie", "scar"), ("beach", "smile"))
    prompts = [training_prompt(np.random.default_rng(i), record, "cs", ("1girl",)) for i in range(1000)]
    silent = [p for p in prompts if not set(record.appearance) & set(p.split(", "))]
    assert 0.65 < len(silent) / 1000 < 0.75  # 70 % ± 3.5 standard deviations
    assert all(p.startswith("1girl, ") and ", beach, smile" in p for p in prompts)
    named = [training_prompt(np.random.default_rng(i), record, "char", ("1girl",)) for i in range(50)]
    assert all(p.endswith("@ink") for p in named)


def test_pairs_are_of_one_character_and_their_mode_says_whether_the_style_is_shared():
    made = manifest(pictures=120, characters=12, styles=3)
    records = [drawn_record(made, n) for n in range(120)]
    pairs = make_pairs(records, ("1girl",), 4, seed=0)
    assert pairs == make_pairs(records, ("1girl",), 4, seed=0) != make_pairs(records, ("1girl",), 4, seed=1)
    assert {p.mode for p in pairs} == {"cs", "char"}
    for pair in pairs:
        one, other = records[pair.target], records[pair.reference]
        assert pair.target != pair.reference and one.character == other.character
        assert (one.style == other.style) == (pair.mode == "cs")
        assert pair.mode == "cs" or not pair.prompt or one.style in pair.prompt
    assert len({(p.target, p.reference) for p in pairs}) == len(pairs)
    assert 0.04 < np.mean([not p.reads for p in pairs]) < 0.17
    assert 0.04 < np.mean([not p.prompt for p in pairs]) < 0.17
    watched = make_pairs(records, ("1girl",), 4, seed=0, heldout=True)
    assert all(p.reads and p.prompt and "hair" not in p.prompt for p in watched)
    assert [records[p.target].character for p in pairs] == sorted(
        (records[p.target].character for p in pairs), key=[r.character for r in records].index
    )


def test_a_held_out_character_put_into_a_manifest_is_refused(tmp_path):
    manifest().write(tmp_path)
    path = tmp_path / "manifest.json"
    stored = json.loads(path.read_text())
    stranger = manifest(split="heldout").people[0]
    stored["characters"][2] = {"values": dict(stranger.values), "styles": list(stranger.styles)}
    path.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="character 2 of .* is held out from all training.*; take it out"):
        read_manifest(tmp_path)


def test_a_set_is_not_continued_with_other_settings(tmp_path):
    manifest().write(tmp_path)
    manifest().write(tmp_path)
    assert read_manifest(tmp_path).to_json() == manifest().to_json()
    with pytest.raises(ValueError, match="begun with other settings .*steps 12 there, 9 asked.*another folder"):
        manifest(steps=9).write(tmp_path)


def test_numbers_that_make_no_set_are_refused(tmp_path):
    with pytest.raises(ValueError, match="10 pictures of 6 characters.*at least 12"):
        manifest(pictures=10, characters=6)
    with pytest.raises(ValueError, match="per_character is 1; a pair needs two"):
        new_manifest("nano", NANO, 10, per_character=1)
    with pytest.raises(ValueError, match="the renderer draws nano's world"):
        new_manifest("anima", ANIMA, 10)
    with pytest.raises(ValueError, match="styles is 9; the catalog nano has 4"):
        manifest(styles=9)
    narrow = dataclasses.replace(NANO, appearance={name: tags[:1] for name, tags in NANO.appearance.items()})
    with pytest.raises(ValueError, match="only .* different characters"):
        manifest(narrow).people  # noqa: B018
    path = tmp_path / "catalog.json"
    path.write_text(json.dumps({"name": "mine"}))
    with pytest.raises(ValueError, match="lacks prefix, count"):
        read_catalog(path)


def test_the_law_of_hashes_refuses_a_stranger_that_no_list_names():
    stranger = manifest(split="heldout").people[0]
    known = NANO.identity_hash(stranger.values, stranger.styles[0])
    refuse_heldout([known], (0.0, 0.0), [], "here")
    with pytest.raises(ValueError, match=f"here holds 1 held-out characters .{known[:12]}"):
        refuse_heldout([known], NANO.heldout, [], "here")
    with pytest.raises(ValueError, match="which no training may see"):
        refuse_heldout([known], (0.0, 0.0), [known], "here")


def test_ones_own_pictures_are_listed_in_a_file(tmp_path):
    from PIL import Image

    Image.new("RGB", (80, 96)).save(tmp_path / "a.png")
    tags = ["1girl", "red hair", "beach", "sketch"]
    lines = [{"file": "a.png", "character": f"c{i}", "style": "sketch", "tags": tags}
             for i in range(40)]
    (tmp_path / "pictures.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = {split: read_pictures(tmp_path, ANIMA, split).records for split in ("train", "heldout")}
    assert len(found["train"]) + len(found["heldout"]) == 40
    assert not {r.character for r in found["train"]} & {r.character for r in found["heldout"]}
    one = found["train"][0]
    assert (one.appearance, one.scene, one.style, one.size) == (("red hair",), ("beach",), "sketch", (96, 80))
    (tmp_path / "pictures.jsonl").write_text('{"file": "lost.png", "character": "a", "tags": []}')
    with pytest.raises(ValueError, match="line 1 of .*pictures.jsonl cannot be used"):
        read_pictures(tmp_path, ANIMA)
