"""Splits, biases, colours and the shipped reference pictures."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from snapref.world import (
    BIASED,
    GROUNDS,
    HELD_BACK,
    IDENTITY,
    PATTERNS,
    UNBIASED,
    Biases,
    character,
    delta_e,
    held_back,
    parse,
    sample,
    sample_pair,
    split_of,
    unknown_tags,
)
from snapref.world.palette import EYES, HAIR, OUTFIT, tinted, to_rgb
from snapref.world.samples import SCENE_PROMPTS, references, write_samples

SHIPPED = Path(__file__).parents[1] / "data_samples"


def share_is(hits: int, n: int, expected: float) -> bool:
    """Within four standard errors of a binomial share."""
    return abs(hits / n - expected) < 4 * (expected * (1 - expected) / n) ** 0.5


@pytest.mark.parametrize("split", ["base", "adapter", "heldout", "held_back"])
def test_a_split_gives_only_its_own(split):
    for index in range(200):
        who = character((1, index), split)
        assert split_of(who) == split
        assert bool(held_back(who)) == (split == "held_back") or split == "base"


def test_a_split_is_the_tags_alone():
    for index in range(50):
        who = character((2, index), "any")
        untagged = replace(who, hair_hue=-1.0, outfit_hue=1.0, eye_hue=0.5, pattern=PATTERNS[index % 4])
        assert split_of(who) == split_of(untagged)


def test_shares_of_the_splits():
    found = [split_of(character((3, i), "any")) for i in range(3000)]
    assert share_is(sum(s in ("heldout", "held_back") for s in found), 3000, 0.15)
    free = (6 / 7) * (6 / 7) * (3 / 4)  # characters without a held-back value
    assert share_is(found.count("adapter"), 3000, 0.35 * free)


def test_training_never_meets_a_stranger():
    """Not by the swimsuit bias nor as one of two characters either."""
    for index in range(1500):
        assert split_of(sample((4, index)).people[0]) in ("base", "adapter")
        assert all(split_of(who) in ("base", "adapter") for who in sample_pair((4, index)).people)
        for split in ("adapter", "heldout"):
            assert split_of(sample((4, index), split).people[0]) == split


def test_fixed_fields_and_impossible_ones():
    assert character(1, "adapter", hair_colour="red hair").hair_colour == "red hair"
    with pytest.raises(ValueError, match="no character of split 'adapter' has"):
        character(1, "adapter", artist=HELD_BACK["artist"])
    with pytest.raises(ValueError, match="split 'test' is unknown"):
        character(1, "test")


def test_dark_skin_share():
    assert share_is(sum(character((5, i)).skin == "dark skin" for i in range(3000)), 3000, 0.08)
    even = [character((5, i), biases=UNBIASED).skin for i in range(2000)]
    assert share_is(even.count("dark skin"), 2000, 0.25)


def bias_counts(biases: Biases, n: int = 6000):
    floors, named, swims = [], [], []
    for index in range(n):
        example = sample((6, index), biases=biases)
        said = parse(example.prompt)
        if example.scene.outdoors and example.scene.framing == "full body":
            (named if "ground" in said else floors).append(example.scene.white_floor)
        if example.scene.background == "beach" and "outfit" not in said:
            swims.append(example.people[0].outfit == "swimsuit")
        if "ground" in said:
            assert said["ground"] == GROUNDS[example.scene.background]
        if not example.scene.outdoors or example.scene.framing != "full body":
            assert not example.scene.white_floor
    return floors, named, swims


def test_floor_and_swimsuit_shares():
    floors, named, swims = bias_counts(BIASED)
    assert share_is(sum(floors), len(floors), 0.30) and len(floors) > 1000
    assert named and not any(named)
    assert share_is(sum(swims), len(swims), 0.30) and len(swims) > 150


def test_biases_can_be_switched_off():
    floors, named, swims = bias_counts(UNBIASED, 3000)
    assert not any(floors) and not any(named)
    assert share_is(sum(swims), len(swims), 1 / 7)


def test_a_given_person_keeps_her_clothes():
    who = character(3, outfit="hoodie")
    assert all(sample((7, i), person=who).people == (who,) for i in range(200))


def test_captions_leave_things_out():
    said = [parse(sample((8, i)).prompt) for i in range(2000)]
    for name in IDENTITY:
        present = sum(name in s for s in said) / len(said)
        assert 0.45 < present < 0.92, name
    assert 0.05 < sum(not set(s) & set(HAIR_AND_OUTFIT) for s in said) / len(said) < 0.25


HAIR_AND_OUTFIT = ("hair_colour", "hair_style", "outfit", "outfit_colour", "eye_colour", "skin")


@pytest.mark.parametrize("table", [HAIR, OUTFIT, EYES], ids=["hair", "outfit", "eyes"])
def test_a_turned_hue_keeps_its_name(table):
    """The ends of a tag's hue range are well apart, yet nearer to their own tag than to any other's range."""
    turns = np.linspace(-1, 1, 7)
    colours = {tag: np.array([[255 * c for c in to_rgb(tinted(entry, t))] for t in turns])
               for tag, entry in table.items()}
    for tag, own in colours.items():
        assert delta_e(own[0], own[-1]) > 8
        for other in set(colours) - {tag}:
            strangers = delta_e(own[:, None], colours[other][None])
            assert strangers.min() > 18, (tag, other)


def test_delta_e_knows_the_textbook():
    assert delta_e((255, 255, 255), (0, 0, 0)) == pytest.approx(100, abs=0.01)
    assert delta_e((255, 0, 0), (0, 255, 0)) == pytest.approx(170.6, abs=0.2)
    assert delta_e((10, 20, 30), (10, 20, 30)) == 0


def test_references_are_strangers():
    shipped = references()
    assert len(shipped) == 12 and all(split_of(r.person) == "heldout" for r in shipped)
    for name in ("hair_style", "outfit", "artist"):
        assert len({getattr(r.person, name) for r in shipped}) >= 3
    assert all(unknown_tags(text) == [] for text in SCENE_PROMPTS)


def test_shipped_files_are_what_the_readme_says():
    text = (SHIPPED / "README.md").read_text(encoding="utf-8")
    assert "CC0" in text
    for reference in references():
        path = SHIPPED / reference.name
        assert f"| {path.name} | `{hashlib.sha256(path.read_bytes()).hexdigest()}` |" in text
        drawn, kept = reference.picture().astype(int), np.asarray(Image.open(path)).astype(int)
        assert kept.shape == (128, 96, 3) and np.abs(drawn - kept).max() <= 8  # versions round a little
        assert path.name in (SHIPPED / "prompts.txt").read_text(encoding="utf-8")


def test_writing_samples_anew(tmp_path):
    written = write_samples(tmp_path)
    assert sorted(p.name for p in tmp_path.glob("*.png")) == sorted(p.name for p in written)
    assert {p.name for p in written} == {p.name for p in SHIPPED.glob("*.png")}
