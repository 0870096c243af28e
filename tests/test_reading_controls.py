"""What every control of reading must equal, at both scales: numbers against numbers, and model calls counted."""


import copy

import pytest
import torch
from pipeline_case import originals, picture, untouched
from reading_case import OTHER, PROMPT, SCALES, cache_of, draw, error, noise_of, pipe_of, work

from snapref.anima.attention import KeyGroup, attend
from snapref.reference.cache import ReferenceCache
from snapref.reference.stitch import stitch
from snapref.sampling.pipeline import Pipeline
from snapref.sampling.samplers import Cancelled
from snapref.sampling.settings import SettingsError

CLOSE = 2e-5  # of the largest value; fp32
BOTH = {"ref_in_uncond": True}

pytestmark = pytest.mark.parametrize("scale", SCALES)


def two(scale) -> ReferenceCache:
    return ReferenceCache.concat([cache_of(scale, 1), cache_of(scale, 2)])


def test_weights_of_one_are_the_concatenation(scale):
    plain = draw(scale, reference=two(scale))
    assert torch.equal(draw(scale, reference=two(scale), weights=[1, 1]).latents, plain.latents)
    listed = draw(scale, reference=[cache_of(scale, 1), cache_of(scale, 2)], weights=(1, 1))
    assert torch.equal(listed.latents, plain.latents)


def test_a_weight_of_two_is_the_picture_twice(scale):
    one = cache_of(scale, 1)
    twice = draw(scale, reference=[one, one], **BOTH).latents
    for options in ({"weights": [2]}, {"strength": 2}, {"weights": [4], "strength": 0.5}, {"block_weights": "0-:2"}):
        assert error(draw(scale, reference=one, **options, **BOTH).latents, twice) < CLOSE
    assert error(draw(scale, reference=[one, one], weights=[1.75, 0.25], **BOTH).latents, twice) < CLOSE
    assert error(draw(scale, reference=one, **BOTH).latents, twice) > 1e-3


def test_a_weight_of_zero_is_no_picture_and_no_work(scale):
    pipe, pictures = pipe_of(scale), [picture(1, (48, 48)), picture(2)]
    alone = draw(scale, reference=cache_of(scale, 2))
    with work(pipe) as done:
        silent = draw(scale, reference=pictures, weights=[0, 1])
    assert done["reads"] == 1 and silent.reference.tokens == cache_of(scale, 2).tokens
    assert torch.equal(silent.latents, alone.latents) and silent.settings.weights == (0, 1)
    assert torch.equal(draw(scale, reference=two(scale), weights=[0, 1]).latents, alone.latents)
    base = draw(scale)
    nowhere = torch.zeros(64, 48)
    for options in (
        {"weights": [0, 0]}, {"block_weights": "0-:0"}, {"strength": 0}, {"regions": [nowhere, nowhere]}
    ):  # fmt: skip
        with work(pipe) as done:
            off = draw(scale, reference=pictures, **options)
        assert done["reads"] == 0 and torch.equal(off.latents, base.latents)


def test_block_weights(scale):
    one, blocks = cache_of(scale, 1), pipe_of(scale).config.dit.blocks
    plain = draw(scale, reference=one)
    for same in ([1] * blocks, "0-:1", ",".join(["1"] * blocks)):
        assert torch.equal(draw(scale, reference=one, block_weights=same).latents, plain.latents)
    listed = [0.0] + [1.5] * (blocks - 1)
    found = draw(scale, reference=one, block_weights=listed)
    assert found.settings.block_weights == tuple(listed)
    assert torch.equal(draw(scale, reference=one, block_weights="0:0, 1-:1.5").latents, found.latents)
    assert error(found.latents, plain.latents) > 1e-3
    with pytest.raises(SettingsError, match=f"block_weights has 1 entries for {blocks} blocks; give one per block"):
        draw(scale, reference=one, block_weights=[1.0])
    with pytest.raises(SettingsError, match=f"names blocks 99 to 99; the model has 0 to {blocks - 1}"):
        draw(scale, reference=one, block_weights="99:0")


@pytest.mark.parametrize("changes, branches, same_as", [
    ({"ref_guidance": 1.0}, 2, BOTH),
    ({"ref_guidance": 3.0, "guidance": 3.0}, 2, {"guidance": 3.0}),
    ({"ref_guidance": 2.0}, 3, None),
    ({"ref_guidance": 1.0 + 1e-6}, 3, BOTH),  # three branches that must come to the two
    ({"ref_guidance": 3.0 + 1e-6, "guidance": 3.0}, 3, {"guidance": 3.0}),
    ({"fidelity": 1.0}, 2, {}),
    ({"fidelity": 0.0}, 2, BOTH),
    ({"guidance": 1.0}, 1, None),
    ({"apg_eta": 1.0, "apg_threshold": 1e6}, 2, {}),
    ({"ref_guidance": 2.0, "apg_threshold": 1e6}, 3, {"ref_guidance": 2.0}),
    ({"cfg_rescale": 0.0}, 2, {}),
])
def test_guidance_identities_by_numbers_and_by_calls(scale, changes, branches, same_as):
    reference = {"reference": two(scale), "weights": [0.5, 1.5], "negative": OTHER}
    with work(pipe_of(scale)) as done:
        found = draw(scale, **reference, **changes)
    assert done["rows"] == [branches] * 2 and found.branches == 2 * branches
    if same_as is not None:
        assert error(found.latents, draw(scale, **reference, **same_as).latents) < 1e-4


