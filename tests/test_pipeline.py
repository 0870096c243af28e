"""The whole way from prompt and reference to picture, on a tiny model with random weights."""

from contextlib import contextmanager

import pytest
import torch
from pipeline_case import TINY, originals, picture, tiny_adapter, tiny_pipeline, untouched

from snapref.reference.cache import CacheError, ReferenceCache
from snapref.reference.picture import PictureError, to_pixels
from snapref.sampling.guidance import cfg
from snapref.sampling.pipeline import Pipeline
from snapref.sampling.result import Result
from snapref.sampling.samplers import Cancelled, NonFiniteLatent
from snapref.sampling.schedule import sigmas
from snapref.sampling.settings import Settings, SettingsError, read_record

PROMPT = "1girl, beach, waving"
PIPE = tiny_pipeline()
CACHE = PIPE.encode(picture())


def draw(prompt=PROMPT, reference=None, **options) -> Result:
    return PIPE(prompt, reference, quiet=True, **options)


def close(a: Result, b: Result, atol=2e-5):
    torch.testing.assert_close(a.latents, b.latents, atol=atol, rtol=0)


@contextmanager
def counted():
    """Collects the number of batch rows of every model call."""
    rows = []
    hook = PIPE.model.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    try:
        yield rows
    finally:
        hook.remove()


def test_a_picture_of_the_size_asked_for():
    result = draw(size=(48, 80), steps=2)
    assert result.image.size == (80, 48) and result.latents.shape == (1, 16, 1, 6, 10)
    assert draw().image.size == TINY.default_size[::-1]


@pytest.mark.parametrize("strength, fidelity", [(1.0, 1.0), (0.7, 1.0), (0.7, 0.4)])
def test_one_step_is_the_formula(strength, fidelity):
    """Written out, with the branch beside the weights instead of merged into them."""
    levels = sigmas("simple", 4)[-2:]
    noise = torch.randn(1, 16, 1, 8, 6, generator=torch.Generator().manual_seed(3))
    options = {"strength": strength, "fidelity": fidelity, "guidance": 4.0}
    result = draw(reference=CACHE, negative="night", seed=3, levels=levels, **options)
    x, sigma = levels[0] * noise, levels[:1]

    def denoised(prompt, weight):
        memory = CACHE.memory(strength=weight)
        return x - sigma * PIPE.model(
            x, sigma, PIPE.text([prompt]), memory=memory, branch=PIPE.adapter.target
        )

    positive = denoised(PROMPT, strength)
    negative = denoised("night", strength * (1 - fidelity))
    torch.testing.assert_close(result.latents, cfg(positive, negative, 4.0), atol=2e-5, rtol=0)


def test_off_is_the_base_to_the_bit():
    before = originals(PIPE)
    base = tiny_pipeline(adapter=False)(PROMPT, quiet=True)
    silent = CACHE.with_weights([0.0])
    runs = [draw(), draw(reference=silent)]
    runs += [draw(reference=reference, strength=0) for reference in (CACHE, picture())]
    runs += [draw(reference=CACHE, ref_start=0.9)]  # the window opens after the last step began
    for run in runs:
        assert torch.equal(run.latents, base.latents)
    assert not torch.equal(draw(reference=CACHE).latents, base.latents)
    assert torch.equal(draw().latents, base.latents) and untouched(PIPE, before)


@pytest.mark.parametrize("changes, branches", [
    ({}, 2),
    ({"guidance": 1.0}, 1),
    ({"ref_in_uncond": True}, 2),
    ({"fidelity": 0.5}, 2),
    ({"ref_guidance": 1.0}, 2),
    ({"ref_guidance": 3.0}, 2),
    ({"ref_guidance": 2.0}, 3),
    ({"ref_guidance": 2.0, "apg_eta": 0.0}, 3),
])
def test_branches_per_step_go_through_in_one_call(changes, branches):
    with counted() as rows:
        result = draw(reference=CACHE, **changes)
    assert rows == [branches] * 4 and result.branches == 4 * branches


