"""A part of the reference, and several pictures on one canvas: what is hidden cannot leak, what is joined fits."""

import numpy as np
import pytest
import torch
from PIL import Image
from pipeline_case import picture
from reading_case import SCALES, draw, pipe_of

from snapref.reference.stitch import stitch


def same(one, other) -> bool:
    sides = [[side for pair in cache.layers for side in pair] for cache in (one, other)]
    return all(map(torch.equal, *sides)) and one.fingerprint == other.fingerprint


@pytest.mark.parametrize("scale", SCALES)
def test_what_a_mask_hides_does_not_change_the_cache_at_all(scale):
    pipe, image = pipe_of(scale), picture(1, (64, 48))
    mask = np.zeros((64, 48), bool)
    mask[3:50, 5:30] = True  # ends inside tokens
    other = np.where(mask[..., None], np.asarray(image), np.asarray(picture(9, (64, 48))))
    read = pipe.encode(image, ref_masks=[mask])
    assert read.tokens == (8,)  # 4 rows and 2 columns of tokens show something
    assert same(read, pipe.encode(Image.fromarray(other), ref_masks=[mask]))
    assert not same(read, pipe.encode(image))
    hidden = image.convert("RGBA")
    hidden.putalpha(Image.fromarray(np.where(mask, 255, 0).astype(np.uint8)))
    assert same(read, pipe.encode(hidden))  # a transparent picture does it by itself
    hidden.paste((255, 0, 255, 0), (31, 0, 48, 64))  # a colour under alpha 0
    assert same(read, pipe.encode(hidden))
    everything = pipe.encode(image, ref_masks=["all"])
    assert same(everything, pipe.encode(image)) and same(everything, pipe.encode(image, ref_masks=[None]))


@pytest.mark.parametrize("scale", SCALES)
def test_a_run_takes_masks_as_encode_does(scale):
    pipe, images = pipe_of(scale), [picture(1, (64, 48)), picture(2)]
    masks = [(0, 0, 1, 0.5), None]
    found = draw(scale, reference=images, ref_masks=masks)
    assert found.reference.tokens == (6, 6)
    assert torch.equal(found.latents, draw(scale, reference=pipe.encode(images, ref_masks=masks)).latents)
    batch = draw(scale, ["smile", "night"], references=[images, images[1]], ref_masks=[masks, None])
    assert [read.tokens for read in batch.references] == [(6, 6), (6,)]


def block(colour, width, height) -> Image.Image:
    return Image.new("RGB", (width, height), colour)


RED, GREEN = (255, 0, 0), (0, 255, 0)


def runs(image, across: bool) -> list[tuple[tuple, int]]:
    """Colours along the middle of a picture: [(colour, how many pixels)]."""
    array = np.asarray(image)
    line = array[array.shape[0] // 2] if across else array[:, array.shape[1] // 2]
    found = []
    for colour in map(tuple, line.tolist()):
        if found and found[-1][0] == colour:
            found[-1] = (colour, found[-1][1] + 1)
        else:
            found.append((colour, 1))
    return found


def test_the_second_picture_takes_the_height_of_the_first():
    joined = stitch([block(RED, 40, 60), block(GREEN, 51, 30)], "right", True, 5, "blue")
    assert joined.size == (40 + 6 + 102, 60)  # spacing made even
    assert runs(joined, True) == [(RED, 40), ((0, 0, 255), 6), (GREEN, 102)]
    joined = stitch([block(RED, 40, 60), block(GREEN, 51, 30)], "left", True)
    assert runs(joined, True) == [(GREEN, 102), (RED, 40)]
    joined = stitch([block(RED, 40, 60), block(GREEN, 51, 30)], "down", True, 2, "white")
    assert joined.size == (40, 60 + 2 + 23)  # int(30 · 40 / 51)
    assert runs(joined, False) == [(RED, 60), ((255,) * 3, 2), (GREEN, 23)]
    assert runs(stitch([block(RED, 40, 60), block(GREEN, 40, 30)], "up"), False) == [(GREEN, 30), (RED, 60)]


@pytest.mark.parametrize("colour, filling", [("white", (255,) * 3), ("black", (0,) * 3), ("red", (0,) * 3)])
def test_without_matching_the_smaller_one_is_filled_up_around_the_middle(colour, filling):
    joined = np.asarray(stitch([block(RED, 40, 60), block(GREEN, 50, 30)], "right", False, 0, colour))
    assert joined.shape == (60, 90, 3)
    column = joined[:, 60].tolist()
    assert column == [[*filling]] * 15 + [[*GREEN]] * 30 + [[*filling]] * 15


def test_three_pictures_one_picture_and_alpha():
    one = picture()
    assert stitch([one]) is one
    three = stitch([block(RED, 20, 20), block(GREEN, 20, 20), block(RED, 10, 20)], "right", True, 2, "black")
    assert runs(three, True) == [(RED, 20), ((0,) * 3, 2), (GREEN, 20), ((0,) * 3, 2), (RED, 10)]
    clear = Image.new("RGBA", (20, 20), (0, 0, 0, 0))
    joined = stitch([block(RED, 20, 20), clear], "right", True, 2, "white")
    alpha = np.asarray(joined.getchannel("A"))[0].tolist()
    assert joined.mode == "RGBA" and alpha == [255] * 22 + [0] * 20  # what has no alpha is opaque


def test_masks_of_stitched_pictures_and_the_area_of_the_canvas():
    pipe, images = pipe_of("tiny"), [picture(1, (64, 64)), picture(2, (64, 64))]
    whole = pipe.encode(images, layout="stitch")
    assert whole.tokens == (32,) and len(whole.groups) == 1
    part = pipe.encode(images, ref_masks=[None, "top"], layout="stitch")
    assert part.tokens == (24,)
    assert pipe.encode(images, layout="stitch", ref_megapixels=0.002).tokens[0] < 9  # of both together
