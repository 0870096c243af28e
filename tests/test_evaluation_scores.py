"""Every score on pictures whose answer is known, then the whole way through a tiny model."""

import json

import numpy as np
import pytest
import torch
from evaluation_case import roomy_pipeline
from pipeline_case import originals, untouched

from snapref.evaluation.attributes import ATTRIBUTES, CONDITIONS, attribute_report, chance, marks
from snapref.evaluation.cases import draw_cases
from snapref.evaluation.colours import colour_error, colour_report
from snapref.evaluation.flatness import clipped, codec_report, flatness, flatness_report, psnr
from snapref.evaluation.heldout import batch_losses, heldout_losses, heldout_report
from snapref.evaluation.samples import draw, starting_noise, through_codec, to_pixels

CASES = draw_cases(12, seed=3)
TRUE = np.stack([case.picture for case in CASES])


class Oracle:
    """Knows every true picture by its bytes; of any other it sees nothing right."""

    def __init__(self, cases, blind_to: str = ""):
        self.known = {}
        for case, pixels in zip(cases, to_pixels(np.stack([case.picture for case in cases])), strict=True):
            look = vars(case.person) | vars(case.scene)
            self.known[self.key(pixels)] = {**look, blind_to: "?"}

    @staticmethod
    def key(pixels) -> bytes:
        return pixels.numpy().tobytes()

    def read(self, pixels):
        return [self.known.get(self.key(one), dict.fromkeys(ATTRIBUTES, "?")) for one in pixels]


def test_marks_are_one_for_the_truth_and_nan_for_what_is_hidden():
    found = marks(Oracle(CASES), TRUE, CASES)
    assert found.shape == (12, len(ATTRIBUTES)) and set(found[~np.isnan(found)]) == {1.0}
    eyes = found[:, ATTRIBUTES.index("eye_colour")]
    assert np.array_equal(np.isnan(eyes), [c.scene.expression == "closed eyes" for c in CASES])
    assert set(marks(Oracle(CASES), 255 - TRUE, CASES).ravel()[~np.isnan(found.ravel())]) == {0.0}


def test_attribute_report_has_the_promised_shape():
    samples = {"all_tags": TRUE, "scene_only": TRUE[::-1], "reference": TRUE, "wrong_reference": 255 - TRUE}
    report = attribute_report(Oracle(CASES, blind_to="pose"), samples, CASES)
    assert report["n"] == 12 and list(report["appearance"]) == list(report["scene"]) == list(CONDITIONS)
    assert report["appearance"]["all_tags"] == 1.0 and report["scene"]["all_tags"] == 0.75
    assert report["appearance"]["wrong_reference"] == report["scene"]["wrong_reference"] == 0
    assert 0 < report["appearance"]["scene_only"] < 0.6  # somebody else's picture: right by accident
    assert list(report["per_attribute"]) == list(ATTRIBUTES)
    assert report["per_attribute"]["pose"]["all_tags"] == 0
    assert report["per_attribute"]["skin"]["reference"] == 1
    low, high = report["intervals"]["per_attribute"]["hair_style"]["all_tags"]
    assert low == pytest.approx(0.7575, abs=1e-3) and high == 1  # Wilson's, 12 of 12
    assert report["differences"]["scene: reference - all_tags"] == {"mean": 0.0, "ci95": [0.0, 0.0], "n": 12}
    assert report["differences"]["appearance: reference - wrong_reference"]["mean"] == 1
    assert report["ceiling"]["scene"] == 0.75 and report["ceiling"]["per_attribute"]["outfit"] == 1
    assert report["seen"]["hair_colour"] == 12 > report["seen"]["eye_colour"]
    assert "held_back" not in report
    assert json.loads(json.dumps(report)) == report


def test_held_back_values_are_reported_apart():
    cases = draw_cases(6, split="held_back")
    pictures = np.stack([case.picture for case in cases])
    report = attribute_report(Oracle(cases), {"reference": pictures, "all_tags": 255 - pictures}, cases)
    for name, found in report["held_back"].items():
        rows = [case for case in cases if getattr(case.person, name) == found["value"]]
        assert found["reference"]["n"] == len(rows) > 0
        assert found["reference"]["share"] == 1 and found["all_tags"]["share"] == 0


def test_chance_is_the_share_of_a_value_in_the_bases_data():
    guess = chance(CASES)
    skin = guess[:, ATTRIBUTES.index("skin")]
    dark = np.array([case.person.skin == "dark skin" for case in CASES])
    assert dark.any() and skin[dark] == pytest.approx(0.08, abs=0.02)
    assert skin[~dark] == pytest.approx(0.31, abs=0.04)
    assert guess[:, ATTRIBUTES.index("background")] == pytest.approx(1 / 8, abs=0.03)
    assert np.array_equal(np.isnan(guess), np.isnan(marks(Oracle(CASES), TRUE, CASES)))


