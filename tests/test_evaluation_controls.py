"""The table of controls: every row is drawn from settings that exist, scored, timed and put into a table."""

import dataclasses

import numpy as np
import pytest
import torch
from evaluation_case import roomy_pipeline

from snapref.anima.linear import Float8Linear
from snapref.evaluation.cases import draw_cases
from snapref.evaluation.control_tables import control_table, draw_controls
from snapref.evaluation.controls import CONTROLS, Control, asked, control_report, own, saturation
from snapref.evaluation.eight_bits import in_eight_bits
from snapref.evaluation.two_characters import draw_pair_cases, kept, two_report
from snapref.sampling.settings import Settings
from snapref.training.tagger import load_tagger


def test_every_row_is_a_setting():
    for control in CONTROLS:
        Settings(**control.settings)  # raises for a field or a value that does not exist
    assert len({(c.group, c.name) for c in CONTROLS}) == len(CONTROLS)
    assert CONTROLS[0].pictures is None and CONTROLS[1].settings == {}  # what all others are compared with


@pytest.fixture(scope="module")
def report():
    rows = (CONTROLS[0], CONTROLS[1], Control("window", "half", {"ref_end": 0.5}, own),
            Control("pictures", "two", {}, lambda case: [case.reference, case.wrong_reference], (0.5, 1.0)),
            Control("mode", "char", {"mode": "char"}, own, other_style=True),
            Control("file", "fp8", {}, own, eight_bits="adapter"),
            Control("file", "fp8, base too", {}, own, eight_bits="adapter and base"))  # fmt: skip
    pipe = roomy_pipeline()
    found = control_report(pipe, load_tagger(None), draw_cases(2), rows, steps=1, quiet=True)
    return found | {"two_characters": two_report(pipe, 1, steps=1)}


def test_report_and_table(report):
    assert [row["name"] for row in report["rows"]] == [
        "no reference", "default", "half", "two", "char", "fp8", "fp8, base too"
    ]  # fmt: skip
    assert report["rows"][0]["change"] is None and report["rows"][1]["change"]["mean"] == 0
    for row in report["rows"]:
        assert all(0 <= row[key]["mean"] <= 1 for key in ("identity", "style", "scene", "clipped"))
        assert (row["time"] is None) == (row["group"] == "plain") and row["identity"]["n"] == 2
    table = control_table(report)
    assert table.count("\n| ") >= 10 and "with regions" in table and "n = 2 held-out characters" in table
    assert table.count("against the default, case by case") == 2
    assert draw_controls(report).axes[0].get_yticklabels()[1].get_text() == "reference: default"


def test_another_style_is_named_and_scored():
    case = draw_cases(1)[0]
    control = Control("mode", "char", {"mode": "char"}, own, other_style=True)
    words, scored = asked(case, control, np.random.default_rng(0))
    assert scored.person.artist != case.person.artist and scored.person.artist in words
    assert dataclasses.replace(scored.person, artist=case.person.artist) == case.person


def test_grey_is_not_saturated():
    grey, red = (np.full((1, 8, 8, 3), colour, dtype=np.uint8) for colour in ((90, 90, 90), (200, 30, 30)))
    assert saturation(grey)[0] < 0.1 < 30 < saturation(red)[0]


def test_a_true_pair_keeps_its_colours_and_a_swapped_one_does_not():
    for case in draw_pair_cases(3):
        assert kept(case.picture, case) == 1
        swapped = case.picture.copy()
        for part in ("hair", "outfit"):
            colours = [case.colour(case.picture, side, part) for side in (0, 1)]
            for side in (0, 1):
                swapped[case.regions[side][part]] = colours[1 - side]
        assert kept(swapped, case) == 0


@torch.no_grad()
def test_eight_bits_are_near_the_whole_and_not_it():
    pipe = roomy_pipeline()
    adapter, both = in_eight_bits(pipe), in_eight_bits(pipe, base=True)
    assert adapter.model is pipe.model and any(isinstance(m, Float8Linear) for m in both.model.modules())
    cases, latents = draw_cases(1), []
    for one in (pipe, adapter, both):
        latents.append(one("1girl, beach", cases[0].reference, steps=1, size=(64, 64), quiet=True).latents)
    apart = [float((x - latents[0]).norm() / latents[0].norm()) for x in latents[1:]]
    assert 0 < apart[0] < 0.05 and apart[0] < apart[1] < 0.2
