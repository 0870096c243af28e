"""Moved memories are what reading elsewhere gives; losses are the model's; the slider turns its pages."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from pipeline_case import TINY_ADAPTER, tiny_pipeline
from reference_case import TINY, context, latent, tiny_adapter, tiny_model

from snapref.anima.rope import apply_rope, rope_angles
from snapref.config import NANO
from snapref.lab import place_runs, place_view, plots
from snapref.reference.encode import encode_reference
from snapref.rivals import draw, read_at

DIT = NANO.dit
BY = (1.0, -7.5, 3.25)
ROWS = (0, 20)


@cache
def pipeline():
    """Tiny, but at a size that the world draws."""
    pipe = tiny_pipeline()
    pipe.config = replace(pipe.config, default_size=(80, 64))
    return pipe


@cache
def stops():
    pipe, t = pipeline(), place_runs.trial(pipeline(), 2)
    picture = next(place_runs.held_out_pairs(1, pipe.config.default_size))[0]
    return place_view.stops(pipe, pipe.encode(picture), "1girl, beach", t, rows=ROWS, steps=2), t


def test_a_moved_memory_is_what_reading_there_gives():
    model, adapter, words = tiny_model(), tiny_adapter(), context(9, seed=1)
    here, there = (
        encode_reference(model, adapter, [latent(6, 4, seed=2)], words, place=place)
        for place in ((0.0, 20.0, 0.0), (1.0, 12.5, 3.25))
    )
    moved = place_runs.moved(here, TINY.dit, BY)
    assert moved.fingerprint == there.fingerprint
    for (k, v), (k2, v2) in zip(moved.layers, there.layers, strict=True):
        assert torch.allclose(k, k2, atol=1e-4) and torch.allclose(v, v2, atol=1e-4)
    assert not torch.allclose(here.layers[0][0], there.layers[0][0], atol=1e-2)


def test_closeness_is_the_dot_product_of_equal_pairs():
    ones = torch.ones(1, 1, 1, DIT.head_dim)
    for step in ((0, 0, 0), (1, 0, 0), (0, 32, -2.5), (3, 1, 4)):
        k = apply_rope(ones, rope_angles(DIT, 1, 1, 1, step))
        product = float(ones.flatten() @ k.flatten()) / DIT.head_dim
        assert float(place_view.closeness(DIT, *step)) == pytest.approx(product, abs=1e-6)
    table = place_view.closeness(DIT, 0, torch.arange(-3, 4)[:, None], torch.arange(-2, 3))
    assert table.shape == (7, 5) and torch.equal(table, table.flip(0, 1)), "near here is near there"


def test_a_token_finds_its_twin_in_the_next_frame_but_not_32_rows_away():
    after = place_view.toy_shares(DIT, (2, 3), (8, 6), (1.0, 0.0, 0.0))
    assert int(after.argmax()) == 2 * 6 + 3
    below = place_view.toy_shares(DIT, (2, 3), (8, 6), (0.0, 32.0, 0.0))
    assert int(below.argmax()) // 6 != 2 and float(below.sum()) < float(after.sum())
    own = place_view.toy_shares(DIT, (2, 3), (8, 6), (0.0, 0.0, 0.0))
    assert float(own.sum()) == pytest.approx(0.5)


def test_losses_are_the_models_with_the_reference_at_that_place():
    pipe, t = pipeline(), place_runs.trial(pipeline(), 2)
    place = TINY_ADAPTER.place
    right, wrong = (place_runs.losses(pipe, t, place, other) for other in (False, True))
    none = place_runs.losses(pipe, t, None)
    assert right.shape == wrong.shape == none.shape == (2,)
    pictures = [case[0] for case in place_runs.held_out_pairs(2, pipe.config.default_size)]
    for row, picture in enumerate(pictures):
        memory, i = pipe.encode(picture), slice(row, row + 1)
        answer = pipe.model(
            t.noisy[i], t.sigma[i], t.context[i], memory=memory.memory(), branch=pipe.adapter.target
        )
        assert float((answer - t.velocity[i]).square().mean()) == pytest.approx(float(right[row]), rel=1e-4)
    assert not torch.allclose(right, wrong) and not torch.allclose(right, none)


def test_the_base_alone_draws_without_either_branch():
    pipe, picture = pipeline(), next(place_runs.held_out_pairs(1, (80, 64)))[0]
    place = TINY_ADAPTER.place
    bare = read_at(
        pipe.model, pipe.adapter, place_runs.latent_of(pipe, picture), place_runs.caption(pipe), place, False
    )
    expected = draw(pipe, bare, ["1girl"], steps=2)[0]
    ours = place_runs.base_alone(pipe, picture, "1girl", [0, place[1]], steps=2)
    assert np.abs(np.asarray(ours[1], int) - np.asarray(expected, int)).max() <= 1
    assert np.abs(np.asarray(ours[0], int) - np.asarray(ours[1], int)).max() > 1


def test_distances_tell_a_copy():
    pipe = pipeline()
    found = place_runs.distances(pipe, 2, steps=1)
    assert set(found) == set(place_runs.ROADS)
    assert all(values.shape == (2, 2) and (values > 0).all() for values in found.values())
    assert place_runs.rms(np.zeros((4, 4, 3), np.uint8), np.full((4, 4, 3), 7, np.uint8)) == 7


def test_each_stop_has_its_own_picture_and_numbers():
    first, last = stops()[0]
    assert (first.row, last.row) == ROWS
    assert np.abs(np.asarray(first.picture, int) - np.asarray(last.picture, int)).max() > 0
    assert 0 < first.share < 1 and first.right != last.right


def test_the_picture_of_a_stop_is_the_one_the_pipeline_draws_there():
    pipe, picture = pipeline(), next(place_runs.held_out_pairs(1, (80, 64)))[0]
    expected = pipe("1girl, beach", reference=picture, seed=0, steps=2, quiet=True).image  # at place 20
    ours = stops()[0][1].picture
    assert np.abs(np.asarray(ours, int) - np.asarray(expected, int)).max() <= 1


@pytest.mark.parametrize("none", [None, 1.0])
def test_the_slider_turns_to_another_picture_and_back(none):
    slider = place_view.PlaceSlider(pipeline(), stops()[0], none)
    first = slider.image.value
    slider.slider.value = 1
    assert slider.image.value != first and "row 20" in slider.text.value
    slider.slider.value = 0
    assert slider.image.value == first and "row 0" in slider.text.value


def test_the_slider_shows_a_still_and_words_without_a_kernel(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, **options: shown.append(bundle))
    place_view.PlaceSlider(pipeline(), stops()[0]).show()
    (bundle,) = shown
    assert {"image/png", "text/plain"} < set(bundle) and "rows 0, 20" in bundle["text/plain"]


@pytest.mark.parametrize(
    "figure",
    [
        place_view.arrows((1, 2), (3, 1), 0.6, [(1, 0), (3, 2)]),
        place_view.wavelengths(DIT),
        place_view.neighbours(DIT, (2, 3), (8, 6), {"on top": (0, 0, 0), "next": (1, 0, 0)}),
        place_view.seats((8, 6), [(1, 0, 0), (0, 32, 0)]),
    ],
    ids=["arrows", "wavelengths", "neighbours", "seats"],
)
def test_figures_can_be_shown(figure):
    assert plots.png(figure).startswith(b"\x89PNG")
