"""What the held-out cases promise: strangers, other places, and the same for the same seed."""

from dataclasses import replace

import numpy as np
import pytest

from snapref.evaluation.cases import SIZE, Case, draw_cases, turned
from snapref.world import HELD_BACK, IDENTITY, Character, Scene, held_back, parse, split_of

CASES = draw_cases(24)
ANN = Character(
    "pink hair", "bob cut", "blue eyes", "fair skin", "school uniform", "red outfit", "scarf", None,
    "@flatline",
)


def case_of(**where) -> Case:
    return Case(ANN, Scene(**where), Scene(), replace(ANN, hair_colour="blue hair"), Scene())


def test_everybody_is_held_out_and_nobody_is_her_own_stranger():
    for case in CASES:
        assert split_of(case.person) == split_of(case.stranger) == "heldout"
        assert case.person.identity != case.stranger.identity


def test_held_back_cases_have_something_no_adapter_knows():
    assert set(HELD_BACK) == {"hair_style", "outfit", "artist"}
    for case in draw_cases(8, split="held_back"):
        assert held_back(case.person) and held_back(case.stranger)


def test_references_show_the_character_elsewhere():
    for case in CASES:
        for where in (case.shown_in, case.stranger_in):
            assert where.background != case.scene.background
            assert where.pose == "standing" and where.expression == "smile" and where.framing != "portrait"


def test_the_same_seed_gives_the_same_cases_whatever_the_count():
    assert draw_cases(5) == CASES[:5] and draw_cases(2, seed=1) != CASES[:2]
    with pytest.raises(ValueError, match="n is 0; at least 1"):
        draw_cases(0)


def test_prompts_name_all_or_only_the_scene():
    for case in CASES:
        everything, scene = parse(case.prompt("all_tags")), parse(case.prompt("scene_only"))
        assert set(scene) == {"count", "background", "pose", "expression", "framing"}
        assert scene.items() <= everything.items()
        assert all(everything.get(name) == getattr(case.person, name) for name in IDENTITY)
    with pytest.raises(ValueError, match="prompt 'none' is unknown"):
        CASES[0].prompt("none")


def test_pictures_are_portraits_and_all_differ():
    case = CASES[0]
    pictures = [case.picture, case.reference, case.wrong_reference, case.twin_reference]
    assert all(picture.shape == (*SIZE, 3) and picture.dtype == np.uint8 for picture in pictures)
    assert len({picture.tobytes() for picture in pictures}) == 4


def test_a_twin_has_the_same_tags_and_other_hues():
    assert [turned(hue) for hue in (0.25, 0.0, -0.25, 1.0, -1.0)] == [-0.75, -1.0, 0.75, 0.0, 0.0]
    case = CASES[0]
    changed = np.abs(case.twin_reference.astype(int) - case.reference).max(axis=-1) > 0
    assert 0.02 < changed.mean() < 0.6  # her hair and outfit, not the place


def test_what_cannot_be_seen_is_not_asked_for():
    assert "eye_colour" not in case_of(expression="closed eyes").visible
    assert "outfit_colour" not in case_of(framing="portrait").visible  # the scarf is over it
    assert {"eye_colour", "outfit_colour"} <= set(case_of(framing="full body").visible)
