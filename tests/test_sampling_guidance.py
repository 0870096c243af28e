"""The identities that guidance must keep, on random latents."""

import warnings

import pytest
import torch

from snapref.config import NANO
from snapref.sampling.guidance import Projection, apg, apg_two_scale, cfg, rescale, split, two_scale
from snapref.sampling.passes import Pass, combine, plan, warn_of_ignored
from snapref.sampling.settings import Settings

torch.manual_seed(0)
POSITIVE, NEGATIVE, UNREAD = (torch.randn(2, 16, 1, 6, 5) for _ in range(3))


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def settings(**changes):
    return Settings(**changes).resolved(NANO)


def test_cfg_at_its_ends():
    close(cfg(POSITIVE, NEGATIVE, 1.0), POSITIVE)
    close(cfg(POSITIVE, NEGATIVE, 0.0), NEGATIVE)


def test_cfg_is_the_same_on_velocities():
    x, sigma = torch.randn_like(POSITIVE), 0.7
    velocity = cfg((x - POSITIVE) / sigma, (x - NEGATIVE) / sigma, 4.5)
    close(x - sigma * velocity, cfg(POSITIVE, NEGATIVE, 4.5))


def test_two_scales_contain_both_two_pass_cases():
    close(two_scale(POSITIVE, NEGATIVE, UNREAD, 4.5, 1.0), cfg(POSITIVE, NEGATIVE, 4.5))
    close(two_scale(POSITIVE, NEGATIVE, UNREAD, 4.5, 4.5), cfg(POSITIVE, UNREAD, 4.5))


def test_apg_with_eta_one_alone_is_cfg():
    guided, _ = apg(POSITIVE, NEGATIVE, 4.5, Projection())
    close(guided, cfg(POSITIVE, NEGATIVE, 4.5))
    guided, _ = apg_two_scale(POSITIVE, NEGATIVE, UNREAD, 4.5, 2.5, Projection())
    close(guided, two_scale(POSITIVE, NEGATIVE, UNREAD, 4.5, 2.5))


def test_split_is_orthogonal_and_whole_per_sample():
    parallel, orthogonal = split(NEGATIVE, POSITIVE)
    close(parallel + orthogonal, NEGATIVE)
    close((orthogonal * POSITIVE).flatten(1).sum(1), torch.zeros(2))
    close(torch.cat([split(NEGATIVE[i:i + 1], POSITIVE[i:i + 1])[0] for i in range(2)]), parallel)


def test_apg_by_hand():
    """Two numbers a latent: the difference (3, 4) is 3 along the picture (2, 0) and 4 across it."""
    positive = torch.tensor([2.0, 0.0]).reshape(1, 2, 1, 1, 1)
    negative = positive - torch.tensor([3.0, 4.0]).reshape(1, 2, 1, 1, 1)
    guided, (running,) = apg(positive, negative, 3.0, Projection(eta=0.5, threshold=2.5))
    # norm 5 is cut to 2.5: (1.5, 2); half of the parallel part: (0.75, 2); twice that is added
    assert guided.flatten().tolist() == pytest.approx([3.5, 4.0])
    assert running.flatten().tolist() == pytest.approx([3.0, 4.0])  # the buffer is kept before the cut
    guided, (running,) = apg(positive, negative, 2.0, Projection(momentum=-0.5), (running,))
    assert running.flatten().tolist() == pytest.approx([1.5, 2.0])
    assert guided.flatten().tolist() == pytest.approx([3.5, 2.0])


def test_threshold_is_per_sample_and_only_cuts():
    difference = torch.cat([POSITIVE[:1] * 100, NEGATIVE[:1] * 1e-3])
    cut, _ = Projection(threshold=5.0)(difference, POSITIVE, None)
    assert cut[0].norm().item() == pytest.approx(5.0, rel=1e-4)
    close(cut[1], difference[1])


def test_rescale():
    guided = cfg(POSITIVE, NEGATIVE, 6.0)
    close(rescale(guided, POSITIVE, 0.0), guided)
    close(rescale(guided, POSITIVE, 1.0).flatten(1).std(1), POSITIVE.flatten(1).std(1))
    close(rescale(guided, POSITIVE, 0.3), 0.3 * rescale(guided, POSITIVE, 1.0) + 0.7 * guided)


POS, NEG = (lambda reads: Pass(True, reads)), (lambda reads: Pass(False, reads))


@pytest.mark.parametrize("changes, reading, wanted", [
    ({}, False, [POS(0.0), NEG(0.0)]),
    ({"guidance": 1.0}, False, [POS(0.0)]),
    ({"ref_guidance": 2.0}, False, [POS(0.0), NEG(0.0)]),
    ({}, True, [POS(1.0), NEG(0.0)]),
    ({"guidance": 1.0}, True, [POS(1.0)]),
    ({"guidance": 1.0, "ref_in_uncond": True}, True, [POS(1.0)]),
    ({"ref_in_uncond": True}, True, [POS(1.0), NEG(1.0)]),
    ({"ref_guidance": 1.0}, True, [POS(1.0), NEG(1.0)]),
    ({"ref_guidance": 3.0, "guidance": 3.0}, True, [POS(1.0), NEG(0.0)]),
    ({"ref_guidance": 2.0, "guidance": 3.0}, True, [POS(1.0), NEG(1.0), NEG(0.0)]),
    ({"ref_guidance": 2.0, "guidance": 1.0}, True, [POS(1.0), NEG(1.0), NEG(0.0)]),
    ({"fidelity": 0.0}, True, [POS(1.0), NEG(1.0)]),
    ({"fidelity": 0.75}, True, [POS(1.0), NEG(0.25)]),
])
def test_plan(changes, reading, wanted):
    assert plan(settings(**changes), reading) == tuple(wanted)


def test_combine_is_the_pure_functions():
    s = settings(guidance=4.0, ref_guidance=2.0)
    empty = (None, None)
    assert combine((POSITIVE,), s, empty)[0] is POSITIVE
    close(combine((POSITIVE, NEGATIVE), s, empty)[0], cfg(POSITIVE, NEGATIVE, 4.0))
    close(combine((POSITIVE, NEGATIVE, UNREAD), s, empty)[0], two_scale(POSITIVE, NEGATIVE, UNREAD, 4.0, 2.0))
    s = s.replace(apg_eta=0.3, apg_momentum=-0.5, apg_threshold=3.0, cfg_rescale=0.7)
    projection = Projection(0.3, -0.5, 3.0)
    buffers, expected = empty, empty
    for _ in range(2):
        guided, buffers = combine((POSITIVE, NEGATIVE, UNREAD), s, buffers)
        plain, expected = apg_two_scale(POSITIVE, NEGATIVE, UNREAD, 4.0, 2.0, projection, expected)
        close(guided, rescale(plain, POSITIVE, 0.7))


@pytest.mark.parametrize("changes", [{"ref_in_uncond": True}, {"ref_guidance": 2.0}])
def test_fidelity_that_means_nothing_is_said(changes):
    with pytest.warns(UserWarning, match="fidelity 0.5 is ignored"):
        warn_of_ignored(settings(fidelity=0.5, **changes))


def test_fidelity_without_a_negative_branch_is_said():
    with pytest.warns(UserWarning, match="fidelity 0.5 is ignored: guidance is 1, so no negative branch reads"):
        warn_of_ignored(settings(guidance=1.0, fidelity=0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_ignored(settings(guidance=1.0, apg_eta=0.5, cfg_rescale=0.5))  # there they change nothing, as they say