def test_off_is_the_base_bit_for_bit_in_both_branches(scale):
    pipe = pipe_of(scale)
    before, base = originals(pipe), draw(scale, negative=OTHER)
    bare = Pipeline(pipe.model, pipe.text, pipe.codec, pipe.config, None)
    alone = bare(PROMPT, negative=OTHER, steps=2, size=(64, 48), quiet=True)
    assert torch.equal(alone.latents, base.latents)
    for options in ({}, BOTH, {"ref_guidance": 2.0}):
        off = draw(scale, reference=two(scale), negative=OTHER, strength=0, **options)
        assert torch.equal(off.latents, base.latents)
        with pytest.raises(Cancelled):
            draw(scale, reference=two(scale), callback=lambda step, *rest: step < 1, **options)
        assert untouched(pipe, before)
        assert torch.equal(draw(scale, negative=OTHER).latents, base.latents)


def test_the_base_is_itself_after_an_exception_inside_the_model(scale):
    """Not in a callback: in the middle of a step, with the target branch in the weights."""
    pipe = pipe_of(scale)
    before, base, calls = originals(pipe), draw(scale), []

    def breaks(module, inputs):
        calls.append(module)
        if len(calls) == 2:
            raise KeyboardInterrupt

    hook = pipe.model.blocks[1].register_forward_pre_hook(breaks)
    with pytest.raises(KeyboardInterrupt):
        draw(scale, reference=two(scale))
    hook.remove()
    assert len(calls) == 2 and untouched(pipe, before) and torch.equal(draw(scale).latents, base.latents)


def test_a_batch_with_two_references_is_two_single_runs(scale):
    prompts, noise = [PROMPT, OTHER], noise_of(scale, 2)
    references = [[picture(1, (48, 48)), picture(2)], two(scale)]
    regions = [["left", None], [None, (0, 0.5, 1, 1)]]
    options = {"weights": [0.5, 1.5], "fidelity": 0.5, "block_weights": "0:0.5", "negative": ["smile", ""]}
    batch = draw(scale, prompts, references=references, regions=regions, noise=noise, **options)
    for i in range(2):
        single = options | {"negative": options["negative"][i], "noise": noise[i : i + 1]}
        alone = draw(scale, prompts[i], references[i], regions=regions[i], **single)
        assert error(batch.latents[i : i + 1], alone.latents) < CLOSE
    assert error(batch.latents[:1], batch.latents[1:]) > 1e-2


def test_one_reference_with_regions_serves_every_prompt(scale):
    prompts, noise = [PROMPT, OTHER], noise_of(scale, 2)
    options = {"regions": ["top", (0, 0.5, 1, 1)], "ref_guidance": 2.0, "ref_end": 0.5}
    batch = draw(scale, prompts, two(scale), noise=noise, **options)
    for i in range(2):
        alone = draw(scale, prompts[i], two(scale), noise=noise[i : i + 1], **options)
        assert error(batch.latents[i : i + 1], alone.latents) < CLOSE


def test_regions_of_everything_and_of_nothing(scale):
    """Everything is no region, bit for bit; nothing is a picture that is not read, nor encoded."""
    pictures = [picture(1, (48, 48)), picture(2)]
    plain = draw(scale, reference=pictures)
    for every in ("all", (0, 0, 1, 1), torch.ones(8, 6)):
        assert torch.equal(draw(scale, reference=pictures, regions=[every, every]).latents, plain.latents)
    with work(pipe_of(scale)) as done:
        one = draw(scale, reference=pictures, regions=[torch.zeros(8, 6), None])
    assert done["reads"] == 1
    assert torch.equal(one.latents, draw(scale, reference=pictures[1]).latents)
    halves = draw(scale, reference=[pictures[0]] * 2, regions=["left", "right"], size=(64, 64))
    whole = draw(scale, reference=pictures[0], size=(64, 64))
    assert error(halves.latents, whole.latents) < CLOSE  # each token reads the picture once, whichever half


def test_a_batch_of_arrays_is_its_pictures(scale):
    pictures = torch.rand(2, 3, 48, 32, generator=torch.Generator().manual_seed(0))
    batch = draw(scale, reference=pictures)
    assert batch.reference.tokens == (6, 6)
    for same in (list(pictures), pictures.permute(0, 2, 3, 1).numpy()):
        assert torch.equal(draw(scale, reference=same).latents, batch.latents)


