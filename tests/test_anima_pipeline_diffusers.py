"""The whole way from prompt to picture, against diffusers' AnimaModularPipeline with the same random weights."""

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch
from anima_golden import TINY, golden, tiny_model
from PIL import Image
from text_case import QWEN_PAD, QWEN_WIDTH, language_model, tokenizers

diffusers = pytest.importorskip("diffusers", reason="parity is measured against it: pip install 'snapref[test]'")
if not hasattr(diffusers, "AnimaModularPipeline"):
    pytest.skip(f"diffusers {diffusers.__version__} has no AnimaModularPipeline", allow_module_level=True)

from snapref.anima.text import TextEncoder  # noqa: E402
from snapref.config import CodecConfig  # noqa: E402
from snapref.evaluation.bench_forward import diffusers_twin  # noqa: E402
from snapref.files.keys import load_strict, load_vae, split_for_diffusers  # noqa: E402
from snapref.sampling.pipeline import Pipeline  # noqa: E402
from snapref.sampling.schedule import sigmas  # noqa: E402

CLOSE = 1e-3  # of a picture in [0, 1]
ROWS = 40
PROMPT, NEGATIVE = "1girl, beach, waving, full body", "night, rain"
# An empty negative is left out: there diffusers follows the trainer's rule and we ComfyUI's (specification 3).


@cache
def ours() -> Pipeline:
    text = dataclasses.replace(TINY.text, context_rows=ROWS, qwen_pad_id=QWEN_PAD, qwen_width=QWEN_WIDTH)
    config = dataclasses.replace(TINY, text=text, codec=CodecConfig(kind="qwen_image", factor=8))
    model = tiny_model()
    encoder = TextEncoder(language_model(), *tokenizers(), model.llm_adapter, text)
    return Pipeline(model, encoder, load_vae(golden("tiny_vae_state_dict"), "tiny"), config)


@cache
def theirs():
    """Their pipeline from their own classes; the weights are ours, renamed."""
    pipe = ours()
    text, width = pipe.config.text, pipe.config.dit.context_width
    conditioner = diffusers.AnimaTextConditioner(
        source_dim=text.qwen_width,
        target_dim=width,
        model_dim=width,
        num_layers=text.adapter_blocks,
        num_attention_heads=text.adapter_heads,
        target_vocab_size=text.t5_vocab,
        min_sequence_length=ROWS,
    )
    load_strict(conditioner, split_for_diffusers(pipe.model.state_dict())[1], "our model")
    qwen, t5 = tokenizers()
    qwen.pad_token = qwen.convert_ids_to_tokens(0)  # it pads batches; masked, so any token will do
    built = diffusers.AnimaAutoBlocks().init_pipeline()
    built.update_components(
        text_encoder=language_model(),
        tokenizer=qwen,
        t5_tokenizer=t5,
        text_conditioner=conditioner.eval(),
        transformer=diffusers_twin(pipe.model),
        vae=pipe.codec.vae,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    )
    built.set_progress_bar_config(disable=True)
    return built


def their_pictures(prompts, negatives, noise, steps, guidance, levels=None, **start) -> torch.Tensor:
    """Pictures (b, 3, h, w) in [0, 1]. levels: sigmas instead of their own schedule, which is shifted here.

    start: image and strength of a second pass.
    """
    pipe = theirs()
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0 if levels is None else 1.0)
    guider = diffusers.ClassifierFreeGuidance(guidance_scale=guidance)
    pipe.update_components(guider=guider, scheduler=scheduler)
    height, width = (8 * side for side in noise.shape[-2:])
    return pipe(
        prompt=list(prompts),
        negative_prompt=list(negatives),
        latents=noise.clone(),
        height=height,
        width=width,
        num_inference_steps=steps,
        sigmas=None if levels is None else levels[:-1].tolist(),
        output_type="pt",
        output="images",
        **start,
    )


def noise_for(size, batch=1) -> torch.Tensor:
    height, width = (side // 8 for side in size)
    return torch.randn(batch, 16, 1, height, width, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("guidance", [1.0, 4.5])
@pytest.mark.parametrize("size", [(64, 96), (112, 48)])
def test_picture(size, guidance):
    """With our schedule and theirs: `simple` is theirs wherever the steps divide 1000."""
    noise = noise_for(size)
    result = ours()(PROMPT, negative=NEGATIVE, noise=noise, steps=5, guidance=guidance, size=size, quiet=True)
    pixels = ours().codec.decode(result.latents)
    expected = their_pictures([PROMPT], [NEGATIVE], noise, 5, guidance)
    assert pixels.shape == expected.shape == (1, 3, *size)
    assert (pixels - expected).abs().max() < CLOSE
    assert pixels.std() > 0.05, "a flat picture would agree with anything"


def test_guidance_and_prompt_are_in_the_picture():
    """What the pictures agree on is not the noise alone."""
    noise = noise_for((64, 96))
    plain, guided = (their_pictures([PROMPT], [NEGATIVE], noise, 5, g) for g in (1.0, 4.5))
    other = their_pictures(["night, rain"], [NEGATIVE], noise, 5, 1.0)
    assert (plain - guided).abs().max() > 30 * CLOSE and (plain - other).abs().max() > 30 * CLOSE


@pytest.mark.parametrize("schedule", ["normal", "beta"])
def test_picture_with_the_other_schedules(schedule):
    noise, levels = noise_for((64, 48)), sigmas(schedule, 6)
    options = {"noise": noise, "schedule": schedule, "steps": 6, "guidance": 3.0, "size": (64, 48)}
    result = ours()(PROMPT, negative=NEGATIVE, quiet=True, **options)
    expected = their_pictures([PROMPT], [NEGATIVE], noise, len(levels) - 1, 3.0, levels)
    assert (ours().codec.decode(result.latents) - expected).abs().max() < CLOSE


def test_a_batch_of_prompts_of_unequal_length():
    """They pad and mask, we encode each prompt by itself."""
    prompts, negatives = [PROMPT, "smile"], [NEGATIVE, "solo, 1girl, rain"]
    noise = noise_for((64, 48), batch=2)
    options = {"noise": noise, "steps": 4, "guidance": 3.0, "size": (64, 48)}
    result = ours()(prompts, negative=negatives, quiet=True, **options)
    pixels = ours().codec.decode(result.latents)
    assert (pixels - their_pictures(prompts, negatives, noise, 4, 3.0)).abs().max() < CLOSE
    drawn = np.asarray(result.images[1])
    assert np.array_equal(drawn, (pixels[1] * 255).round().permute(1, 2, 0).byte().numpy())


def test_a_second_pass_over_a_picture():
    """denoise 0.5 of 4 steps is their strength 0.5 of 8: the same sigmas, and the same picture half noised."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((64, 48), Image.Resampling.BICUBIC)
    noise = noise_for((48, 64))
    options = {"noise": noise, "steps": 4, "guidance": 3.0, "denoise": 0.5, "image": image}
    result = ours()(PROMPT, negative=NEGATIVE, quiet=True, **options)
    drawn = ours().codec.decode(result.latents)
    expected = their_pictures([PROMPT], [NEGATIVE], noise, 8, 3.0, image=image, strength=0.5)
    assert (drawn - expected).abs().max() < CLOSE
    whole = their_pictures([PROMPT], [NEGATIVE], noise, 8, 3.0)
    assert (drawn - whole).abs().max() > 30 * CLOSE