def test_colour_error_is_zero_for_the_truth_and_sees_another_hue():
    for case in CASES[:4]:
        assert colour_error(case.picture, case, "hair") == 0
    others = {"twin_reference": np.roll(TRUE, 1, axis=-1), "wrong_reference": TRUE[::-1]}
    report = colour_report({"reference": TRUE, **others}, CASES)
    assert report["n"] == 12 and report["hair"]["reference"]["mean"] == 0
    assert report["hair"]["wrong_reference"]["mean"] > 10
    assert report["outfit"]["gap"]["n"] == report["outfit"]["reference"]["n"] <= 12


def test_flatness_counts_neighbours_across_and_down():
    picture = np.full((1, 4, 4, 3), 100, np.uint8)
    assert flatness(picture) == 1
    picture[0, 0, 0] += 3
    assert flatness(picture) == 1
    picture[0, 0, 0, 1] += 1
    assert flatness(picture) == pytest.approx(1 - 2 / 24)  # a corner has two of the 24 pairs
    assert clipped(np.zeros((1, 2, 2, 3), np.uint8)) == 1 and clipped(picture) == 0


def test_psnr_and_the_codecs_report():
    black = np.zeros((1, 4, 4, 3), np.uint8)
    assert psnr(black + np.uint8(10), black) == pytest.approx(28.13, abs=0.01)
    decoded = through_codec(roomy_pipeline().codec, TRUE)
    assert decoded.shape == TRUE.shape and decoded.dtype == np.uint8
    report = codec_report(decoded, TRUE)
    assert report["worst"] <= report["psnr"] < 40 and report["n"] == 12
    assert report["flatness"]["renderer"]["mean"] > 0.6
    assert set(flatness_report({"a": TRUE})) == {"flatness", "clipped"}


def test_samples_do_not_depend_on_the_batch_and_start_from_the_same_noise():
    pipe, some = roomy_pipeline(), CASES[:3]
    options = {"steps": 2, "quiet": True}
    one, three = (draw(pipe, some, "reference", batch=b, **options) for b in (1, 3))
    assert one.shape == (3, 128, 96, 3) and np.abs(one.astype(int) - three).max() <= 1
    conditions = ("all_tags", "scene_only", "reference", "wrong_reference", "twin_reference")
    assert len({draw(pipe, some, condition, **options).tobytes() for condition in conditions}) == 5
    assert torch.equal(starting_noise(pipe, 5, 0)[:3], starting_noise(pipe, 3, 0))


def test_heldout_losses_are_those_of_single_pairs_and_leave_no_trace():
    pipe = roomy_pipeline()
    before = originals(pipe)
    losses, sigmas = heldout_losses(pipe, CASES[:4], seed=1, batch=3, quiet=True)
    assert untouched(pipe, before)
    noise = starting_noise(pipe, 4, 2)
    for i in range(4):
        alone = batch_losses(pipe, CASES[i : i + 1], torch.tensor(sigmas[i : i + 1]), noise[i : i + 1])
        for name, loss in alone.items():
            assert loss.item() == pytest.approx(losses[name][i], rel=1e-5)
    for other in ("wrong", "none"):
        assert not np.allclose(losses["right"], losses[other])


def test_heldout_loss_is_the_pipelines_own_reading():
    """The batched memory gives what a run's denoiser gives with the same cache, picture by picture."""
    from snapref.evaluation.heldout import latents_of
    from snapref.sampling.denoiser import Denoiser
    from snapref.sampling.settings import Settings
    from snapref.training.flow import add_noise, velocity_loss

    pipe, case, sigma = roomy_pipeline(), CASES[0], torch.tensor([0.8])
    noise = starting_noise(pipe, 1, 0)
    found = batch_losses(pipe, [case], sigma, noise)
    clean = latents_of(pipe, [case.picture])
    noisy = add_noise(clean, noise, sigma)
    context = pipe.contexts([case.prompt("scene_only")])
    settings = Settings(guidance=1.0).resolved(pipe.config)
    for name, caches, target in (
        ("right", [pipe.encode(case.reference)], pipe.adapter.target),
        ("wrong", [pipe.encode(case.wrong_reference)], pipe.adapter.target),
        ("none", [], None),
    ):
        with Denoiser(pipe.model, context, context, settings, 1, caches, target) as denoise:
            velocity = (noisy - denoise(noisy, 0.8)) / 0.8
        assert found[name].item() == pytest.approx(velocity_loss(velocity, clean, noise).item(), rel=1e-4)


def test_heldout_report():
    right = np.array([0.1, 0.2, 0.3])
    losses = {"right": right, "wrong": right + 0.1, "none": np.full(3, 0.3)}
    report = heldout_report(losses, np.array([0.1, 0.8, 0.9]))
    assert {k: report[k] for k in ("right", "wrong", "none", "gap", "n")} == {
        "right": 0.2, "wrong": 0.3, "none": 0.3, "gap": 0.1, "n": 3
    }  # fmt: skip
    assert report["ci95"] == pytest.approx([0.1, 0.1])
    assert report["bands"]["above 0.7"]["right"] == 0.25 and report["bands"]["0.3 to 0.7"] is None