@pytest.mark.parametrize("options", [
    {}, {"weights": [0.5, 1.5], "regions": ["left", None], "ref_guidance": 2.0, "block_weights": "0:0.5"},
])  # fmt: skip
@pytest.mark.parametrize("dtype, bound", [(torch.float16, 1.5e-2), (torch.bfloat16, 0.12)])
def test_half_precision_stays_within_its_bound(scale, dtype, bound, options):
    """Two steps, plain and with weights, regions, block weights and three branches, against the same weights in fp32.

    The bound is a share of the largest latent value; guidance makes the rounding of a branch up to three times
    as large.
    """
    pipe = pipe_of(scale)
    low = copy.deepcopy(pipe.model).to(dtype)
    wide = copy.deepcopy(low).float()  # the same numbers
    found = {}
    for model in (low, wide):
        run = Pipeline(model, pipe.text, pipe.codec, pipe.config, pipe.adapter)
        pictures = [picture(1, (48, 48)), picture(2)]
        found[model.dtype] = run(PROMPT, pictures, steps=2, size=(64, 48), quiet=True, **options).latents
    assert error(found[dtype], found[torch.float32]) < bound


def test_a_second_pass_at_another_size_keeps_everything(scale):
    options = {"weights": [0.5, 1.5], "regions": ["left", "right"], "ref_guidance": 2.0, "block_weights": "0:0.5"}
    first = draw(scale, reference=two(scale), **options)
    bigger = torch.nn.functional.interpolate(first.latents[:, :, 0], scale_factor=2)[:, :, None]
    second = draw(
        scale, reference=first.reference, settings=first.settings, regions=["left", "right"], image=bigger,
        denoise=0.5, size=(128, 96),
    )  # fmt: skip
    assert second.image.size == (96, 128) and second.settings.weights == (0.5, 1.5)
    without = draw(scale, image=bigger, denoise=0.5, size=(128, 96))
    assert error(second.latents, without.latents) > 1e-2


@pytest.mark.parametrize("options", [
    {"layout": "stitch"}, {"ref_masks": ["top", None]}, {"cache_form": "fp8"}, {"cache_form": "thin:0.5"},
    {"ref_start": 0.5}, {"apg_eta": 0.0, "apg_momentum": -0.5, "cfg_rescale": 0.5}, {"fidelity": 0.5},
    {"weights": [0.5, 2.0], "regions": ["left", None], "ref_guidance": 2.0},
])  # fmt: skip
def test_from_a_picture_onward_every_control_does_what_it_does_from_noise(scale, options):
    """denoise < 1 is a run whose first latent is that mix of picture and noise, and nothing else."""
    options = {"reference": [picture(1, (48, 48)), picture(2)], **options}
    image, noise = noise_of(scale, seed=1), noise_of(scale, seed=2)
    found = draw(scale, image=image, noise=noise, denoise=0.5, **options)
    levels = pipe_of(scale).levels(found.settings, image)
    sigma = float(levels[0])
    mixed = (sigma * noise + (1 - sigma) * image) / sigma
    same = draw(scale, noise=mixed, levels=levels, **options)
    assert 0 < sigma < 1 and error(same.latents, found.latents) < CLOSE
    plain = draw(scale, image=image, noise=noise, denoise=0.5)
    assert error(found.latents, plain.latents) > 1e-3


@pytest.mark.parametrize("log_weight", [0.0, 0.7, -2.0])
def test_a_merge_is_one_biased_softmax(scale, log_weight):
    """With the heads, widths and keys of each scale; fp32 against fp64."""
    k, v = cache_of(scale, 1).layers[0]
    own = [torch.randn(2, k.shape[1], 40, k.shape[3], generator=torch.Generator().manual_seed(i)) for i in range(3)]
    found = attend(*own, [KeyGroup(k, v, log_weight)])
    q, keys, values = (side.double() for side in (own[0], *(torch.cat([mine, side.expand(2, -1, -1, -1)], dim=2)
                                                            for mine, side in zip(own[1:], (k, v), strict=True))))
    bias = torch.cat([torch.zeros(40), torch.full((k.shape[2],), log_weight)]).double()
    wanted = (q @ keys.transpose(-1, -2) / k.shape[3] ** 0.5 + bias).softmax(-1) @ values
    assert error(found, wanted) < 1e-6


def test_a_stitched_run_is_a_run_with_the_canvas(scale):
    pictures = [picture(1, (48, 48)), picture(2)]
    style = {"stitch_direction": "down", "stitch_spacing": 5, "stitch_colour": "blue", "stitch_match": False}
    found = draw(scale, f"{PROMPT}, {OTHER}", reference=pictures, layout="stitch", **style)
    canvas = stitch(pictures, "down", False, 5, "blue")
    assert canvas.size == (48, 102) and len(found.reference.groups) == 1
    direct = draw(scale, f"{PROMPT}, {OTHER}", reference=canvas)
    assert torch.equal(found.latents, direct.latents)
    separate = draw(scale, f"{PROMPT}, {OTHER}", reference=pictures)
    assert error(found.latents, separate.latents) > 1e-3
    again = draw(scale, f"{PROMPT}, {OTHER}", reference=found.reference, settings=found.settings)
    assert torch.equal(again.latents, found.latents)
