"""What cannot be read is refused in one sentence, before the model, the text encoder or the codec is asked."""

import copy
import dataclasses
import io
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from pipeline_case import picture, tiny_adapter, tiny_pipeline
from reading_case import PROMPT, work

from snapref.reference.branches import Pair
from snapref.reference.cache import CacheError
from snapref.reference.fingerprint import hash_module
from snapref.reference.picture import PictureError
from snapref.sampling.pipeline import Pipeline
from snapref.sampling.settings import Settings, SettingsError

PIPE = tiny_pipeline()
CACHE = PIPE.encode(picture())
TWO = [picture(1), picture(2)]
NAN = float("nan")


@contextmanager
def nothing_asked():
    """Fails if a model ran: the transformer, the encoder of references, the text encoder or the codec."""
    asked = []
    hooks = [
        module.register_forward_pre_hook(lambda module, inputs: asked.append(type(module).__name__))
        for module in (*PIPE.text.qwen.children(), *PIPE.codec.children())
    ]
    with work(PIPE) as done:
        yield
    for hook in hooks:
        hook.remove()
    assert not asked and not done["rows"] and not done["reads"]


@contextmanager
def nothing_read():
    with work(PIPE) as done:
        yield
    assert not done["reads"]


@pytest.mark.parametrize("arguments, error, words", [
    ({"reference": TWO, "weights": [1, NAN]}, SettingsError, r"weights\[1\] is nan; it must be a number from 0 to 10"),
    ({"reference": TWO, "weights": [1, -1]}, SettingsError, r"weights\[1\] is -1; it must be a number from 0 to 10"),
    ({"reference": TWO, "weights": [11, 1]}, SettingsError, r"weights\[0\] is 11; it must be a number from 0 to 10"),
    ({"reference": TWO, "weights": []}, SettingsError, "weights is an empty list; give at least one number, or None"),
    ({"reference": TWO, "weights": [1]}, SettingsError, "weights has 1 entries for 2 pictures; give one for each"),
    ({"reference": TWO, "weights": 1.0}, SettingsError, "weights is 1.0; it must be a list of numbers"),
    ({"reference": TWO, "weights": "1,1"}, SettingsError, "weights is '1,1'; it must be a list of numbers"),
    ({"weights": [1]}, SettingsError, "weights is given without a reference; give the pictures too"),
    ({"reference": TWO, "block_weights": [1, NAN, 1]}, SettingsError, r"block_weights\[1\] is nan; .* from 0 to 2"),
    ({"reference": TWO, "block_weights": "0-1:3"}, SettingsError, "block_weights is 3.0; .* a number from 0 to 2"),
    ({"reference": TWO, "block_weights": "0-1:nan"}, SettingsError, "block_weights is nan; .* from 0 to 2"),
    ({"reference": TWO, "block_weights": "all"}, SettingsError, "block_weights is 'all'; give one number per block"),
    ({"reference": TWO, "block_weights": "2-1:1"}, SettingsError, "names blocks 2 to 1; the model has 0 to 2"),
    ({"reference": TWO, "regions": ["left"]}, SettingsError, "regions has 1 entries for 2 pictures"),
    ({"reference": TWO, "regions": []}, SettingsError, "regions has 0 entries for 2 pictures"),
    ({"reference": TWO, "regions": "left"}, SettingsError, "regions is 'left'; give a list with one entry per picture"),
    ({"reference": TWO, "regions": [None, (0, 0, 2, 1)]}, PictureError, r"regions\[1\] is the box 0, 0, 2, 1; it must"),
    ({"reference": TWO, "regions": [np.ones((9, 90)), None]}, PictureError,
     r"regions\[0\] is a mask of 90×9 pixels, the picture to draw is 48×64; give a mask of the same proportions"),
    ({"reference": TWO, "regions": [None, np.full((64, 48), NAN)]}, PictureError, r"regions\[1\] holds values"),
    ({"reference": TWO, "regions": [(0, 0, 0.05, 1), None]}, PictureError, r"regions\[0\] covers no cell of 4×3"),
    ({"regions": ["left"]}, SettingsError, "regions is given without a reference"),
    ({"reference": TWO, "layout": "stitch", "regions": ["left", "right"]}, SettingsError,
     "regions has 2 entries for 1 stitched picture; give one for each"),
    ({"reference": TWO, "layout": "stitch", "weights": [1, 1]}, SettingsError,
     "weights has 2 entries for 1 stitched picture"),
    ({"reference": TWO, "ref_masks": ["top"]}, SettingsError, "ref_masks has 1 entries for 2 pictures"),
    ({"reference": TWO, "ref_masks": [None, np.ones((48, 33))]}, PictureError,
     r"ref_masks\[1\] is a mask of 33×48 pixels, its picture has 32×48; give a mask of the picture's size"),
    ({"reference": TWO, "ref_masks": [np.zeros((48, 32)), None]}, PictureError, r"ref_masks\[0\] hides all of its"),
    ({"ref_masks": ["top"]}, SettingsError, "ref_masks is given without a reference"),
    ({"reference": CACHE, "ref_masks": ["top"]}, SettingsError,
     r"ref_masks\[0\] is for a reference that is already read; encode its picture with it"),
    ({"reference": [CACHE, picture()], "layout": "stitch"}, SettingsError, "layout is 'stitch', which needs pictures"),
    ({"reference": TWO, "layout": "grid"}, SettingsError, "layout is 'grid'; it must be one of separate, stitch"),
    ({"reference": TWO, "stitch_spacing": -1}, SettingsError, "stitch_spacing is -1; .* a whole number from 0 to 1024"),
    ({"reference": TWO, "stitch_direction": "up!"}, SettingsError, "stitch_direction is 'up!'; it must be one of"),
    ({"reference": TWO, "stitch_match": 1}, SettingsError, "stitch_match is 1; it must be true or false"),
    ({"reference": [picture(size=(32, 320))] * 3, "layout": "stitch"}, PictureError,
     "the picture is 960×32 pixels; a side may be at most 16 times the other"),
    ({"reference": [picture(), "nowhere.png"]}, PictureError, "'nowhere.png' does not exist"),
    ({"reference": [picture(), picture(size=(7, 7))]}, PictureError, "7 px wide and 7 px high; at least 16"),
    ({"reference": np.zeros((0, 32, 32, 3))}, SettingsError, "reference is an empty list"),
    ({"reference": [picture()], "mode": "face"}, SettingsError, "mode is 'face'"),
    ({"prompt": [PROMPT] * 2, "references": [picture(), picture()], "regions": ["left", "right"]}, SettingsError,
     "regions has 2 entries for 2 references; give one list for each"),
    ({"prompt": [PROMPT] * 2, "references": [picture(), CACHE.with_weights([0])]}, SettingsError,
     "nothing of reference 1 is read; draw that prompt by itself"),
    ({"prompt": [PROMPT] * 2, "references": [picture(), picture(size=(20, 400))]}, PictureError, "400×20 pixels"),
    ({"reference": [picture()], "mode": "face", "ref_caption": "a face"}, SettingsError, "mode is 'face'"),
    ({"references": picture()}, SettingsError, "references is a Image; give a list with one reference per prompt"),
    ({"settings": {}}, SettingsError, "settings is a dict; give Settings, or its fields by their names"),
    ({"settings": {"steps": 3}}, SettingsError, "settings is a dict"),
    ({"guidance": 10**400}, SettingsError, r"guidance is 1000\d+…\d+0; it must be a number from 0 to 100"),
    ({"seed": 10**400}, SettingsError, "seed is 1000.*; it must be a whole number from 0"),
    ({"size": (float("inf"), 64)}, SettingsError, "size is .inf, 64.; it must be .height, width. in pixels"),
    ({"noise": np.zeros((1, 16, 1, 8, 6))}, SettingsError, "noise is a ndarray .*; this run needs a tensor"),
    ({"noise": torch.full((1, 16, 1, 8, 6), NAN)}, SettingsError, "noise has 768 numbers that are not finite"),
    ({"image": torch.full((1, 16, 1, 8, 6), NAN), "denoise": 0.5}, SettingsError, "image has 768 numbers that are not"),
    ({"levels": []}, SettingsError, r"levels has shape \(0,\); give sigmas"),
    ({"levels": "1,0"}, SettingsError, "levels is a str; give sigmas, one more than steps"),
    ({"levels": [1, NAN, 0]}, SettingsError, "levels has 1 numbers that are not finite"),
    ({"levels": [0.5, 0.7, 0]}, SettingsError, "levels go from 0.5 to 0; they must fall at every step"),
    ({"reference": ""}, PictureError, "the path of the picture is empty"),
    ({"reference": io.StringIO("words")}, PictureError, "the open file holds str, not bytes; open it in binary mode"),
    ({"reference": [picture(size=(1500, 1500)), *[picture(size=(16, 256))] * 2], "layout": "stitch"}, PictureError,
     r"stitched, the pictures have 74,250,000 pixels \(49500×1500\), at most 64,000,000; give smaller ones"),
    ({"reference": CACHE, "cache_form": "fp8"}, SettingsError, "the reference was kept as 'whole', not 'fp8'; encode"),
    ({"reference": CACHE, "ref_megapixels": 0.5}, SettingsError, "read with ref_megapixels 1.0, not 0.5; encode the"),
    ({"reference": CACHE.to(dtype=torch.bfloat16)}, CacheError,
     r"the reference is in bfloat16, the model in float32; encode again, or give cache.to\(dtype=…\)"),
    ({"reference": [picture(size=(64, 64))], "regions": [np.ones((64, 64))]}, PictureError,
     r"regions\[0\] is a mask of 64×64 pixels, the picture to draw is 48×64"),
    ({"reference": [picture()], "regions": [np.ones((80, 48))]}, PictureError, r"is a mask of 48×80 pixels, the pic"),
])  # fmt: skip
def test_refused(arguments, error, words):
    with nothing_asked(), pytest.raises(error, match=words) as caught:
        PIPE(**{"prompt": PROMPT, "quiet": True, **arguments})
    assert "\n" not in str(caught.value)


