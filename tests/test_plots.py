"""Grids keep every pixel and every caption; whatever is shown is opaque PNG with a text."""

import io

import ipywidgets
import numpy as np
import pytest
import torch
from PIL import Image

from snapref.lab import plots

RED = np.zeros((6, 4, 3), np.uint8) + np.array([255, 0, 0], np.uint8)


@pytest.mark.parametrize(
    "picture",
    [
        RED, RED / 255.0, Image.fromarray(RED), torch.tensor(RED / 255.0).movedim(-1, 0),
        torch.tensor(RED / 255.0).movedim(-1, 0)[None].requires_grad_(),
    ],
    ids=["uint8", "float", "pil", "tensor", "batch of one"],
)  # fmt: skip
def test_every_kind_of_picture_gives_the_same_pixels(picture):
    assert np.array_equal(np.asarray(plots.to_picture(picture)), RED)


def test_transparent_parts_become_white():
    clear = Image.new("RGBA", (2, 2), (255, 0, 0, 0))
    assert plots.to_picture(clear).getpixel((0, 0)) == (255, 255, 255)


def test_grid_repeats_pixels_and_lays_out_rows():
    sheet = np.asarray(plots.grid([RED] * 3, columns=2, zoom=5))
    assert sheet.shape == (2 * (30 + 8) + 8, 2 * (20 + 8) + 8, 3)
    assert (sheet == [255, 0, 0]).all(-1).sum() == 3 * 30 * 20
    assert (sheet[-30:, -20:] == 255).all(), "the empty place is not white"


def test_captions_are_drawn_below_and_wrapped():
    plain = plots.grid([RED], zoom=20)
    captioned = plots.grid([RED], ["red hair, and a long line of words"], zoom=20)
    assert captioned.height > plain.height + 17
    below = np.asarray(captioned)[plain.height - 8 :]
    assert below.min() < 128 and (np.asarray(captioned)[:, :2] == 255).all()


def test_grid_refuses_what_it_cannot_caption():
    with pytest.raises(ValueError, match="2 pictures but 1 captions"):
        plots.grid([RED, RED], ["only one"])
    with pytest.raises(ValueError, match="at least one"):
        plots.grid([])


def test_a_figure_becomes_an_opaque_png():
    figure = plots.figure(2, 1)
    figure.subplots().plot([0, 1], color=plots.BLUE)
    pixels = np.asarray(Image.open(io.BytesIO(plots.png(figure))).convert("RGBA"))
    assert pixels.shape == (100, 200, 4) and pixels[..., 3].min() == 255


def test_live_carries_widget_still_and_text(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, **options: shown.append(bundle))
    plots.live(ipywidgets.IntSlider(), RED, "A red square")
    plots.still(RED, "A red square")
    both, alone = shown
    assert both["text/plain"] == alone["text/plain"] == "A red square"
    assert both["image/png"] == alone["image/png"]
    assert any("widget-view" in kind for kind in both) and not any("widget-view" in kind for kind in alone)
