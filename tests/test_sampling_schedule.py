"""Sigmas, against golden numbers of three public programs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from snapref.sampling.schedule import SCHEDULES, beta_quantile, shifted, sigma_table, sigmas

GOLDEN = load_file(Path(__file__).parent / "golden/sigmas.safetensors")
RUNS = [
    (name, steps, denoise, f"{name}{steps}{suffix}")
    for name in SCHEDULES
    for steps in (1, 4, 8, 10, 20, 28, 30, 50)
    for denoise, suffix in ((1.0, ""), (0.4, "_denoise0.4"), (0.55, "_denoise0.55"))
    if f"{name}{steps}{suffix}" in GOLDEN
]


@pytest.mark.parametrize("name, steps, denoise, key", RUNS)
def test_golden_sigmas(name, steps, denoise, key):
    torch.testing.assert_close(sigmas(name, steps, denoise=denoise), GOLDEN[key], atol=1e-6, rtol=0)


def test_every_golden_run_is_compared():
    others = {"table1000", "sigma_first_er_sde", "timestep_of_0.7"}
    assert {key for *_, key in RUNS} == set(GOLDEN) - others
    torch.testing.assert_close(sigma_table(), GOLDEN["table1000"], atol=1e-6, rtol=0)
    assert shifted(0.9999) == pytest.approx(GOLDEN["sigma_first_er_sde"].item(), abs=1e-12)


@pytest.mark.parametrize("file", ["kohya_sigmas", "diffusers_sigmas"])
def test_shift_is_that_of_other_programs(file):
    """They shift an even line from 1 to 0."""
    for key, wanted in load_file(Path(__file__).parent / f"golden/{file}.safetensors").items():
        steps = len(wanted) - 1
        even = torch.linspace(1, 0, steps + 1)
        if key == "diffusers.fm_euler_sigmas28_shift3":  # its own line stops at the table's last sigma
            even = torch.cat([torch.linspace(1, sigma_table()[0].item(), steps), torch.zeros(1)])
        torch.testing.assert_close(shifted(even), wanted, atol=1e-6, rtol=0)


def test_quantiles_against_scipy():
    stats = pytest.importorskip("scipy.stats", reason="scipy is absent; golden/sigmas covers the schedule")
    levels = np.linspace(0, 1, 501)
    for shape in (0.3, 0.6, 1.0):
        wanted = stats.beta.ppf(levels, shape, shape)
        np.testing.assert_allclose(beta_quantile(levels, shape), wanted, atol=1e-12)


def test_quantiles_by_hand():
    """Beta(1/2, 1/2) is the arcsine law: its quantile is sin²(pi p / 2)."""
    levels = np.linspace(0, 1, 101)
    np.testing.assert_allclose(beta_quantile(levels, 0.5), np.sin(np.pi * levels / 2) ** 2, atol=1e-12)
    assert beta_quantile(np.array([0.5]), 0.6) == 0.5  # a tie when rounded: it must not fall below


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 100, 333, 1000])
def test_sigmas_fall_to_zero(name, steps):
    for denoise in (1.0, 0.5) if steps <= 500 else (1.0,):
        levels = sigmas(name, steps, denoise=denoise)
        assert levels[-1] == 0 and (levels.diff() < 0).all()
        assert len(levels) == steps + 1 or name == "beta"
        assert (levels[0] == 1) == (denoise == 1) or name == "beta"


@given(st.sampled_from(SCHEDULES), st.integers(1, 60), st.floats(0.1, 1.0))
def test_denoise_keeps_the_end_of_a_longer_schedule(name, steps, denoise):
    longer = sigmas(name, int(steps / denoise))
    part = sigmas(name, steps, denoise=denoise)
    assert torch.equal(part, longer[-(steps + 1) :])


@given(st.floats(0.0, 1.0), st.floats(0.5, 8.0))
def test_the_shift_can_be_undone(u, shift):
    """Shifting by s and then by 1/s is no shift at all; 0 and 1 stay where they are."""
    assert shifted(shifted(u, shift), 1 / shift) == pytest.approx(u, abs=1e-9)
    assert shifted(0.0, shift) == 0 and shifted(1.0, shift) == pytest.approx(1)


@pytest.mark.parametrize("arguments, words", [
    (("karras", 8), "schedule is 'karras'"),
    (("simple", 0), "steps is 0"),
    (("simple", 8, 3.0, 0.0), "denoise is 0.0"),
    (("simple", 8, 3.0, float("nan")), "denoise is nan"),
])
def test_bad_numbers_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        sigmas(*arguments)