def test_a_foreign_cache_beside_a_picture_is_refused_before_the_picture_is_read():
    other = Pipeline(PIPE.model, PIPE.text, PIPE.codec, PIPE.config, tiny_adapter(seed=2))
    foreign = other.encode(picture())
    with nothing_asked(), pytest.raises(CacheError, match="encoded with another adapter"):
        PIPE(PROMPT, [picture(), foreign], quiet=True)


def test_a_cache_of_another_place_is_said_and_another_place_is_another_reading():
    other = tiny_adapter(seed=3)
    moved = Pipeline(PIPE.model, PIPE.text, PIPE.codec, PIPE.config, other)
    there = moved.encode(picture())
    other.config = dataclasses.replace(other.config, place=(0.0, 5.0, 0.0))
    try:
        with pytest.warns(UserWarning, match=r"at place \(0.0, 20.0, 0.0\), the adapter .* read at \(0.0, 5.0, 0.0\)"):
            moved(PROMPT, there, quiet=True, steps=1)
        assert moved.encode(picture()).fingerprint.pictures[0].place == (0.0, 5.0, 0.0)  # not from the store
    finally:
        other.config = dataclasses.replace(other.config, place=(0.0, 20.0, 0.0))


def test_a_scale_is_part_of_an_adapter():
    """alpha is in no tensor; of two adapters that differ in it alone, one's reference is not the other's."""
    scaled = copy.deepcopy(PIPE.adapter)
    pair = next(part for part in scaled.modules() if isinstance(part, Pair))
    pair.scale *= 2
    other = Pipeline(PIPE.model, PIPE.text, PIPE.codec, PIPE.config, scaled)
    with pytest.raises(CacheError, match="encoded with another adapter"):
        other(PROMPT, CACHE, quiet=True)
    before = hash_module(scaled)
    pair.scale /= 2  # noticed although no tensor changed
    assert hash_module(scaled) == hash_module(PIPE.adapter) != before


