"""diffusers' own classes with the same random weights, through our key map, give the same numbers."""

import dataclasses

import pytest
import torch
from anima_golden import TINY, apart

from snapref.anima.init import initialise
from snapref.anima.model import AnimaDiT
from snapref.config import BASE, DiTConfig
from snapref.files.keys import (
    from_diffusers,
    join_from_diffusers,
    load_strict,
    split_for_diffusers,
    to_diffusers,
)

pytest.importorskip("diffusers", reason="parity is measured against diffusers: pip install 'snapref[test]'")

from snapref.evaluation.bench_forward import (  # noqa: E402
    bench_forward,
    diffusers_twin,
    randomised,
    run_twin,
)

CLOSE = 2e-5
SMALL = DiTConfig(width=96, heads=3, blocks=3, context_width=48, adaln_rank=32)
REAL_HEADS = DiTConfig(width=256, heads=2, blocks=2, context_width=128, adaln_rank=64)  # head width 128


def random_model(dit: DiTConfig) -> AnimaDiT:
    generator = torch.Generator().manual_seed(0)
    config = dataclasses.replace(TINY, dit=dit)
    return randomised(initialise(AnimaDiT(config), generator), generator).eval().requires_grad_(False)


@pytest.mark.parametrize("dit", [SMALL, REAL_HEADS], ids=["width96", "width256"])
@pytest.mark.parametrize("frames, height, width", [(1, 8, 12), (1, 48, 6), (3, 4, 6)])
def test_transformer(dit, frames, height, width):
    model = random_model(dit)
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(2, 16, frames, height, width, generator=generator)
    context = torch.randn(2, 11, dit.context_width, generator=generator)
    sigmas = [torch.tensor([0.15, 0.9])]
    if frames > 1:
        sigmas.append(torch.rand(2, frames, generator=generator))
    twin = diffusers_twin(model)
    for sigma in sigmas:
        theirs = run_twin(twin, latent, sigma, context)
        assert apart(model(latent, sigma, context), theirs) < CLOSE


@pytest.mark.parametrize("width", [48, 128])
def test_adapter(width):
    from diffusers import AnimaTextConditioner

    model = random_model(dataclasses.replace(SMALL, context_width=width))
    text = model.config.text
    twin = AnimaTextConditioner(
        source_dim=text.qwen_width,
        target_dim=width,
        model_dim=width,
        num_layers=text.adapter_blocks,
        num_attention_heads=text.adapter_heads,
        target_vocab_size=text.t5_vocab,
        min_sequence_length=1,
    ).eval()
    load_strict(twin, split_for_diffusers(model.state_dict())[1], "our model")

    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(text.t5_vocab, (2, 9), generator=generator)
    source = torch.randn(2, 7, text.qwen_width, generator=generator)
    masks = [torch.arange(n) < torch.tensor([[n], [n - 3]]) for n in (9, 7)]
    with torch.no_grad():
        assert apart(model.llm_adapter(ids, source), twin(source, ids)) < CLOSE
        theirs = twin(source, ids, *masks)
        found = model.llm_adapter(ids, source, *masks) * masks[0][..., None]
        assert apart(found, theirs * masks[0][..., None]) < CLOSE


def test_key_map_goes_both_ways_at_full_size():
    with torch.device("meta"):
        model = AnimaDiT(BASE)
    names = model.state_dict()
    transformer, conditioner = split_for_diffusers(names)
    assert (len(transformer), len(conditioner)) == (567, 118)
    assert join_from_diffusers(transformer, conditioner).keys() == names.keys()
    assert to_diffusers("blocks.27.mlp.layer2") == "transformer_blocks.27.ff.net.2"
    assert (
        from_diffusers("transformer_blocks.3.attn2.to_out.0.weight")
        == "blocks.3.cross_attn.output_proj.weight"
    )
    with pytest.raises(KeyError, match="blocks.0.nothing"):
        to_diffusers("blocks.0.nothing.weight")


def test_bench_measures_equal_outputs():
    result = bench_forward(dataclasses.replace(TINY, text=None), size=(8, 8), context_rows=9, rounds=3)
    assert result.largest_difference < CLOSE
    assert result.tokens == 16 and result.ratio_low <= result.ratio <= result.ratio_high
    assert "ratio" in str(result)