@pytest.mark.parametrize("changes, same_as", [
    ({"ref_guidance": 1.0}, {"ref_in_uncond": True}),
    ({"ref_guidance": 3.0}, {}),
    ({"fidelity": 1.0}, {}),
    ({"fidelity": 0.0}, {"ref_in_uncond": True}),
    ({"apg_eta": 1.0, "apg_momentum": 0.0, "apg_threshold": 1e6}, {}),
    ({"ref_guidance": 2.0, "apg_threshold": 1e6}, {"ref_guidance": 2.0}),
    ({"cfg_rescale": 0.0}, {}),
    ({"ref_start": 0.0, "ref_end": 1.0}, {}),
    ({"ref_guidance": 1.0 + 1e-6}, {"ref_in_uncond": True}),  # three branches that must come to the two
    ({"ref_guidance": 3.0 + 1e-6}, {}),
])
def test_settings_that_mean_the_same(changes, same_as):
    close(draw(reference=CACHE, **changes), draw(reference=CACHE, **same_as), atol=1e-4)


@pytest.mark.parametrize("changes", [
    {"strength": 0.5}, {"strength": 2.0}, {"ref_in_uncond": True}, {"fidelity": 0.5}, {"ref_guidance": 2.0},
    {"apg_eta": 0.0}, {"apg_threshold": 1.0}, {"apg_momentum": -0.5}, {"cfg_rescale": 0.7}, {"ref_end": 0.5},
    {"ref_start": 0.5}, {"guidance": 1.0}, {"sampler": "er_sde"}, {"schedule": "beta"}, {"seed": 1},
])
def test_every_setting_changes_the_picture(changes):
    difference = draw(reference=CACHE, **changes).latents - draw(reference=CACHE).latents
    assert difference.abs().max() > 1e-3


def test_strength_two_is_the_picture_twice():
    close(draw(reference=CACHE, strength=2.0), draw(reference=ReferenceCache.concat([CACHE, CACHE])))
    weighted = ReferenceCache.concat([CACHE, CACHE]).with_weights([1.5, 0.5])
    close(draw(reference=weighted), draw(reference=CACHE, strength=2.0))


def test_window_switches_the_branch_and_the_reading():
    """Outside its window a run is the base's: one half of each makes the whole."""
    seen = {}
    for name, options in {"all": {}, "none": {"strength": 0}, "late": {"ref_start": 0.5}}.items():
        steps = seen[name] = []
        draw(reference=CACHE, callback=lambda i, s, x, d, keep=steps: keep.append(d), **options)
    assert all(torch.equal(seen["late"][i], seen["none"][i]) for i in (0, 1))
    first = (seen["late"][2] - seen["none"][2]).abs().max()
    assert first > 1e-3 and not torch.equal(seen["late"][2], seen["all"][2])


def test_a_cache_serves_every_run(tmp_path):
    fresh = draw(reference=picture())
    assert torch.equal(draw(reference=CACHE).latents, fresh.latents)
    again = fresh.reference
    assert torch.equal(draw(reference=again).latents, fresh.latents)
    CACHE.save(tmp_path / "reference.safetensors")
    stored = ReferenceCache.load(tmp_path / "reference.safetensors")
    other = {"prompt": "night, smile", "size": (80, 64), "seed": 9, "steps": 3}
    assert torch.equal(draw(reference=stored, **other).latents, draw(reference=picture(), **other).latents)


def test_several_pictures_and_modes():
    two = PIPE.encode([picture(1), picture(2, (32, 64))])
    assert two.tokens == (6, 8)
    listed = draw(reference=[picture(1), picture(2, (32, 64))])
    assert torch.equal(listed.latents, draw(reference=two).latents)
    char = draw(reference=picture(), mode="char")
    words = TINY_CAPTIONS["char"]
    assert torch.equal(char.latents, draw(reference=picture(), ref_caption=words).latents)
    assert not torch.equal(char.latents, draw(reference=picture()).latents)
    assert draw(reference=picture()).settings.mode == "cs" and char.settings.mode == "char"
    assert draw(reference=char.reference).settings.mode == "char"
    with pytest.raises(SettingsError, match="encoded as 'character reference', not 'character and style"):
        draw(reference=char.reference, mode="cs")


TINY_CAPTIONS = tiny_adapter().config.captions


