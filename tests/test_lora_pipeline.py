"""LoRAs in the weights: what they change, what the reference sees of them, and that they leave no trace."""

import json
from functools import cache

import pytest
import torch
from lora_case import random_pairs, write
from pipeline_case import TINY, originals, picture, tiny_adapter, tiny_parts, tiny_pipeline, tiny_tokenizer, untouched
from torch import nn
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

import snapref
from snapref.anima.codec import NanoCodec
from snapref.anima.linear import Float8Linear, effective_weight
from snapref.anima.model import AnimaDiT
from snapref.anima.offload import Visits
from snapref.anima.qwen import new_qwen
from snapref.anima.text import TextEncoder
from snapref.cli import app
from snapref.config import NANO, NANO_V1A
from snapref.files.loader import WeightsError
from snapref.files.lora import LoraError
from snapref.files.places import find_lora
from snapref.reference.branches import Adapter, MergeError
from snapref.reference.bundle import save_bundle
from snapref.reference.cache import CacheError, ReferenceCache
from snapref.sampling.pipeline import Pipeline
from snapref.sampling.samplers import Cancelled
from snapref.sampling.settings import read_record

PROMPT = "1girl, beach, waving"
MODULES = (
    "blocks.0.self_attn.k_proj", "blocks.1.adaln_modulation_mlp.2", "blocks.2.mlp.layer1", "x_embedder.proj.1",
    "llm_adapter.blocks.0.cross_attn.v_proj", "llm_adapter.out_proj", "final_layer.linear",
)  # fmt: skip
LANGUAGE = "text_encoder.layers.0.self_attn.q_proj"


@pytest.fixture
def pipe():
    """A pipeline whose weights are found, after the test, to be its own."""
    pipe = tiny_pipeline()
    base_run()  # before any LoRA: all tests share the weights
    before = originals(pipe)
    language = {name: (weight, weight.clone()) for name, weight in pipe.text.qwen.named_parameters()}
    yield pipe
    pipe.remove_lora()
    assert untouched(pipe, before)
    for name, weight in pipe.text.qwen.named_parameters():
        assert weight is language[name][0] and torch.equal(weight, language[name][1])


def lora_file(folder, name="style", modules=MODULES, seed=0, **options):
    shapes = tiny_pipeline()._loras.shapes
    return write(folder / f"{name}.safetensors", random_pairs(shapes, modules, seed=seed), **options)


def draw(pipe, **options):
    return pipe(options.pop("prompt", PROMPT), quiet=True, **options)


@cache
def base_run():
    return draw(tiny_pipeline())


def weight_of(pipe, module):
    return pipe.model.get_submodule(module).weight


def test_the_weights_are_the_formula(pipe, tmp_path):
    """W + Σ strength · alpha / rank · B A, of two files on the same modules."""
    before = {module: weight_of(pipe, module).double() for module in MODULES}
    for seed, (naming, alpha, strength) in enumerate([("kohya", 6.0, 0.7), ("diffusers", None, -0.4)]):
        pipe.add_lora(lora_file(tmp_path, naming, seed=seed, naming=naming, alpha=alpha), strength)
    first, second = (random_pairs(pipe._loras.shapes, MODULES, seed=seed) for seed in (0, 1))
    for module in MODULES:
        (a, b), (c, d) = first[module], second[module]
        wanted = before[module] + 0.7 * 6 / 3 * b.double() @ a.double() - 0.4 * d.double() @ c.double()
        torch.testing.assert_close(weight_of(pipe, module).double(), wanted, atol=1e-6, rtol=0)


