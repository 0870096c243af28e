"""A part of a picture: sides, boxes and masks, brought to any grid; and what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from snapref.reference.area import SIDES, averaging, overlap, read_area, shown_part
from snapref.reference.picture import PictureError


def covered(given, rows=4, columns=6):
    return read_area("regions[0]", given).covered(rows, columns).int().tolist()


def test_sides_and_boxes_on_a_grid():
    assert covered("left") == [[1, 1, 1, 0, 0, 0]] * 4
    assert covered("right") == [[0, 0, 0, 1, 1, 1]] * 4
    assert covered("top") == [[1] * 6] * 2 + [[0] * 6] * 2
    assert covered("all") == [[1] * 6] * 4
    assert covered((0.5, 0.5, 1, 1)) == [[0] * 6] * 2 + [[0, 0, 0, 1, 1, 1]] * 2
    assert covered("0.5, 0.5, 1, 1") == covered(np.array([0.5, 0.5, 1, 1]))
    assert covered("left", 1, 3) == covered((0, 0, 0.5, 1), 1, 3) == [[1, 1, 0]]  # the middle by half
    assert read_area("regions[0]", None) is None


def test_a_cell_belongs_when_half_of_it_is_covered():
    mask = torch.zeros(4, 12)
    mask[:, :5] = 1.0  # cells of two pixels: two whole ones, and half of the third
    assert covered(mask, 2, 6) == [[1, 1, 1, 0, 0, 0]] * 2
    assert covered(mask * 0.5, 2, 6) == [[1, 1, 0, 0, 0, 0]] * 2  # soft: 0.5, 0.5, then a quarter
    assert covered(mask * 0, 2, 6) == [[0] * 6] * 2


@given(st.integers(1, 40), st.integers(1, 40))
def test_averaging_keeps_the_mean_and_adds_up(pixels, cells):
    matrix = averaging(pixels, cells)
    torch.testing.assert_close(matrix.sum(1), torch.ones(cells, dtype=torch.float64))
    torch.testing.assert_close(matrix.sum(0), torch.full((pixels,), cells / pixels, dtype=torch.float64))
    assert torch.equal(averaging(pixels, pixels).round(decimals=9), torch.eye(pixels, dtype=torch.float64))


@given(st.integers(1, 30), st.floats(0, 1), st.floats(0, 1))
def test_overlap_is_the_length_of_the_interval(cells, a, b):
    low, high = sorted((a, b))
    assert overlap(low, high, cells).sum().item() == pytest.approx((high - low) * cells, abs=1e-9)


def test_masks_in_every_form_are_one(tmp_path):
    wanted = np.zeros((32, 48), np.uint8)
    wanted[:, :24] = 255
    Image.fromarray(wanted).save(tmp_path / "mask.png")
    Image.fromarray(np.stack([wanted] * 3, -1)).save(tmp_path / "colours.webp", lossless=True)
    clear = Image.new("RGBA", (48, 32), "white")
    clear.putalpha(Image.fromarray(wanted))  # white everywhere, and transparent on the right
    tensor = torch.from_numpy(wanted)
    forms = [
        tmp_path / "mask.png", str(tmp_path / "mask.png"), (tmp_path / "mask.png").read_bytes(),
        tmp_path / "colours.webp", Image.open(tmp_path / "mask.png"), clear, wanted, wanted > 0, wanted / 255,
        tensor, tensor > 0, tensor[None], tensor[None, None], tensor[..., None], (tensor / 255).half(),
    ]  # fmt: skip
    described = [read_area("regions[0]", form).described() for form in forms]
    assert described == [described[0]] * len(forms) and described[0]["size"] == [48, 32]
    assert all(covered(form) == covered("left") for form in forms)
    assert read_area("regions[0]", "left").described() == [*SIDES["left"]]


@pytest.mark.parametrize("given, words", [
    ((0, 0, 1), r"regions\[0\] is \(0, 0, 1\); a box is four numbers"),
    ((0, 0, 1, "x"), "a box is four numbers"),
    ("0,0,1", "a box is four numbers"),
    ((0, 0, 0.5, 1.5), r"regions\[0\] is the box 0, 0, 0.5, 1.5; it must lie within 0 to 1"),
    ((0.5, 0, 0.5, 1), "left below right"),
    ((0, 0, float("nan"), 1), "is the box 0, 0, nan, 1; it must lie within 0 to 1"),
    ("nowhere.png", r"regions\[0\]: 'nowhere.png' does not exist; give the path"),
    (7, r"regions\[0\]: a int is no picture"),
    (np.full((4, 4), np.nan), r"regions\[0\] holds values from nan to nan; a mask has floats in 0..1"),
    (np.full((4, 4), 255.0), "holds values from 255 to 255; a mask has floats in 0..1"),
    (np.full((4, 4), 1), "an array of int64; give bools, uint8 in 0..255 or floats in 0..1"),
    (torch.zeros(2, 4, 4), r"an array of shape \(2, 4, 4\); give a mask \(height, width\)"),
    (torch.zeros(0, 4), "give a mask"),
])  # fmt: skip
def test_what_is_no_part_of_a_picture(given, words):
    with pytest.raises(PictureError, match=words):
        read_area("regions[0]", given)


def test_too_thin_is_said():
    with pytest.raises(PictureError, match=r"regions\[0\] covers no cell of 4×6 by half \(at most 30%\); make"):
        covered((0, 0, 0.05, 1))


def test_a_mask_of_another_shape_is_said():
    area = read_area("regions[0]", torch.ones(64, 64))
    with pytest.raises(PictureError, match="is a mask of 64×64 pixels, the picture to draw is 96×128; give a mask"):
        area.check_shape(128, 96, "the picture to draw")
    read_area("regions[0]", torch.ones(64, 48)).check_shape(128, 96, "the picture to draw")


def test_the_hidden_part_becomes_transparent():
    image = Image.new("RGB", (32, 32), (10, 20, 30))
    mask = torch.zeros(32, 32)
    mask[:, :10] = 1.0
    mask[:, 10:12] = 0.5
    mask[:, 12:20] = 0.49
    shown = shown_part(image, read_area("ref_masks[0]", mask))
    assert (np.asarray(shown.getchannel("A")) > 0).sum(1).tolist() == [12] * 32
    half = shown_part(shown, read_area("ref_masks[0]", "top"))  # what was hidden stays hidden
    assert (np.asarray(half.getchannel("A")) > 0).sum() == 12 * 16
    assert shown_part(image, None) is image
    for wrong, words in (
        (torch.ones(16, 16), "a mask of 16×16 pixels, its picture has 32×32; give a mask of the picture's size"),
        (torch.zeros(32, 32), r"ref_masks\[0\] hides all of its picture"),
    ):
        with pytest.raises(PictureError, match=words):
            shown_part(image, read_area("ref_masks[0]", wrong))