def test_a_batch_is_its_single_runs():
    prompts, negatives = [PROMPT, "night, red hair", "smile"], ["", "blue eyes", ""]
    noise = torch.randn(3, 16, 1, 8, 6, generator=torch.Generator().manual_seed(0))
    caches = [CACHE, PIPE.encode(picture(1, (32, 64))), CACHE]
    for options in ({}, {"ref_guidance": 2.0, "apg_eta": 0.2, "apg_momentum": -0.4, "cfg_rescale": 0.5}):
        batch = draw(prompts, references=caches, negative=negatives, **options)
        assert len(batch.images) == 3
        for i in range(3):
            single = draw(
                prompts[i], caches[i], negative=negatives[i], noise=noise[i : i + 1], **options
            )
            torch.testing.assert_close(batch.latents[i : i + 1], single.latents, atol=2e-5, rtol=0)


def test_a_prompt_longer_than_the_context_keeps_its_rows():
    long = ", ".join(["red hair", "blue eyes", "beach", "night"] * 3)
    assert PIPE.text([long]).shape[1] > TINY.text.context_rows
    with counted() as rows:
        batch = draw([long, "smile"], CACHE)
    assert sorted(rows) == [1] * 4 + [3] * 4  # the long branch cannot share a call with the three short ones
    noise = torch.randn(2, 16, 1, 8, 6, generator=torch.Generator().manual_seed(0))
    for i, prompt in enumerate([long, "smile"]):
        single = draw(prompt, CACHE, noise=noise[i : i + 1])
        torch.testing.assert_close(batch.latents[i : i + 1], single.latents, atol=2e-5, rtol=0)


def test_seed_gives_the_noise_of_one_cpu_call():
    starts = []
    draw([PROMPT] * 2, seed=7, callback=lambda i, s, x, d: starts.append(x))
    wanted = torch.randn(2, 16, 1, 8, 6, generator=torch.Generator().manual_seed(7))
    assert torch.equal(starts[0], wanted)
    assert torch.equal(draw(seed=7).latents, draw(seed=7).latents)


@pytest.mark.parametrize("error", [Cancelled, KeyboardInterrupt, RuntimeError])
def test_the_base_is_itself_after_an_interruption(error):
    before, base = originals(PIPE), draw()

    def callback(step, sigma, x, denoised):
        assert not untouched(PIPE, before)  # the target branch is in the weights while sampling
        if step == 1:
            raise error("stop")

    with pytest.raises(error):
        draw(reference=CACHE, callback=callback)
    assert untouched(PIPE, before) and torch.equal(draw().latents, base.latents)


def test_cancel_by_returning_false():
    with pytest.raises(Cancelled, match="step 3 of 4"):
        draw(callback=lambda step, *rest: step < 2)


def test_a_broken_block_is_named():
    weight = PIPE.model.blocks[1].mlp.layer2.weight
    kept = weight.clone()
    try:
        weight.data[0, 0] = float("nan")
        with pytest.raises(NonFiniteLatent, match=r"step 1 of 4 .*first in block 1"):
            draw()
    finally:
        weight.data.copy_(kept)


def test_a_second_pass_starts_from_a_latent():
    first = draw(reference=CACHE)
    bigger = torch.nn.functional.interpolate(first.latents[:, :, 0], scale_factor=2)[:, :, None]
    starts = []
    second = draw(
        reference=CACHE, image=bigger, denoise=0.5, seed=5, callback=lambda i, s, x, d: starts.append(x)
    )
    levels = sigmas("simple", 4, denoise=0.5)
    noise = torch.randn(bigger.shape, generator=torch.Generator().manual_seed(5))
    assert second.image.size == (96, 128)
    torch.testing.assert_close(starts[0], levels[0] * noise + (1 - levels[0]) * bigger, atol=1e-6, rtol=0)


def test_a_second_pass_starts_from_a_picture():
    assert draw(image=picture(size=(64, 80)), denoise=0.3).image.size == (80, 64)
    assert draw(image=picture(size=(64, 80)), denoise=0.3, size=(32, 48)).image.size == (48, 32)
    starts = []
    draw(image=picture(), denoise=0.5, callback=lambda i, s, x, d: starts.append(x))
    latent = PIPE.to_latent(to_pixels(picture(), 16))
    sigma = sigmas("simple", 4, denoise=0.5)[0]
    noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(starts[0], sigma * noise + (1 - sigma) * latent, atol=1e-6, rtol=0)


