"""The card against the CPU, small: reading with every control on nano, and a step of training. Under a minute."""

import csv

import pytest
import torch
from pipeline_case import picture
from reading_case import PROMPT, error, pipe_of
from reference_case import tiny_model
from training_case import tiny_config

import snapref
from snapref.training.adapter_task import AdapterStep, AdapterTask
from snapref.training.exact import copied
from snapref.training.loop import train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is seen; with one: pytest tests/gpu")

CARD = "cuda"


def test_weights_a_region_and_an_fp8_cache_as_on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # 10 bits of a factor, in the codec's convolutions
    here, card = pipe_of("nano"), snapref.load("nano", device=CARD)
    pictures = [picture(0), picture(1, (48, 48))]
    read = {"weights": (0.5, 1.5), "cache_form": "fp8"}
    ours, theirs = (pipe.encode(pictures, **read) for pipe in (here, card))
    for k, v in zip(ours.widened().layers, theirs.widened().layers, strict=True):
        for found, wanted in zip(v, k, strict=True):
            apart = (found.cpu() - wanted).abs()
            # A number beside the border of two fp8 values may fall on its other side: one step, and seldom.
            assert apart.max() <= wanted.abs().max() / 8
            assert (apart > 1e-3 * wanted.abs()).float().mean() < 0.01

    def drawn(pipe, cache, regions=(None, "left")):
        return pipe(PROMPT, cache, regions=[*regions], steps=4, quiet=True).latents.cpu()

    wanted = drawn(here, ours)
    assert error(drawn(card, ours.to(CARD)), wanted) < 1e-3  # the same bits are read
    assert error(drawn(card, theirs), wanted) < 2e-2
    for other in (drawn(here, ours.with_weights([1.5, 0.5])), drawn(here, ours, (None, None))):
        assert error(other, wanted) > 5e-2  # what a control that is lost on the card would draw


def test_a_step_of_adapter_training_in_bf16(tmp_path):
    """The base in bf16 and autocast, as at full size; the loss is that of fp32 on the CPU, and every branch moves."""
    settings = tiny_config(
        tmp_path, {"dtype": "bfloat16", "recompute": True, "jitter": [], "gap": 0}, steps=1, warmup=0, decay=0,
        optimizer="adamw", precision="bf16",
    )  # fmt: skip
    task = AdapterTask(settings)
    assert task.dit.dtype == torch.bfloat16
    before = copied(task.model.adapter).cpu()
    with torch.no_grad():
        wanted = AdapterStep(tiny_model(), before)(**task.batch(0, 0, 1))["loss"].item()
    folder = train(task, settings, tmp_path / "runs")
    (row,) = csv.DictReader((folder / "log.csv").open())
    assert float(row["loss"]) == pytest.approx(wanted, rel=2e-2)
    for (name, new), old in zip(task.model.adapter.named_parameters(), before.parameters(), strict=True):
        assert new.isfinite().all()
        if new.requires_grad and "lora_B" in name:  # A follows from the second step on: B begins with zeros
            assert not torch.equal(new.cpu(), old), name
