"""Everything worth checking on a GPU, in under eight minutes: `pytest -s tests/gpu`. Skipped where there is none.

Anima at full size with random weights, made on the card. Its figures go to figures/gpu.json.
"""

import gc
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from snapref.anima.attention import KeyGroup
from snapref.anima.linear import Float8Linear
from snapref.anima.model import AnimaDiT
from snapref.anima.offload import Visits
from snapref.config import BASE, NANO
from snapref.files.nano import nano_file
from snapref.sampling.memory import CONTEXT, Ask, make_plan
from snapref.sampling.opening import open_files

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is seen; with one: pytest tests/gpu")

OUT = Path(__file__).parents[2] / "figures" / "gpu.json"
SIZE = (1216, 832)
LATENT = (16, 1, SIZE[0] // 8, SIZE[1] // 8)
TOKENS = 4096  # of a reference of 1024 x 1024
FIGURES: dict = {}


@pytest.fixture(scope="module", autouse=True)
def figures():
    """Writes what was measured, also when a check failed."""
    FIGURES["device"] = torch.cuda.get_device_name()
    FIGURES["capability"] = list(torch.cuda.get_device_capability())
    FIGURES["torch"] = torch.__version__
    yield
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(FIGURES, indent=1) + "\n", encoding="utf-8")


@torch.no_grad()
def model_of(dtype: torch.dtype, blocks: int = 28) -> AnimaDiT:
    """Random weights of published shapes on the card."""
    torch.manual_seed(0)
    config = replace(BASE, dit=replace(BASE.dit, blocks=blocks))
    with torch.device("meta"):
        model = AnimaDiT(config)
    model = model.to_empty(device="cuda").to(dtype).eval().requires_grad_(False)
    for weight in model.parameters():
        weight.fill_(1) if weight.ndim == 1 else weight.normal_(std=weight.shape[1] ** -0.5)
    return model


def inputs(rows: int = 2, latent=LATENT):
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(rows, *latent, generator=generator, device="cuda")
    return x, torch.full((rows,), 0.7, device="cuda"), torch.randn(rows, 512, 1024, generator=generator, device="cuda")


def memory_of(model: AnimaDiT, rows=(0,)):
    dit = model.config.dit
    k, v = torch.randn(2, 1, dit.heads, TOKENS, dit.head_dim, device="cuda", dtype=model.dtype)
    return [[KeyGroup(k.clone(), v.clone(), rows=rows)] for _ in model.blocks]


def seconds(call, times: int = 5) -> float:
    call()
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def cleared() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_finite_steps_and_the_plan(dtype):
    cleared()
    name = str(dtype).removeprefix("torch.")
    model = model_of(dtype)
    x, sigma, context = inputs()
    assert model(x, sigma, context).isfinite().all()
    figures = {"seconds_per_step": round(seconds(lambda: model(x, sigma, context)), 4)}
    memory = memory_of(model)
    cleared()
    assert model(x, sigma, context, memory=memory).isfinite().all()
    measured = torch.cuda.max_memory_allocated() + CONTEXT
    figures["seconds_per_step_with_reference"] = round(seconds(lambda: model(x, sigma, context, memory=memory)), 4)
    # The same things as in this process: model and cache, no codec, adapter or merged copy.
    plan = make_plan(Ask(BASE, dtype, SIZE, ref_megapixels=1024**2 / 1e6))
    absent = ("codec (fp32)", "adapter, both branches", "target branch in the weights")
    planned = plan.phases["drawing"] - sum(part.bytes for part in plan.parts if part.name in absent)
    figures |= {"peak_bytes": measured, "planned_bytes": planned}
    FIGURES[name] = figures
    print(name, figures)
    assert abs(measured / planned - 1) <= 0.1, figures