def test_beside_and_inside_the_weights_are_the_same_run(pipe, tmp_path):
    """Read, sampled and decoded as with the matrices beside the weights: the reference is read with the LoRA."""
    modules = ("blocks.0.self_attn.k_proj", "blocks.2.mlp.layer1", "blocks.1.self_attn.q_proj")
    pipe.add_lora(lora_file(tmp_path, modules=modules), 0.8)
    result = draw(pipe, reference=picture())

    model, text, codec = tiny_parts()
    pipe.remove_lora()
    other = AnimaDiT(TINY)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for module, (a, b) in random_pairs(pipe._loras.shapes, modules).items():
            other.get_submodule(module).weight += 0.8 * b @ a
    text = TextEncoder(text.qwen, text.qwen_tokenizer, text.t5_tokenizer, other.llm_adapter, TINY.text)
    plain = draw(Pipeline(other.eval().requires_grad_(False), text, codec, TINY, pipe.adapter), reference=picture())
    torch.testing.assert_close(result.latents, plain.latents, atol=2e-5, rtol=0)
    assert (result.latents - draw(pipe, reference=picture()).latents).abs().max() > 1e-2


@pytest.mark.parametrize("modules", [MODULES[:1], MODULES[1:2], MODULES[3:4], MODULES[4:5], (LANGUAGE,)])
def test_every_kind_of_module_changes_the_picture(pipe, modules, tmp_path):
    pipe.add_lora(lora_file(tmp_path, modules=modules))
    assert (draw(pipe).latents - base_run().latents).abs().max() > 1e-4


@pytest.mark.parametrize(("modules", "part"), [(MODULES[:1], "base"), ((LANGUAGE,), "language model")])
def test_a_reference_read_without_the_lora_is_refused(pipe, modules, part, tmp_path):
    cache = pipe.encode(picture())
    cache.save(tmp_path / "reference.safetensors")
    pipe.add_lora(lora_file(tmp_path, modules=modules))
    for old in (cache, ReferenceCache.load(tmp_path / "reference.safetensors")):
        with pytest.raises(CacheError, match=f"encoded with another {part}; encode the picture again"):
            draw(pipe, reference=old)
    fresh = pipe.encode(picture())
    assert any(f"the {part}" in words for words in cache.fingerprint.differences(fresh.fingerprint))
    pipe.remove_lora()
    draw(pipe, reference=cache, steps=1)


def test_strength_zero_and_zero_matrices_are_the_base_to_the_bit(pipe, tmp_path):
    before = originals(pipe)
    pipe.add_lora(lora_file(tmp_path), 0)
    pairs = {m: (a, torch.zeros_like(b)) for m, (a, b) in random_pairs(pipe._loras.shapes, MODULES).items()}
    pipe.add_lora(write(tmp_path / "untrained.safetensors", pairs))
    assert untouched(pipe, before) and torch.equal(draw(pipe).latents, base_run().latents)
    assert [each.strength for each in pipe.loras] == [0.0, 1.0]


def test_removed_without_a_trace_in_any_order(pipe, tmp_path):
    before = originals(pipe)
    files = [lora_file(tmp_path, name, MODULES[i:], seed=i) for i, name in enumerate(("a", "b", "c"))]
    names = [pipe.add_lora(file, 0.5) for file in files]
    alone = {}
    for name, file in zip(names, files, strict=True):
        other = tiny_pipeline()
        pipe.remove_lora()
        other.add_lora(file, 0.5)
        alone[name] = other.model.state_dict()
        other.remove_lora()
    for order in (names, names[::-1], [names[1], names[2], names[0]]):
        for file in files:
            pipe.add_lora(file, 0.5)
        for name in order[:2]:
            pipe.remove_lora(name)
        assert [each.name for each in pipe.loras] == order[2:]
        left = pipe.model.state_dict()
        assert all(torch.equal(weight, left[key]) for key, weight in alone[order[2]].items())
        pipe.remove_lora(order[2])
        assert untouched(pipe, before)
    assert pipe.loras == () and torch.equal(draw(pipe).latents, base_run().latents)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once_and_comes_back(dtype, tmp_path):
    """After a round trip W + BA − BA has other bits in half precision; the kept tensors have not."""
    model, text, codec = tiny_parts()
    half = AnimaDiT(TINY).to(dtype).eval().requires_grad_(False)
    text = TextEncoder(text.qwen, text.qwen_tokenizer, text.t5_tokenizer, half.llm_adapter, TINY.text)
    pipe = Pipeline(half, text, codec, TINY)
    before = originals(pipe)
    pipe.add_lora(lora_file(tmp_path), 1.7)
    for module, (a, b) in random_pairs(pipe._loras.shapes, MODULES).items():
        original = next(weight for name, _, weight in before if name == f"{module}.weight")
        assert torch.equal(weight_of(pipe, module), torch.addmm(original.float(), b, a, alpha=1.7).to(dtype))
    pipe.remove_lora()
    assert untouched(pipe, before)


