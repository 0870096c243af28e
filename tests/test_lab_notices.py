"""A picture from outside the drawn world is noticed; the world's own pictures are not."""

from pathlib import Path

import matplotlib
import pytest
import torch

from snapref.config import BASE, NANO
from snapref.lab.notices import is_foreign, notices
from snapref.reference.picture import to_pixels
from snapref.training.draws import draw
from snapref.world.samples import references


@pytest.mark.parametrize("kind", ["portrait", "square", "landscape", "pair"])
def test_drawn_pictures_are_familiar(kind):
    pictures = [draw(kind, 31, i, "train").frames[0] for i in range(24)]
    strange = sum(is_foreign(to_pixels(picture, NANO.size_step)) for picture in pictures)
    assert strange <= 2  # a hint may err now and then


def test_the_samples_are_familiar():
    assert notices(NANO, ["1girl, beach"], [sample.picture() for sample in references()]) == []


def test_a_photograph_is_foreign():
    photo = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    told = notices(NANO, ["1girl"], [photo])
    assert told == ["nano knows only its drawn world; of this picture it can take little more than colours"]
    assert is_foreign(torch.rand(1, 3, 96, 128, generator=torch.Generator().manual_seed(0)))


def test_the_big_model_knows_no_strangers():
    assert notices(BASE, ["1girl, beech"], ["nowhere.png"]) == []
