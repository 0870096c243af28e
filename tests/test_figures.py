"""The committed numbers: of the weights that are shipped, and what the README says of 8 bits."""

import json
import re
from pathlib import Path

import pytest

from snapref.evaluation.runs import Evaluator

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "figures"
REPORTS = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FIGURES.glob("*.json"))}
MEASURED = [name for name, report in REPORTS.items() if {"rows", "attributes"} & report.keys()]


@pytest.fixture(scope="module")
def shipped() -> dict[str, str]:
    return Evaluator().weights


@pytest.mark.parametrize("name", MEASURED)
def test_numbers_are_those_of_the_shipped_weights(name, shipped):
    assert REPORTS[name].get("weights") == shipped, f"figures/{name} is of other weights: make figures"


def test_every_report_of_scores_is_looked_at():
    assert MEASURED == ["controls.json", "evaluation.json", "thinning.json"]


def test_make_figures_measures_as_many_cases_as_were_measured():
    told = re.findall(r"snapref evaluate (\w+) --n (\d+)\n", (ROOT / "Makefile").read_text())
    counts = {"all": REPORTS["evaluation.json"]["attributes"]["n"]}
    counts |= {name: REPORTS[f"{name}.json"]["n"] for name in ("controls", "thinning")}
    assert {name: int(count) for name, count in told} == counts


def test_identity_in_eight_bits_is_within_a_point_of_the_default():
    rows = {row["name"]: row["change"]["mean"] for row in REPORTS["controls.json"]["rows"] if "fp8" in row["name"]}
    assert rows.keys() == {"fp8", "fp8 adapter", "fp8 adapter on an fp8 base"}
    assert all(abs(change) < 0.01 for change in rows.values()), rows