def test_a_cache_belongs_to_the_weights_it_was_read_with(pipe, tmp_path):
    without = pipe.encode(picture())
    name = pipe.add_lora(lora_file(tmp_path))
    with pytest.raises(CacheError, match="the reference was encoded with another base; encode the picture again"):
        draw(pipe, reference=without)
    with_it = pipe.encode(picture())
    assert torch.equal(draw(pipe, reference=with_it).latents, draw(pipe, reference=picture()).latents)
    pipe.add_lora(lora_file(tmp_path, "second", seed=5), 0.3)
    with pytest.raises(CacheError, match="another base"):
        draw(pipe, reference=with_it)
    pipe.remove_lora("second")
    draw(pipe, reference=with_it)
    pipe.remove_lora(name)
    with pytest.raises(CacheError, match="another base"):
        draw(pipe, reference=with_it)
    assert torch.equal(draw(pipe, reference=without).latents, draw(pipe, reference=picture()).latents)


def test_the_adapter_stands_behind_it_and_steps_aside(pipe, tmp_path):
    """After a run, and after an interrupted one, the weights are the LoRA's; after removal the base's."""
    pipe.add_lora(lora_file(tmp_path))
    with_lora = originals(pipe)
    draw(pipe, reference=picture())
    assert untouched(pipe, with_lora)
    with pytest.raises(Cancelled):
        draw(pipe, reference=picture(), callback=lambda *step: False)
    assert untouched(pipe, with_lora)


