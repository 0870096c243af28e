"""Ways of choosing a reference's tokens, and their curve."""

import json
from pathlib import Path

import pytest
import torch
from evaluation_case import roomy_pipeline
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import snapref
from snapref.cli import app
from snapref.evaluation import runs
from snapref.evaluation.cases import draw_cases
from snapref.evaluation.thinning import (
    WAYS,
    Way,
    differing,
    for_all_heads,
    grid_of,
    longest,
    most,
    norm,
    read_amounts,
    spread,
    thin_by,
    thinning_report,
)
from snapref.reference.thin import longest_and_apart
from snapref.training.tagger import Tagger


@given(st.integers(1, 9), st.integers(1, 9), st.data())
@settings(max_examples=60, deadline=None)
def test_every_way_gives_as_many_distinct_tokens_as_asked(rows, columns, data):
    tokens = rows * columns
    count = data.draw(st.integers(1, tokens))
    generator = torch.Generator().manual_seed(tokens)
    layers = [tuple(torch.randn(3, tokens, 4, generator=generator) for _ in "kv") for _ in range(2)]
    choices = (spread, norm, grid_of(rows, columns), most(layers[0][0][0, :, 0]))
    for how in (longest_and_apart, longest, differing, *map(for_all_heads, choices)):
        found = how(layers, count)
        assert len(found) == 2 and all(chosen.shape == (3, count) for chosen in found)
        for chosen in torch.cat([*found]).tolist():
            assert len({*chosen}) == count and {*chosen} <= {*range(tokens)}


def test_a_quarter_of_a_grid_is_every_other_row_and_column():
    chosen = grid_of(4, 8)(torch.zeros(32, 1), 8).tolist()
    assert chosen == [y * 8 + x for y in (1, 3) for x in (1, 3, 5, 7)]


def test_most_and_norm_take_the_largest():
    described = torch.tensor([[1.0], [-3.0], [2.0]])
    assert sorted(norm(described, 2).tolist()) == [1, 2]
    assert sorted(most(described[:, 0])(described, 2).tolist()) == [0, 2]


def test_what_is_read_is_a_share_of_each_token():
    pipe, case = roomy_pipeline(), draw_cases(1)[0]
    cache = pipe.encode(case.reference)
    amounts = read_amounts(pipe, case, cache)
    assert amounts.shape == cache.tokens and (amounts > 0).all() and 0 < amounts.sum() < 1


def test_weight_given_back_is_that_of_all_tokens():
    pipe, case = roomy_pipeline(), draw_cases(1)[0]
    whole = pipe.encode(case.reference)
    way = Way("spread", lambda *given: for_all_heads(spread), returned=True)
    thin = thin_by(pipe, way, 0.25, case, whole)
    assert thin.weights[0] * thin.tokens[0] == pytest.approx(whole.tokens[0])
    assert thin_by(pipe, way, 1, case, whole) is whole


def test_report_and_command(monkeypatch, tmp_path):
    monkeypatch.setattr(snapref, "load", lambda *names, **options: roomy_pipeline())
    tagger = Tagger().eval()
    monkeypatch.setattr(runs, "load_tagger", lambda folder: tagger)
    monkeypatch.setattr("snapref.evaluation.thinning.SHARES", (1.0, 0.5))
    monkeypatch.chdir(tmp_path)
    Path("figures").mkdir()
    report = thinning_report(roomy_pipeline(), tagger, draw_cases(2), WAYS[:2], (1.0, 0.5), steps=1, quiet=True)
    whole, half = report["rows"][:2]
    assert [row["way"] for row in report["rows"]] == ["whole", *(way.name for way in WAYS[:2])]
    assert report["times"].keys() == {"1", "0.5"} and min(report["times"].values()) > 0
    assert half["bytes"] * 2 == whole["bytes"] and whole["lost"]["mean"] == 0
    assert half["lost"]["mean"] == pytest.approx(whole["identity"]["mean"] - half["identity"]["mean"], abs=1e-3)
    words = ["evaluate", "thinning", "--n", "1", "--steps", "1", "--json"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert json.loads(Path("figures/thinning.json").read_text()) == told and Path("figures/thinning.png").exists()
    assert told["best"] in {way.name for way in WAYS} and told["n"] == 1
