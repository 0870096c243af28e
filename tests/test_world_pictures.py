"""What the drawn world draws: sizes, determinism, and that every tag shows."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from snapref.world import (
    IDENTITY,
    PATTERNS,
    SCENE,
    Character,
    Scene,
    character,
    delta_e,
    next_frame,
    render,
    render_clip,
    render_pair,
    render_regions,
    sample,
    sample_pair,
    scene,
)

ANN = Character("pink hair", "long hair", "blue eyes", "fair skin", "dress", "red outfit", None, None,
                "@flatline")
HERE = Scene(background="classroom")
LOOKS = [(name, values) for name, values in IDENTITY.items()]
SCENES = [(name, values) for name, values in SCENE.items() if name != "ground"]


@pytest.mark.parametrize("size", [(128, 96), (96, 128), (112, 112), (64, 64), (160, 80)])
@pytest.mark.parametrize("framing", SCENE["framing"])
def test_any_size_is_filled(size, framing):
    picture = render(ANN, replace(HERE, framing=framing), size)
    assert picture.shape == (*size, 3) and picture.dtype == np.uint8
    assert (picture.reshape(-1, 3).max(axis=1) > 0).all()  # no pixel was left unpainted


def test_too_small_a_picture_is_refused():
    with pytest.raises(ValueError, match="48×96 pixels is too small; at least 64"):
        render(ANN, HERE, (48, 96))


def test_same_seed_same_bytes():
    for index in range(12):
        first, again = (sample((7, index), clip=index % 2 == 0) for _ in range(2))
        assert first == again
        for a, b in zip(first.pictures(), again.pictures(), strict=True):
            assert a.tobytes() == b.tobytes()
    assert sample_pair((7, 0)).pictures()[0].tobytes() == sample_pair((7, 0)).pictures()[0].tobytes()


@pytest.mark.parametrize("name, values", LOOKS, ids=[name for name, _ in LOOKS])
def test_every_identity_tag_shows(name, values):
    """In full body, where everything is smallest; the small detail is a few pixels by design."""
    pictures = [render(replace(ANN, **{name: value}), HERE).astype(int) for value in values]
    least = {"detail": 4, "eye_colour": 15}.get(name, 80)
    for a, b in combinations(pictures, 2):
        assert (np.abs(a - b).sum(axis=-1) > 24).sum() >= least


@pytest.mark.parametrize("name, values", SCENES, ids=[name for name, _ in SCENES])
@pytest.mark.parametrize("artist", IDENTITY["artist"])
def test_every_scene_tag_shows(name, values, artist):
    person = replace(ANN, artist=artist)
    pictures = [render(person, replace(HERE, **{name: value})).astype(int) for value in values]
    for a, b in combinations(pictures, 2):
        assert (np.abs(a - b).sum(axis=-1) > 24).sum() >= 25


def test_a_white_floor_is_white_in_every_outdoor_place():
    for background in ("beach", "forest", "city", "night", "sunset", "snow"):
        floors = [render(ANN, Scene(background=background, white_floor=white))[-4:, :12] for white in (0, 1)]
        assert floors[1].min() > 240 and delta_e(*floors).mean() > 8


@pytest.mark.parametrize("scale", [2, 4])
def test_a_larger_scale_is_the_same_picture(scale):
    for artist in IDENTITY["artist"]:
        person = replace(ANN, artist=artist)
        small, large = render(person, HERE).astype(float), render(person, HERE, scale=scale).astype(float)
        assert large.shape == (128 * scale, 96 * scale, 3)
        shrunk = large.reshape(128, scale, 96, scale, 3).mean(axis=(1, 3))
        apart, shifted = (np.abs(np.roll(shrunk, step, 0) - small).mean() for step in (0, 1))
        assert apart < 8 and apart < shifted / 2  # at scale 1 straight edges snap to whole pixels


def test_the_second_frame_is_a_small_motion():
    for index in range(20):
        who, where = character((3, index)), scene((3, index))
        first, second = (frame.astype(int) for frame in render_clip(who, where, seed=index))
        changed = (np.abs(first - second).sum(axis=-1) > 24).mean()
        assert 0 < changed < 0.45
        later = next_frame(index, where)
        assert (later.background, later.pose, later.framing) == (where.background, where.pose, where.framing)


def test_two_characters_stand_on_their_sides():
    other = replace(ANN, hair_colour="green hair", outfit="armor", outfit_colour="blue outfit")
    where = replace(HERE, framing="upper body")
    both, swapped, same = (render_pair(a, b, where).astype(int)
                           for a, b in ((ANN, other), (other, ANN), (ANN, ANN)))
    assert both.shape == (96, 128, 3)
    left_changed, right_changed = ((np.abs(both - same).sum(axis=-1) > 24)[:, half].sum()
                                   for half in (slice(0, 56), slice(72, None)))
    assert left_changed == 0 and right_changed > 500
    assert (np.abs(both - swapped).sum(axis=-1) > 24).sum() > 1000


def test_regions_hold_the_character_s_own_colours():
    """The untagged hue is seen in its own region, and there only."""
    for name, field, tag in (("hair", "hair_hue", "hair_colour"), ("outfit", "outfit_hue", "outfit_colour")):
        person = replace(ANN, **{tag: "blue hair" if name == "hair" else "blue outfit"})
        regions = render_regions(person, HERE)
        low, high = (render(replace(person, **{field: turn}), HERE) for turn in (-1.0, 1.0))
        change = delta_e(low, high)
        assert regions[name].sum() > 100 and change[regions[name]].min() > 8
        other = regions["outfit" if name == "hair" else "hair"]
        assert change[other].max() == 0
        assert not (regions["hair"] & regions["outfit"]).any()


def test_a_pattern_is_seen_at_native_size():
    pictures = [render(replace(ANN, pattern=pattern), HERE).astype(int) for pattern in PATTERNS]
    for a, b in combinations(pictures, 2):
        assert (np.abs(a - b).sum(axis=-1) > 40).sum() > 60


def test_random_pictures_use_most_of_the_grey_scale():
    """Neither washed out nor crushed, whatever the style."""
    for index in range(40):
        picture = sample((11, index)).pictures()[0]
        assert picture.min() < 110 and picture.max() > 200 and picture.std() > 25
