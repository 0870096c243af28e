"""The extra frame is the base model on a clip; the offset place is the pipeline itself, laid open."""

import numpy as np
import pytest
import torch
from pipeline_case import TINY_ADAPTER, picture, tiny_adapter, tiny_pipeline
from reference_case import context, latent, tiny_model
from reference_case import tiny_adapter as other_adapter

from snapref.reference.picture import to_pixels
from snapref.rivals import ExtraFrame, draw, letterboxed, read_at

SIGMA = torch.tensor([0.7, 0.2])
NOISY = torch.cat([latent(6, 4, seed=1), latent(6, 4, seed=2)])
REFERENCE = latent(6, 4, seed=3)
WORDS = context(9, seed=4).repeat(2, 1, 1)


@pytest.mark.parametrize("frame", [0, 1])
def test_an_extra_frame_is_a_clip_whose_other_frame_is_clean(frame):
    model = tiny_model()
    frames, levels = [NOISY, REFERENCE.expand_as(NOISY)], [SIGMA, 0 * SIGMA]
    if frame == 0:
        frames, levels = frames[::-1], levels[::-1]
    clip = model(torch.cat(frames, dim=2), torch.stack(levels, dim=1), WORDS)
    ours = ExtraFrame(model, REFERENCE, frame).velocity(NOISY, SIGMA, WORDS)
    assert torch.equal(ours[:, :, 0], clip[:, :, 1 - frame])
    alone = model(NOISY, SIGMA, WORDS)
    assert (ours - alone).abs().max() > 1e-3, "the reference changed nothing"


def test_the_pass_that_does_not_read_is_the_base_alone():
    model = tiny_model()
    alone = model(NOISY, SIGMA, WORDS)
    assert torch.equal(ExtraFrame(model, REFERENCE).velocity(NOISY, SIGMA, WORDS, reads=False), alone)
    bare = read_at(model, other_adapter(), REFERENCE, WORDS[:1], (0.0, 20.0, 0.0), adapted=False)
    assert torch.equal(bare.velocity(NOISY, SIGMA, WORDS, reads=False), alone)


def test_the_extra_frames_keys_change_with_the_noise():
    model, keys = tiny_model(), []
    for noisy in NOISY.split(1):
        clip, levels = ExtraFrame(model, REFERENCE).clip(noisy, SIGMA[:1])
        keys.append([k[:, :, 6:] for k, _ in model.keys_values(clip, levels, WORDS[:1])])
    first, *later = zip(*keys, strict=True)
    assert torch.equal(*first), "before the first attention the reference has seen nobody"
    assert all((a - b).abs().max() > 1e-3 for a, b in later)


def test_frames_of_two_sizes_are_refused():
    with pytest.raises(ValueError, match="the reference is 6×4, the target 4×6 .* letterbox"):
        ExtraFrame(tiny_model(), REFERENCE).velocity(NOISY.mT, SIGMA, WORDS)


@pytest.mark.parametrize("guidance", [{}, {"guidance": 1.0}, {"apg_eta": 0.3, "apg_momentum": -0.5}])
def test_the_offset_place_draws_what_the_pipeline_draws(guidance):
    pipe, reference, prompts = tiny_pipeline(), picture(5), ["1girl, beach", "1girl, night, smile"]
    words = pipe.contexts([pipe.adapter.config.captions["cs"]])[0]
    seen = pipe.to_latent(to_pixels(reference, pipe.config.size_step))
    route = read_at(pipe.model, pipe.adapter, seen, words, TINY_ADAPTER.place)
    settings = {"seed": 3, "size": (64, 48), "steps": 3, **guidance}
    ours = draw(pipe, route, prompts, **settings)
    theirs = pipe(prompts, reference=reference, quiet=True, **settings).images
    for a, b in zip(ours, theirs, strict=True):
        assert np.abs(np.asarray(a, int) - np.asarray(b, int)).max() <= 1


def test_without_the_adapter_the_base_itself_reads():
    model, adapter = tiny_model(), other_adapter()
    bare = read_at(model, adapter, REFERENCE, WORDS[:1], (0.0, 20.0, 0.0), adapted=False)
    keys = model.keys_values(REFERENCE, torch.zeros(1), WORDS[:1], place=(0.0, 20.0, 0.0))
    for ours, theirs in zip(bare.cache.layers, keys, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    full = read_at(model, adapter, REFERENCE, WORDS[:1], (0.0, 20.0, 0.0))
    change = full.velocity(NOISY, SIGMA, WORDS) - bare.velocity(NOISY, SIGMA, WORDS)
    assert change.abs().max() > 1e-3


def test_a_letterboxed_picture_is_whole_and_on_white():
    red = picture(0, (40, 20))
    sheet = letterboxed(red, (32, 64))
    assert sheet.size == (64, 32)
    pixels = np.asarray(sheet)
    assert (pixels[:, :24] == 255).all() and (pixels[:, 40:] == 255).all()
    assert np.array_equal(pixels[:, 24:40], np.asarray(red.resize((16, 32), 1)))


def test_the_model_is_left_as_it_was():
    pipe = tiny_pipeline()
    before = {name: weight.clone() for name, weight in pipe.model.state_dict().items()}
    seen = pipe.to_latent(to_pixels(picture(5, (64, 48)), pipe.config.size_step))
    draw(pipe, ExtraFrame(pipe.model, seen), ["1girl"], steps=2)
    read_at(pipe.model, tiny_adapter(), seen, pipe.contexts(["1girl"])[0], (0.0, 20.0, 0.0))
    after = pipe.model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
