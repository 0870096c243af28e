"""The plan of memory: counted against what tensors really take, and the sentence when a card is too small."""

import dataclasses
import json

import pytest
import torch
from pipeline_case import TINY, picture, tiny_parts, tiny_pipeline
from typer.testing import CliRunner

from snapref.cli import app
from snapref.config import BASE
from snapref.sampling import memory
from snapref.sampling.advice import OutOfMemory, advice
from snapref.sampling.memory import GB, Ask, make_plan
from snapref.sampling.working import working_bytes

SMALL = Ask(TINY, torch.float32, (64, 48))


def part(plan, name: str) -> int:
    return next(p.bytes for p in plan.parts if p.name.startswith(name))


def test_what_lives_at_once_is_counted():
    def make():
        x = torch.empty(1000)  # 4 kB, an argument: not counted
        return lambda: (x + 1).relu().sum()  # 4 kB, then 4 kB beside it, then 4 bytes

    assert working_bytes(make) == 8000

    def views():
        x = torch.empty(10, 10)
        return lambda: x.t()[:, :2]

    assert working_bytes(views) == 0


def test_parts_weigh_what_the_tensors_weigh():
    model, text, codec = tiny_parts()
    plan = make_plan(SMALL)
    blocks = sum(p.nbytes for p in model.blocks.parameters())
    assert part(plan, "model: blocks") == blocks
    reader = sum(p.nbytes for p in model.llm_adapter.parameters())
    assert part(plan, "model: text adapter") == reader
    assert part(plan, "model: embedders") == sum(p.nbytes for p in model.parameters()) - blocks - reader
    assert part(plan, "text encoder") == sum(p.nbytes for p in text.qwen.parameters())
    assert part(plan, "codec") == sum(p.nbytes for p in codec.parameters())
    cache = tiny_pipeline().encode(picture(size=(64, 64)))
    one = dataclasses.replace(SMALL, ref_megapixels=64 * 64 / 1e6)
    assert part(make_plan(one), "reference cache") == cache.nbytes
    assert plan.peak == max(plan.phases.values()) and json.loads(json.dumps(plan.to_json()))["peak"] == plan.peak


def test_less_is_less():
    def drawing(**changes):
        return make_plan(dataclasses.replace(SMALL, **changes)).phases["drawing"]

    usual = drawing()
    assert drawing(size=(128, 96)) > usual and drawing(batch=2) > usual
    assert drawing(passes=1) < usual and drawing(references=0) < usual and drawing(dtype=torch.bfloat16) < usual
    eight = make_plan(dataclasses.replace(SMALL, fp8=True))
    assert part(eight, "model: blocks") < part(make_plan(SMALL), "model: blocks")
    assert "encoding the picture" not in make_plan(dataclasses.replace(SMALL, references=0)).phases


def test_full_size_weights_are_the_published_ones():
    """Without codec and calls, which would take seconds: the counts alone."""
    with torch.device("meta"):
        model = memory.AnimaDiT(BASE)
    ask = Ask(BASE, torch.bfloat16, (1216, 832))
    named = [(n, p) for n, p in model.named_parameters()]
    blocks = [(n.split(".", 2)[2], p) for n, p in named if n.startswith("blocks.")]
    rest = sum(p.nbytes // 2 for n, p in named if not n.startswith("blocks."))
    assert sum(memory.weight_bytes(n, p, ask) for n, p in blocks) + rest == 4_182_137_856
    fp8 = sum(memory.weight_bytes(n, p, dataclasses.replace(ask, fp8=True)) for n, p in blocks)
    narrow = 28 * (16_777_216 + 12_582_912 + 33_554_432)
    assert fp8 == sum(memory.weight_bytes(n, p, ask) for n, p in blocks) - narrow


def test_advice_adds_up_until_it_fits():
    ask = dataclasses.replace(SMALL, batch=3, ref_megapixels=1.0)
    least = make_plan(dataclasses.replace(ask, batch=1, ref_megapixels=0.5)).peak
    said = advice(ask, least)
    assert "drawing 48x64 with 1 reference needs about" in said and "then it is" in said
    assert "draw one prompt at a time and set ref_megapixels=0.5" in said
    assert "even so" in advice(ask, 1000) and advice(ask, 1000).count("draw 24x32") <= 1


def test_running_out_of_memory_is_one_sentence_after_the_plan(capsys):
    pipe = tiny_pipeline()

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with pytest.raises(OutOfMemory, match=r"^out of memory: drawing 48x64 with 1 reference needs about") as caught:
        pipe(["1girl", "1girl, beach"], picture(), size=(64, 48), steps=1, quiet=True, callback=full)
    assert "draw one prompt at a time" in str(caught.value)
    assert "peak while drawing" in capsys.readouterr().err
    pipe("1girl", steps=1, quiet=True)  # and the model is as it was


def test_plan_command():
    run = CliRunner().invoke(app, ["plan", "--model", "nano", "--card", "8", "--dtype", "fp32", "--json"])
    report = json.loads(run.stdout)
    assert report["fits"] is True and report["advice"] is None and report["card"] == 8
    assert {"reading the prompt", "drawing", "decoding"} <= report["phases"].keys()
    run = CliRunner().invoke(app, ["plan", "--model", "nano", "--card", "0.3"])
    assert "the card has 0.3 GB free" in run.stdout and "drawing 96x128" in run.stdout
    assert f"{memory.CONTEXT / GB:7.2f} GB" in run.stdout
    for wrong, words in (
        (["--dtype", "int4"], "dtype is 'int4'; give one of bf16"),
        (["--size", "100x100"], "size is '100x100'"),
        (["--model", "other"], "there is no model 'other'"),
        (["--card", "-1"], "card above 0 GB"),
    ):
        run = CliRunner().invoke(app, ["plan", *wrong])
        assert run.exit_code == 2 and words in run.output