@pytest.mark.parametrize("change", [lambda pipe, file: pipe.add_lora(file), lambda pipe, file: pipe.remove_lora()])
def test_not_during_a_run(pipe, change, tmp_path):
    file = lora_file(tmp_path)
    pipe.add_lora(file)
    with pytest.raises(MergeError, match="a run is under way .*; change LoRAs after it"):
        draw(pipe, reference=picture(), callback=lambda *step: change(pipe, file))
    assert [each.name for each in pipe.loras] == ["style"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_change_did_not_happen(pipe, error, tmp_path, monkeypatch):
    from snapref.sampling import loras

    pipe.add_lora(lora_file(tmp_path, "first"))
    before = originals(pipe)
    right, calls = loras.summed, []

    def break_once(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise error("stop")
        return right(*arguments)

    monkeypatch.setattr(loras, "summed", break_once)
    with pytest.raises(error):
        pipe.add_lora(lora_file(tmp_path, "second", seed=1))
    assert [each.name for each in pipe.loras] == ["first"]
    assert all(torch.equal(now[2], then[2]) for now, then in zip(originals(pipe), before, strict=True))


def test_names(pipe, tmp_path):
    file = lora_file(tmp_path)
    assert [pipe.add_lora(file) for _ in range(3)] == ["style", "style-2", "style-3"]
    with pytest.raises(LoraError, match="there is no LoRA 'styl' to remove; added are: style, style-2, style-3"):
        pipe.remove_lora("styl")
    pipe.remove_lora("style-2")
    assert pipe.add_lora(file) == "style-2"
    pipe.remove_lora()
    pipe.remove_lora()
    with pytest.raises(LoraError, match="there is no LoRA 'style' to remove; added are: none"):
        pipe.remove_lora("style")


@pytest.mark.parametrize("strength", [float("nan"), float("inf"), 101, "much", None])
def test_strength_is_a_number(pipe, strength, tmp_path):
    wanted = rf"the strength of a LoRA is {strength!r}; it must be a number from -100 to 100"
    with pytest.raises(LoraError, match=wanted):
        pipe.add_lora(lora_file(tmp_path), strength)
    assert pipe.loras == ()


def test_another_kind_of_file_says_where_it_belongs(pipe, tmp_path):
    save_bundle(tiny_adapter(), tmp_path / "bundle.safetensors")
    with pytest.raises(WeightsError, match="bundle.safetensors is .*, but was given as lora; give it as adapter="):
        pipe.add_lora(tmp_path / "bundle.safetensors")
    assert pipe.loras == ()


def test_by_name_in_a_comfyui_folder(tmp_path):
    folder = tmp_path / "models" / "loras" / "styles"
    folder.mkdir(parents=True)
    file = lora_file(folder)
    assert find_lora("Style", tmp_path) == find_lora(file, None) == file
    with pytest.raises(WeightsError, match=r"no LoRA 'ink' in the loras of .*; it has style; give its path"):
        find_lora("ink", tmp_path)


def test_two_pipelines_of_one_model_do_not_mix(pipe, tmp_path):
    pipe.add_lora(lora_file(tmp_path))
    with pytest.raises(LoraError, match="another pipeline has LoRAs in these weights; remove them there first"):
        tiny_pipeline().add_lora(lora_file(tmp_path, "second", seed=1))


def test_blocks_that_live_away_from_the_device_bring_it_along(pipe, tmp_path):
    pipe.add_lora(lora_file(tmp_path))
    expected = draw(pipe, reference=picture())
    pipe.model.visits = Visits("cpu", torch.float32)
    try:
        assert torch.equal(draw(pipe, reference=picture()).latents, expected.latents)
        pipe.remove_lora()
        assert torch.equal(draw(pipe).latents, base_run().latents)
    finally:
        pipe.model.visits = None


def test_the_picture_says_what_it_was_drawn_with(pipe, tmp_path):
    import hashlib

    file = lora_file(tmp_path)
    pipe.add_lora(file, 0.8)
    (saved,) = draw(pipe).save(tmp_path / "out.png")
    wanted = {"name": "style", "strength": 0.8, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert read_record(saved)["loras"] == [wanted]
    pipe.remove_lora()
    assert read_record(draw(pipe).save(tmp_path / "out.png")[0])["loras"] == []


@cache
def nano_size() -> Pipeline:
    torch.manual_seed(0)
    model = AnimaDiT(NANO).eval().requires_grad_(False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer())
    qwen = new_qwen(NANO.text).eval().requires_grad_(False)
    text = TextEncoder(qwen, tokenizer, tokenizer, model.llm_adapter, NANO.text)
    codec = NanoCodec(NANO.codec).eval().requires_grad_(False)
    return Pipeline(model, text, codec, NANO, Adapter(NANO_V1A, NANO).requires_grad_(False))


@pytest.mark.parametrize("naming", ["kohya", "comfyui", "diffusers"])
def test_nano_takes_them_on_every_linear(naming, tmp_path):
    pipe = nano_size()
    before = originals(pipe)
    modules = [name for name in pipe._loras.shapes if not name.startswith("text_encoder.")]
    assert len(modules) == NANO.dit.blocks * 16 + NANO.text.adapter_blocks * 10 + 7
    options = {"steps": 1, "size": (32, 32), "reference": picture()}
    base = draw(pipe, **options)
    pipe.add_lora(write(tmp_path / "a.safetensors", random_pairs(pipe._loras.shapes, modules, rank=2), naming), 0.1)
    original = {name: weight for name, _, weight in before}
    assert not [m for m in modules if torch.equal(weight_of(pipe, m), original[f"{m}.weight"])]
    assert not torch.equal(draw(pipe, **options).latents, base.latents)
    pipe.remove_lora()
    assert untouched(pipe, before) and torch.equal(draw(pipe, **options).latents, base.latents)


def test_load_and_command_line(tmp_path, monkeypatch):
    """`loras=` and `--lora`, on nano's own files."""
    shapes = nano_size()._loras.shapes
    files = [
        write(tmp_path / f"{name}.safetensors", random_pairs(shapes, MODULES[:2], seed=seed), "kohya")
        for seed, name in enumerate(("one", "two"))
    ]
    pipe = snapref.load("nano", loras=[files[0], (files[1], -0.5)])
    assert [(each.name, each.strength) for each in pipe.loras] == [("one", 1.0), ("two", -0.5)]
    out = tmp_path / "out.png"
    arguments = ["generate", "-p", "1girl", "--steps", "1", "--size", "32x32", "-o", str(out), "--json", "-q"]
    ran = CliRunner().invoke(app, [*arguments, "--lora", str(files[0]), "--lora", f"{files[1]}:-0.5"])
    assert ran.exit_code == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert [(each["name"], each["strength"]) for each in report["loras"]] == [("one", 1.0), ("two", -0.5)]
    assert read_record(out)["loras"] == report["loras"]
    ran = CliRunner().invoke(app, [*arguments, "--lora", str(tmp_path / "nowhere.safetensors:0.5")])
    assert ran.exit_code == 2 and "nowhere.safetensors does not exist" in ran.stderr


def eight_bit(model: AnimaDiT) -> AnimaDiT:
    """A copy whose linears of the blocks are fp8 with one scale each, as the seen fp8 file has them."""
    small = AnimaDiT(TINY)
    small.load_state_dict(model.state_dict())
    for block in small.blocks:
        for name, linear in list(block.named_modules()):
            if isinstance(linear, nn.Linear) and "adaln" not in name:
                scale = linear.weight.abs().max() / 448
                fp8 = Float8Linear(linear.in_features, linear.out_features, False, torch.float8_e4m3fn, (1, 1))
                fp8.weight = nn.Parameter((linear.weight / scale).to(torch.float8_e4m3fn), requires_grad=False)
                fp8.weight_scale = scale.detach().reshape(1, 1)
                parent, _, last = name.rpartition(".")
                setattr(block.get_submodule(parent), last, fp8)
    return small.eval().requires_grad_(False)


def test_an_fp8_base_carries_it_beside_its_weights(tmp_path):
    """The same run as the widened weights with the LoRA inside; the fingerprint sees what stands beside."""
    model, text, codec = tiny_parts()

    def pipe_of(base):
        own = TextEncoder(text.qwen, text.qwen_tokenizer, text.t5_tokenizer, base.llm_adapter, TINY.text)
        return Pipeline(base, own, codec, TINY, tiny_pipeline().adapter)

    pipe = pipe_of(eight_bit(model))
    wide = AnimaDiT(TINY).eval().requires_grad_(False)
    wide.load_state_dict(
        {
            name: effective_weight(pipe.model.get_submodule(name[:-7])) if t.dtype == torch.float8_e4m3fn else t
            for name, t in pipe.model.state_dict().items()
            if not name.endswith("weight_scale")
        }
    )
    before, base = originals(pipe), draw(pipe)
    plain = pipe.encode(picture())
    file = lora_file(tmp_path, modules=(*MODULES, "blocks.0.self_attn.q_proj"))
    fp8_weight, other = weight_of(pipe, "blocks.0.self_attn.k_proj"), pipe_of(wide)
    for each in (pipe, other):
        each.add_lora(file, 0.7)
        each.add_lora(file, -0.2)
    assert weight_of(pipe, "blocks.0.self_attn.k_proj") is fp8_weight
    for options in ({}, {"reference": picture()}):
        torch.testing.assert_close(draw(pipe, **options).latents, draw(other, **options).latents, atol=1e-4, rtol=0)
    with pytest.raises(CacheError, match="another base"):
        draw(pipe, reference=plain)
    read = pipe.encode(picture())
    pipe.remove_lora("style-2")
    with pytest.raises(CacheError, match="another base"):
        draw(pipe, reference=read)
    pipe.remove_lora()
    assert untouched(pipe, before) and torch.equal(draw(pipe).latents, base.latents)
    draw(pipe, reference=plain)
