"""Weights, blocks, regions and masks against the joint forward: one sequence, one softmax, an explicit mask.

At both scales: a tiny model of the real layout, with every branch at work, and nano with its trained weights.
"""

from functools import cache

import pytest
import reference_case
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_forward import Segment, joint_forward
from pipeline_case import picture
from reading_case import error, noise_of, pipe_of

from snapref.anima.model import AnimaDiT
from snapref.reference import ReferenceCache, encode_reference
from snapref.reference.area import read_area, shown_part
from snapref.reference.branches import Adapter
from snapref.reference.picture import to_pixels, visible_tokens

TOLERANCE = 1e-5  # relative to the largest value; fp32
HEIGHT, WIDTH = 8, 6  # of the target's latent


@cache
def parts(scale: str) -> tuple[AnimaDiT, Adapter, torch.Tensor, torch.Tensor]:
    """(model, adapter, context of the prompt, context of the caption)."""
    if scale == "tiny":
        model, adapter = reference_case.tiny_model(), reference_case.tiny_adapter()
        return model, adapter, reference_case.context(9, 1), reference_case.context(7, 2)
    pipe = pipe_of("nano")
    return pipe.model, pipe.adapter, *pipe.contexts(["1girl, beach", "character reference"])


def joint(scale: str, target, sigma: float, pictures, **options) -> torch.Tensor:
    """options: per picture what `Segment` takes."""
    model, adapter, text, caption = parts(scale)
    segment = reference_case.segment
    segments: list[Segment] = [segment(target, sigma, text, adapter, "tgt")]
    for i, latent in enumerate(pictures):
        own = {name: values[i] for name, values in options.items()}
        segments.append(segment(latent, 0.0, caption, adapter, "ref", adapter.config.place, **own))
    weights = {name: w for name, w in model.state_dict().items() if not name.startswith("llm_adapter")}
    return joint_forward(weights, segments, heads=model.config.dit.heads)


def cached(scale: str, target, sigma: float, read: ReferenceCache, **options) -> torch.Tensor:
    model, adapter, text, _ = parts(scale)
    memory = read.memory(**options)
    with torch.no_grad():
        return model(target, torch.tensor([sigma]), text, memory=memory, branch=adapter.target)[0, :, 0]


def encoded(scale: str, latents, **options) -> ReferenceCache:
    model, adapter, _, caption = parts(scale)
    return encode_reference(model, adapter, latents, caption, **options)


@pytest.mark.parametrize("scale", ["tiny", "nano"])
@settings(max_examples=6, deadline=None)
@given(
    data=st.data(),
    weights=st.lists(st.sampled_from([0.0, 0.3, 1.0, 2.0]), min_size=1, max_size=3),
    sigma=st.sampled_from([0.05, 0.6, 1.0]),
    seed=st.integers(0, 99),
)
def test_weights_blocks_and_regions_are_the_joint_forward(scale, data, weights, sigma, seed):
    count, blocks = len(weights), parts(scale)[0].config.dit.blocks
    region = st.none() | st.lists(st.booleans(), min_size=12, max_size=12).map(torch.tensor)
    regions = data.draw(st.lists(region, min_size=count, max_size=count))
    per_block = data.draw(st.none() | st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=blocks, max_size=blocks))
    target = noise_of(scale, 1, HEIGHT, WIDTH, seed)
    pictures = [noise_of(scale, 1, 4, 6, 100 + seed + i) for i in range(count)]
    read = encoded(scale, pictures, weights=weights)
    found = cached(scale, target, sigma, read, blocks=per_block, regions=regions)
    per_picture = None if per_block is None else tuple(per_block)
    wanted = joint(
        scale, target, sigma, pictures, weight=weights, readers=regions, block_weights=[per_picture] * count
    )
    assert error(found, wanted) < TOLERANCE


@pytest.mark.parametrize("scale", ["tiny", "nano"])
def test_regions_are_seen_by_the_comparison(scale):
    target, pictures = noise_of(scale), [noise_of(scale, 1, 4, 6, 7)]
    read = encoded(scale, pictures)
    left = read_area("", "left").covered(4, 3).flatten()
    found = cached(scale, target, 0.6, read, regions=[left])
    assert error(found, joint(scale, target, 0.6, pictures, readers=[left])) < TOLERANCE
    for other in ([None], [~left]):
        assert error(cached(scale, target, 0.6, read, regions=other), found) > 1e-3


@pytest.mark.parametrize("scale", ["tiny", "nano"])
def test_a_masked_picture_is_the_joint_forward_of_its_shown_tokens(scale):
    """The rest is white, and its tokens cannot be read; the shown ones have seen the white."""
    pipe = pipe_of("nano")
    shown = shown_part(picture(1, (64, 48)), read_area("ref_masks[0]", "top"))
    latent, keep = pipe.to_latent(to_pixels(shown, 16)), visible_tokens(shown, 16)
    assert keep.tolist() == [True] * 6 + [False] * 6
    target = noise_of(scale)
    found = cached(scale, target, 0.6, encoded(scale, [latent], keep=[keep]))
    assert error(found, joint(scale, target, 0.6, [latent], visible=[keep])) < TOLERANCE
    assert error(found, joint(scale, target, 0.6, [latent])) > 1e-3


def test_blocks_and_regions_of_another_number_are_said():
    read = encoded("tiny", [noise_of("tiny", 1, 4, 6)])
    for options, words in (
        ({"blocks": [1.0]}, "blocks has 1 entries; this cache needs 3"),
        ({"regions": []}, "regions has 0 entries; this cache needs 1"),
    ):
        with pytest.raises(ValueError, match=words):
            read.memory(**options)