def test_a_saved_picture_carries_its_settings(tmp_path):
    options = {"steps": 3, "seed": 11, "ref_guidance": 2.0, "sampler": "er_sde"}
    result = draw(["smile", PROMPT], CACHE, negative="night", **options)
    first, second = result.save(tmp_path / "new folder" / "out.png")
    settings, record = Settings.from_png(second), read_record(second)
    assert settings == result.settings and record["prompt"] == PROMPT and record["negative"] == "night"
    assert record["reference"]["pictures"][0]["mode"] == "cs"
    assert record["model"] == "tiny" and record["batch"] == [1, 2] and first.name == "out-0.png"
    again = draw(["smile", record["prompt"]], CACHE, negative="night", settings=settings)
    assert torch.equal(again.latents, result.latents)
    one = draw().save(tmp_path / "one.jpg")
    assert one == [tmp_path / "one.jpg"]
    with pytest.raises(SettingsError, match="carries no snapref settings"):
        Settings.from_png(one[0])


def test_transparent_parts_are_not_read():
    image = picture(3, (32, 32)).convert("RGBA")
    image.paste((0, 0, 0, 0), (0, 0, 16, 32))
    assert PIPE.encode(image).tokens == (2,) and PIPE.encode(picture(3, (32, 32))).tokens == (4,)


@pytest.mark.parametrize("arguments, error, words", [
    ({"size": (60, 48)}, SettingsError, "height is 60 px, no multiple of 16; the nearest is 48 or 64"),
    ({"size": (64, 8)}, SettingsError, "width is 8 px, no multiple of 16; the nearest is 16"),
    ({"strength": float("nan")}, SettingsError, "strength is nan; it must be a number from 0 to 2"),
    ({"strenght": 1.0}, SettingsError, "strenght is not a setting; did you mean strength"),
    ({"reference": []}, SettingsError, "reference is an empty list; give at least one picture"),
    ({"references": []}, SettingsError, "0 references for 1 prompts"),
    ({"reference": "nowhere.png"}, PictureError, "nowhere.png"),
    ({"reference": picture(), "mode": "face"}, SettingsError, "mode is 'face'; .* tiny-v1 has cs, char"),
    ({"reference": CACHE, "references": [CACHE]}, SettingsError, "both given"),
    ({"references": [CACHE, CACHE]}, SettingsError, "2 references for 1 prompts"),
    ({"prompt": []}, SettingsError, "prompt is an empty list"),
    ({"negative": ["a", "b"]}, SettingsError, "2 negatives for 1 prompts"),
    ({"denoise": 0.5}, SettingsError, "denoise is 0.5; it needs an image"),
    ({"image": picture()}, SettingsError, "denoise is 1.0; it ignores the image"),
    ({"noise": torch.zeros(1, 16, 1, 2, 2)}, SettingsError, "noise is .*; this run needs"),
    ({"image": torch.zeros(3, 16, 1, 8, 6), "denoise": 0.5}, SettingsError, "image is a latent"),
])
def test_what_cannot_be_is_refused_before_any_step(arguments, error, words):
    with counted() as rows, pytest.raises(error, match=words):
        draw(**arguments)
    assert not rows


def test_a_foreign_cache_is_refused():
    other = Pipeline(PIPE.model, PIPE.text, PIPE.codec, TINY, tiny_adapter(seed=2))
    with pytest.raises(CacheError, match="another adapter"):
        other(PROMPT, CACHE, quiet=True)
    with pytest.raises(SettingsError, match="tiny has no adapter"):
        tiny_pipeline(adapter=False)(PROMPT, CACHE, quiet=True)


def test_ignored_fidelity_is_said():
    with pytest.warns(UserWarning, match="fidelity 0.5 is ignored"):
        draw(reference=CACHE, fidelity=0.5, ref_in_uncond=True)


def test_bar_and_quiet(capsys):
    PIPE(PROMPT, steps=2)
    assert "2/2" in capsys.readouterr().err
    draw(steps=2)
    assert capsys.readouterr().err == ""
