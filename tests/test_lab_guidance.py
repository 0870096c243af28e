"""The guidance board without a browser, and what its figures measure."""

import asyncio
import io
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from pipeline_case import TINY

from snapref.lab import soon
from snapref.lab.guidance_board import SLIDERS, GuidanceBoard
from snapref.lab.guidance_view import WAYS, arrows_picture, curve_picture, measure, saturation
from snapref.lab.plots import png
from snapref.sampling.passes import plan, warn_of_ignored
from snapref.sampling.settings import Settings


class FakePipe:
    """Paints redder with more guidance, and writes down what it was asked."""

    config = TINY

    def __init__(self):
        self.read, self.drawn, self.error = 0, [], None

    def encode(self, picture):
        self.read += 1
        return "memory"

    def __call__(self, prompt, reference=None, *, settings=None, quiet, **changes):
        if self.error:
            raise self.error
        settings = (settings or Settings()).replace(**changes).resolved(self.config)
        warn_of_ignored(settings)
        self.drawn.append(settings)
        count = 1 if isinstance(prompt, str) else len(prompt)
        pull = settings.guidance * (1 - settings.cfg_rescale)
        images = [Image.new("RGB", (48, 64), (120 + int(10 * pull), 100, 100))] * count
        latents = torch.linspace(-1, 1, 16).view(1, 16, 1, 1, 1).expand(count, -1, 1, 2, 2) * pull
        branches = settings.steps * len(plan(settings, reading=reference is not None))
        return SimpleNamespace(
            image=images[0], images=images, latents=latents, branches=branches, settings=settings, seconds=0.1
        )


@pytest.fixture
def pipe() -> FakePipe:
    return FakePipe()


@pytest.fixture
def board(pipe) -> GuidanceBoard:
    board = GuidanceBoard(pipe, Image.new("RGB", (48, 64), "gray"), "1girl", Settings(guidance=4, steps=5))
    board.draw()
    return board


def test_the_sliders_start_at_the_settings_given_and_change_nothing(board, pipe):
    assert pipe.read == 1 and pipe.drawn[0] == pipe.drawn[1] == board.start
    assert "100% of the start" in board.status.value and "2 model calls per step" in board.status.value


@pytest.mark.parametrize("name", [name for name in SLIDERS if name != "ref_guidance"])
def test_a_slider_draws_one_picture_with_its_setting_changed(board, pipe, name):
    low, high, _ = SLIDERS[name]
    board.controls[name].value = value = low if board.controls[name].value != low else high
    assert len(pipe.drawn) == 3 and pipe.drawn[-1] == board.start.replace(**{name: value})
    assert pipe.read == 1


def test_the_read_out_follows_the_picture(board):
    before, still = board.status.value, board.picture.value
    board.controls["guidance"].value = 12
    assert board.share() > 1 and f"{board.share():.0%} of the start" in board.status.value
    assert board.status.value != before and board.picture.value != still
    assert f"{100 * board.share():.0f} % of the start" in board.describe() and "guidance 12" in board.describe()


def test_the_second_scale_counts_only_when_ticked(board, pipe):
    board.controls["ref_guidance"].value = 2
    assert pipe.drawn[-1].ref_guidance is None and board.controls["ref_guidance"].disabled
    board.two_scales.value = True
    assert pipe.drawn[-1].ref_guidance == 2 and "3 model calls per step" in board.status.value
    assert not board.controls["ref_guidance"].disabled
    board.controls["ref_guidance"].value = 4  # as guidance: one answer drops out
    assert "2 model calls per step" in board.status.value


def test_a_start_with_two_scales_is_ticked(pipe):
    board = GuidanceBoard(pipe, Image.new("RGB", (8, 8)), "1girl", Settings(ref_guidance=3.0))
    board.draw()
    assert board.two_scales.value and pipe.drawn[-1].ref_guidance == 3


def test_what_is_ignored_is_said_and_nothing_reaches_stderr(board):
    board.two_scales.value = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        board.controls["fidelity"].value = 0.5
    assert "Note: fidelity 0.5 is ignored: ref_guidance already says" in board.notes.value
    board.two_scales.value = False
    assert board.notes.value == ""


def test_an_error_is_one_sentence_and_the_picture_stays(board, pipe):
    still, pipe.error = board.picture.value, ValueError("1 < 2")
    board.controls["strength"].value = 0
    assert board.status.value == "1 &lt; 2" and board.picture.value == still


def test_before_the_first_drawing_there_is_a_grey_sheet(pipe):
    board = GuidanceBoard(pipe, Image.new("RGB", (48, 64), "red"), "1girl")
    assert board.describe() == "A reference; nothing is drawn yet" and pipe.drawn == []
    assert Image.open(io.BytesIO(board.picture.value)).width > 3 * 96


def test_saturation_is_nothing_for_grey_and_grows_with_colour():
    grey, pale, red = (np.full((4, 4, 3), colour, np.uint8) for colour in ((90,) * 3, (200, 150, 150), (255, 0, 0)))
    assert saturation(grey) < 0.05 < 10 < saturation(pale) < saturation(red)
    assert saturation(red) == pytest.approx(104.6, abs=0.2)  # chroma of sRGB red in CIELAB
    assert saturation(Image.fromarray(red)) == saturation(red)


def test_the_curve_asks_every_scale_and_way_for_the_same_noise(pipe):
    curves = measure(pipe, "1girl", "memory", (1, 2, 4), seed=9, count=2, steps=3)
    assert list(curves) == list(WAYS) and len(pipe.drawn) == 9
    assert {(s.seed, s.steps) for s in pipe.drawn} == {(9, 3)}
    assert curves["plain"].colour.shape == curves["plain"].spread.shape == (3, 2)
    assert (np.diff(curves["plain"].colour, axis=0) > 0).all()
    assert np.allclose(curves["rescale 0.7"].spread, 0.3 * curves["plain"].spread, rtol=1e-5)


def test_the_curve_is_drawn_in_percent_of_its_first_scale(pipe):
    scales = (1, 2, 4)
    sheet = curve_picture(measure(pipe, "1girl", "memory", scales, count=2), scales)
    for axes in sheet.axes:
        lines = [line for line in axes.lines if line.get_label() in WAYS]
        assert len(lines) == len(WAYS) and all(line.get_ydata()[0] == pytest.approx(100) for line in lines)
    assert png(sheet).startswith(b"\x89PNG")


def test_the_arrows_end_where_guidance_and_apg_do():
    left, right = arrows_picture((4, 3), (2, 4), 3).axes
    labels = {text.get_text(): text.xy for axes in (left, right) for text in axes.texts}
    assert labels["guided"] == labels["eta 1"] == pytest.approx((8, 1))
    assert labels["eta 0"] == pytest.approx((6.4, -0.2))
    assert labels["along"] == pytest.approx((4.8, 3.6)) and labels["across"] == pytest.approx((5.2, 1.4))


def test_a_held_arrow_key_makes_one_drawing(board, pipe, monkeypatch):
    monkeypatch.setattr(soon, "PAUSE", 0.01)

    async def hold():
        for value in (5, 6, 7):
            board.controls["guidance"].value = value
        await asyncio.sleep(0.1)

    asyncio.run(hold())
    assert [settings.guidance for settings in pipe.drawn] == [4, 4, 7]