@torch.no_grad()
def test_half_precisions_agree_with_fp32():
    cleared()
    model = model_of(torch.float32, blocks=4)
    x, sigma, context = inputs(1, (16, 1, 64, 64))
    exact = model(x, sigma, context)
    for dtype, bound in ((torch.float16, 1e-2), (torch.bfloat16, 6e-2)):
        error = ((model.to(dtype)(x, sigma, context) - exact).norm() / exact.norm()).item()
        FIGURES[f"error_{dtype}".replace("torch.", "")] = error
        model = model_of(torch.float32, blocks=4)
        assert error <= bound


@torch.no_grad()
def test_visiting_blocks_give_the_same_bits():
    cleared()
    model = model_of(torch.bfloat16, blocks=6)
    x, sigma, context = inputs(1, (16, 1, 64, 64))
    usual = model(x, sigma, context)
    for block in model.blocks:
        for weight in block.parameters():
            weight.data = weight.data.cpu().pin_memory()
    model.visits = Visits(torch.device("cuda"), torch.bfloat16)
    cleared()
    held = torch.cuda.memory_allocated()
    for _ in range(3):
        assert torch.equal(model(x, sigma, context), usual)
    one = sum(weight.nbytes for weight in model.blocks[0].parameters())
    FIGURES["offload"] = {"blocks_at_once": (torch.cuda.max_memory_allocated() - held) / one}
    FIGURES["offload"]["seconds_per_call"] = seconds(lambda: model(x, sigma, context))
    assert torch.cuda.max_memory_allocated() - held < 4 * one  # two blocks, and what a call computes


def test_a_run_whose_parts_live_away_gives_the_same_bits():
    """Language model, LLM adapter and codec come layer by layer, blocks one by one; on nano, files and all."""
    files = {name: nano_file(f"{file}.safetensors") for name, file in
             {"base": "base", "text_encoder": "text", "codec": "codec", "adapter": "adapter_v1a"}.items()}  # fmt: skip
    files["tokenizers"] = nano_file("qwen_tokenizer.json"), nano_file("t5_tokenizer.json")
    picture = Image.effect_mandelbrot((96, 128), (-2, -1.5, 1, 1.5), 50).convert("RGB")
    drawn = []
    for offload in (False, True):
        pipe = open_files(NANO, **files, device=torch.device("cuda"), dtype=torch.float32, offload=offload)
        drawn.append(pipe("1girl, beach", picture, steps=4, quiet=True))
    assert torch.equal(drawn[0].latents, drawn[1].latents)
    assert drawn[0].image.tobytes() == drawn[1].image.tobytes()


@torch.no_grad()
def test_fp8_weights_widen_on_the_card():
    cleared()
    linear = Float8Linear(2048, 8192, False, torch.float8_e4m3fn, (8192, 1)).to_empty(device="cuda")
    weight = torch.randn(8192, 2048, device="cuda") / 45
    linear.weight_scale = weight.abs().amax(1, keepdim=True) / 448
    linear.weight = torch.nn.Parameter((weight / linear.weight_scale).to(torch.float8_e4m3fn), requires_grad=False)
    exact = linear.weight.double() * linear.weight_scale
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert torch.equal(linear.widened(dtype), exact.float().to(dtype))
        assert linear(torch.randn(64, 2048, device="cuda", dtype=dtype)).isfinite().all()


@torch.no_grad()
def test_compile():
    cleared()
    model = model_of(torch.bfloat16, blocks=4)
    x, sigma, context = inputs()
    memory = memory_of(model)
    usual = model(x, sigma, context, memory=memory)
    plain = seconds(lambda: model(x, sigma, context, memory=memory))
    for block in model.blocks:
        block.compile()
    begun = time.perf_counter()
    compiled = model(x, sigma, context, memory=memory)
    torch.cuda.synchronize()
    FIGURES["compile"] = {"first_call_seconds": round(time.perf_counter() - begun, 1), "plain_seconds": plain}
    FIGURES["compile"]["seconds"] = seconds(lambda: model(x, sigma, context, memory=memory))
    assert ((compiled - usual).norm() / usual.norm()) <= 3e-2
