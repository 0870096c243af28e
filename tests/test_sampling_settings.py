"""Settings: checked when made, with sentences that name field, value and range; stored and read back."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapref.config import BASE, NANO
from snapref.sampling.settings import VERSION, Settings, SettingsError


@pytest.mark.parametrize("changes, sentence", [
    ({"strength": float("nan")}, "strength is nan; it must be a number from 0 to 2"),
    ({"strength": -0.1}, "strength is -0.1; it must be a number from 0 to 2"),
    ({"strength": "1"}, "strength is '1'; it must be a number from 0 to 2"),
    ({"strength": True}, "strength is True; it must be a number from 0 to 2"),
    ({"strength": None}, "strength is None; it must be a number from 0 to 2"),
    ({"fidelity": 1.5}, "fidelity is 1.5; it must be a number from 0 to 1"),
    ({"guidance": float("inf")}, "guidance is inf; it must be a number from 0 to 100"),
    ({"steps": 0}, "steps is 0; it must be a whole number from 1 to 1000"),
    ({"steps": 2.5}, "steps is 2.5; it must be a whole number from 1 to 1000"),
    ({"seed": -1}, "seed is -1; it must be a whole number from 0 to 9223372036854775806"),
    ({"denoise": 0}, "denoise is 0; it must be a number above 0 to 1"),
    ({"size": 128}, "size is 128; it must be (height, width) in pixels"),
    ({"size": (64, 0)}, "size is (64, 0); both sides must be whole, from 1 to 4096 pixels"),
    ({"size": (64.5, 64)}, "size is (64.5, 64); both sides must be whole, from 1 to 4096 pixels"),
    ({"sampler": "dpm"}, "sampler is 'dpm'; it must be one of euler, er_sde, euler_ancestral"),
    ({"mode": 1}, "mode is 1; it must be a text"),
    ({"ref_in_uncond": "yes"}, "ref_in_uncond is 'yes'; it must be true or false"),
    ({"ref_start": 0.6, "ref_end": 0.4}, "ref_start 0.6 is not below ref_end 0.4; strength 0 reads nothing"),
    ({"ref_in_uncond": True, "ref_guidance": 2},
     "ref_in_uncond is ref_guidance 1 and contradicts ref_guidance 2.0; give one"),
    ({"steps": 600, "denoise": 0.5}, "steps 600 at denoise 0.5 asks for 1200; at most 1000 steps differ"),
])
def test_refused(changes, sentence):
    with pytest.raises(SettingsError) as caught:
        Settings(**changes)
    assert str(caught.value) == sentence


def test_unknown_names_are_told_the_nearest():
    with pytest.raises(SettingsError, match="guidence is not a setting; did you mean guidance?"):
        Settings().replace(guidence=3.0)
    with pytest.raises(SettingsError, match="zzz is not a setting; settings are steps, sampler"):
        Settings.from_dict({"zzz": 1})


def test_numpy_numbers_become_plain_ones():
    settings = Settings(steps=np.int64(8), strength=np.float32(0.5), size=np.array([128, 96]))
    assert (settings.steps, settings.strength, settings.size) == (8, 0.5, (128, 96))
    assert {type(settings.steps), type(settings.size[0])} == {int} and type(settings.strength) is float


def test_none_takes_the_models_default():
    for model in (NANO, BASE):
        settings = Settings().resolved(model)
        assert settings.steps == model.default_steps and settings.guidance == model.default_guidance
        assert settings.size == model.default_size
        assert settings.ref_megapixels == model.default_ref_megapixels
        optional = {"mode", "ref_caption", "ref_guidance", "weights", "block_weights"}
        left = {f.name for f in dataclasses.fields(settings) if getattr(settings, f.name) is None}
        assert left == optional
    assert Settings(steps=3, guidance=1.0).resolved(NANO).steps == 3


@given(
    steps=st.integers(1, 100), strength=st.floats(0, 2), seed=st.integers(0, 2**62), fidelity=st.floats(0, 1),
    guidance=st.none() | st.floats(0, 100),
    size=st.none() | st.tuples(st.integers(1, 4096), st.integers(1, 4096)),
    ref_caption=st.none() | st.text(max_size=20), sampler=st.sampled_from(["euler", "er_sde"]),
)  # fmt: skip
def test_stored_and_read_back(**values):
    settings = Settings(**values)
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_other_versions():
    old = {"version": 1, "steps": 8, "strength": 0.5}  # a file from before most fields
    assert Settings.from_dict(old) == Settings(steps=8, strength=0.5)
    with pytest.raises(SettingsError, match=f"version {VERSION + 1}, this snapref reads {VERSION}"):
        Settings.from_dict({"version": VERSION + 1})