def test_a_window_without_a_step_is_said_and_nothing_is_read():
    with nothing_read(), pytest.warns(UserWarning, match="none of 4 steps begins within ref_start 0.3 to"):
        found = PIPE(PROMPT, picture(), quiet=True, steps=4, ref_start=0.3, ref_end=0.45)
    assert torch.equal(found.latents, PIPE(PROMPT, quiet=True, steps=4).latents)


def test_a_gpu_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingsError, match="noise_device is 'cuda', but there is no GPU here; give 'cpu'"):
        PIPE(PROMPT, quiet=True, noise_device="cuda")


def test_a_stitch_that_is_not_used_is_said():
    with pytest.warns(UserWarning, match="stitch_spacing ignored: layout is 'separate'"):
        PIPE(PROMPT, picture(), quiet=True, steps=1, stitch_spacing=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PIPE(PROMPT, picture(), quiet=True, steps=1, stitch_spacing=4, layout="stitch")


def test_numbers_of_any_kind_are_a_weight():
    for given in ([1, 0.5], (1, 0.5), np.array([1, 0.5]), torch.tensor([1, 0.5])):
        assert Settings(weights=given).weights == (1.0, 0.5)
    assert Settings(block_weights="1, 0.5").block_weights == (1.0, 0.5)
    assert Settings(block_weights=" 0-1:0 ").block_weights == "0-1:0"
