"""Samplers, against golden trajectories on a denoiser that can be written down."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from snapref.sampling.samplers import SAMPLERS, Cancelled, NonFiniteLatent, sample, step_noise
from snapref.sampling.schedule import sigmas

GOLDEN = load_file(Path(__file__).parent / "golden/samplers.safetensors")
MEAN, SPREAD, START = GOLDEN["mu"], GOLDEN["std"].item(), GOLDEN["x_init"]


def denoise(x, sigma):
    """The exact denoised mean when pictures are normal with mean MEAN and standard deviation SPREAD."""
    alpha = 1 - sigma
    gain = alpha * SPREAD**2 / (alpha**2 * SPREAD**2 + sigma**2)
    return MEAN + gain * (x - alpha * MEAN)


def trajectory(sampler, steps, **options):
    visited = []

    def keep(step, sigma, x, denoised):
        visited.append(x)

    last = sample(denoise, START, sigmas("simple", steps), sampler, callback=keep, **options)
    return torch.stack([*visited, last])


@pytest.mark.parametrize("key, sampler, steps, options", [
    ("euler8", "euler", 8, {}),
    ("euler28", "euler", 28, {}),
    ("er_sde8", "er_sde", 8, {"noise": GOLDEN["er_sde_noises"]}),
    ("er_sde28", "er_sde", 28, {"noise": GOLDEN["er_sde_noises"]}),
    ("er_sde28_s_noise0", "er_sde", 28, {"s_noise": 0.0}),
    ("er_sde8_seed42_default_noise", "er_sde", 8, {"seed": 42}),
    ("euler_ancestral8", "euler_ancestral", 8, {"noise": GOLDEN["er_sde_noises"]}),
])
def test_golden_trajectories(key, sampler, steps, options):
    torch.testing.assert_close(trajectory(sampler, steps, **options), GOLDEN[key], atol=5e-6, rtol=0)


def test_partly_noised_start():
    start = 0.6 * START + (1 - 0.6) * MEAN
    torch.testing.assert_close(start, GOLDEN["noise_scaling_0.6"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_perfect_denoiser_is_reached(sampler):
    """Where D is the same picture everywhere, every sampler ends at it."""
    end = sample(lambda x, s: MEAN, START, sigmas("simple", 5), sampler)
    assert torch.equal(end, MEAN)


def test_euler_halves_its_error_with_twice_the_steps():
    """For normal pictures the flow's own end is known: the noise, as far from the mean in deviations as before."""
    exact = MEAN + SPREAD * START
    errors = [(sample(denoise, START, sigmas("simple", n)) - exact).abs().mean().item() for n in (50, 100, 200)]
    assert errors[0] < 0.05
    assert [a / b for a, b in zip(errors, errors[1:], strict=False)] == pytest.approx([2.0, 2.0], rel=0.1)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_second_pass_is_the_end_of_a_longer_run(sampler):
    """From the latent that a run has at half, the last half of its steps ends where the run ends."""
    levels, seen, noises = sigmas("simple", 8), [], list(GOLDEN["er_sde_noises"])
    end = sample(denoise, START, levels, sampler, noise=noises, s_noise=0.0, callback=lambda i, s, x, d: seen.append(x))
    half = sigmas("simple", 4, denoise=0.5)
    assert torch.equal(half, levels[-5:])
    again = sample(denoise, seen[4], half, sampler, noise=noises, s_noise=0.0)
    # er_sde looks back two steps, and a new run has none to look back at.
    torch.testing.assert_close(again, end, atol=0.05 if sampler == "er_sde" else 1e-6, rtol=0)


@pytest.mark.parametrize("sampler", ["er_sde", "euler_ancestral"])
def test_noise_level_is_kept(sampler):
    """Pictures that are all one point p: at every sigma s the latent is (1 - s) · p + s · unit noise."""
    torch.manual_seed(0)
    start = torch.randn(200_000)
    spreads = []

    def look(step, sigma, x, denoised):
        spreads.append((x - (1 - sigma) * 2.0).std().item() / sigma)

    sample(lambda x, s: torch.full_like(x, 2.0), start, sigmas("simple", 12), sampler, callback=look)
    assert spreads == pytest.approx([1.0] * 12, abs=0.01)


def test_seed_decides_the_noise_and_euler_needs_none():
    ends = [trajectory("er_sde", 8, seed=seed)[-1] for seed in (1, 1, 2)]
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])
    assert torch.equal(trajectory("euler", 8, seed=1), trajectory("euler", 8, seed=2))
    first = step_noise(START, 41)()
    assert torch.equal(first, torch.randn(START.shape, generator=torch.Generator().manual_seed(42)))


@pytest.mark.parametrize("stop", ["false", "raise"])
def test_cancel(stop):
    calls = []

    def callback(step, sigma, x, denoised):
        calls.append(step)
        if step == 2:
            if stop == "raise":
                raise Cancelled("enough")
            return False

    with pytest.raises(Cancelled):
        sample(denoise, START, sigmas("simple", 8), callback=callback)
    assert calls == [0, 1, 2]


def test_a_latent_that_is_not_finite_names_the_step():
    def broken(x, sigma):
        return x * float("nan") if sigma < 0.85 else denoise(x, sigma)

    levels = sigmas("simple", 8)
    step = int((levels >= 0.85).sum())
    wanted = rf"step {step + 1} of 8 \(sigma {levels[step]:.4f}\)"
    with pytest.raises(NonFiniteLatent, match=wanted) as caught:
        sample(broken, START, levels)
    assert caught.value.step == step


def test_unknown_sampler():
    with pytest.raises(ValueError, match="sampler is 'dpm'.*euler, er_sde, euler_ancestral"):
        sample(denoise, START, sigmas("simple", 4), "dpm")
