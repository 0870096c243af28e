"""The bench of reading: its rows, its floors, and what it refuses. How long anything takes is not tested."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from snapref.anima.attention import KeyGroup, attend
from snapref.cli import app
from snapref.evaluation.bench_attention import Setting, bench_text, row_report
from snapref.evaluation.floor import flops
from snapref.evaluation.in_run import InRun, Operator, labelled, seen
from snapref.evaluation.reading_rows import (
    ROWS,
    Job,
    attention,
    job_of,
    operations,
    reading_floor,
    reading_in_full,
    reading_share,
)

SIZES = {"size": (64, 32), "ref_size": (32, 64), "steps": 28, "rounds": 2, "minutes": 1.0, "bf16": False}


def tiny_job(**changes):
    return job_of(64, 2, 1, **SIZES | changes)


def test_floors_count_each_branch_with_its_own_keys():
    job = tiny_job()
    own, read, thin, two = (attention(job, keys) for keys in (8, 16, 12, 24))
    found = {row.name: row.attentions(job) for row in ROWS}
    assert found["default"] == found["weight 0.7"] == found["fp8"] == Counter({own: 1, read: 1})
    assert found["both branches read"] == found["fidelity 0.5"] == Counter({read: 2})
    assert found["reference guidance 2.5"] == Counter({own: 1, read: 2})
    assert found["APG and rescale"] == found["default"]
    assert found["half the tokens"] == Counter({own: 1, thin: 1})
    assert found["two pictures"] == Counter({own: 1, two: 1})
    assert found["two pictures, left and right"] == Counter({own: 1, read: 1})


def test_rows_read_what_they_say():
    """Merged as unmerged, halves as all, fp8 nearly as whole, every other row differently."""
    setting = Setting(tiny_job())
    answers = {}
    for row in (None, *ROWS):
        with setting.denoiser(row) as denoiser:
            answers[row and row.name] = setting.step(denoiser)()
    default = answers["default"]

    def apart(name):
        return ((answers[name] - default).norm() / default.norm()).item()

    assert apart("target branch not merged") < 1e-5
    assert 0 < apart("fp8") < 0.05
    halves = "two pictures, left and right"  # here the same picture twice: each half reads what all read
    assert apart(halves) < 1e-5
    others = {row.name for row in ROWS} - {"default", "fp8", "target branch not merged", halves}
    assert all(apart(name) > 1e-5 for name in (None, *others))


def operator(name, part, seconds, *sizes):
    return Operator(name, part, sizes, seconds)


def attended(keys, seconds):
    """A self-attention of both rows of a step."""
    return operator("_scaled_dot_product_attention", "attend", seconds, (2, 2, 8, 32), (2, 2, keys, 32))


def test_ratios_of_known_times():
    job = tiny_job()
    own, read = attention(job, 8), attention(job, 16)
    reading = reading_floor(job)
    each = 1.8 / (reading.total() - reading[own])  # the attention of reading is as large as the target's own
    once = reading[own]  # its attention: a whole model's last block has none, so less than one
    done, share = flops(reading_in_full(job)), reading_share(job)
    found = dict.fromkeys(reading, each) | {own: 1.0, read: 2.0, ("merge", "default"): 0.28, ("around", "default"): 0.1}
    found["read"] = InRun(5.6, [operator("mm", "project", 4.2, (done // 2, 1), (1, 1))])
    step = [attended(8, 1.8), replace(attended(8, 1.2), part="read"), operator("lerp", "attend", 0.3, (1,)),
            operator("mm", "", 7.0, (8, 8), (8, 8)), operator("gelu", "", 1.0, (8, 8)),
            operator("view", "project", 0.0, (8, 8))]  # fmt: skip
    found |= {("plain", "default"): 10.0, "default": InRun(11.2, step)}
    report = row_report(job, ROWS[0], [found, found])
    assert report["ratio"]["median"] == pytest.approx((11.2 + (5.6 * share + 0.28) / 28) / 10, abs=1e-4)
    assert report["floor"]["median"] == pytest.approx(1 + (1 + (1.8 + once) / 28) / 10, abs=1e-4)
    inside = report["in_run"]
    assert inside["ratio"]["median"] == pytest.approx((11.2 + 0.01 + 0.2 * share) / (11.2 - 1.4), abs=1e-4)
    assert inside["added_over_floor"]["median"] == pytest.approx(
        (1.4 + 0.01 + 0.2 * share) / (1.2 + 4.2 * share / 28), abs=1e-4
    )

    three = next(row for row in ROWS if len(row.passes) == 3)  # a third of all that is done for all branches
    further = dict.fromkeys(three.further(job), 0.2)
    found |= {key: value for key, value in further.items() if key not in found}
    found |= {("plain", three.name): 10.0, three.name: InRun(11.2, step), ("merge", three.name): 0.28,
              ("around", three.name): 0.1}
    inside = row_report(job, three, [found])["in_run"]
    assert inside["ratio"]["median"] == pytest.approx((11.2 + 0.01 + 0.2 * share) / (11.2 - 1.4 - 9.8 / 3), abs=1e-4)
    assert inside["added_over_floor"]["median"] == pytest.approx(
        (1.4 + 9.8 / 3 + 0.01 + 0.2 * share) / (1.2 + 8.8 / 3 + 4.2 * share / 28), abs=1e-4
    )

    unmerged = next(row for row in ROWS if not row.merged)
    small = unmerged.beside(job)
    assert small.total() == 2 * len(job.adapter.target_targets) and not ROWS[0].beside(job)
    down = next(product for product in small if product.n == job.adapter.target_rank)
    step += [operator("mm", "project", 0.8, (down.m, down.k), down.sides), operator("add", "project", 0.4, (8, 8))]
    found |= dict.fromkeys(small, 0.1) | {unmerged.name: InRun(12.4, step), ("merge", unmerged.name): 0.0}
    found["plain", unmerged.name], found["around", unmerged.name] = 10.0, 0.1
    report = row_report(job, unmerged, [found])
    assert report["floor"]["median"] == pytest.approx(1 + (1 + 8 * 0.1 + (1.8 + once) / 28) / 10, abs=1e-4)
    inside = report["in_run"]
    assert inside["ratio"]["median"] == pytest.approx((12.4 + 0.2 * share) / (12.4 - 2.6), abs=1e-4)
    assert inside["added_over_floor"]["median"] == pytest.approx(
        (2.6 + 0.2 * share) / (2.0 + 4.2 * share / 28), abs=1e-4
    )


def test_a_step_does_the_arithmetic_that_its_row_is_said_to_need_and_no_more():
    """Every row's attentions, the products beside the weights and all of a third branch: as many as computed."""
    job = tiny_job()
    setting = Setting(job)
    for row in (None, *ROWS):
        with setting.denoiser(row) as denoiser, labelled(), seen() as step:
            setting.step(denoiser)()
        attend = sum(one.product.flops for one in step.operators if one.is_product and one.part in ("attend", "read"))
        assert attend == (flops(row.attentions(job)) if row else 2 * attention(job, job.tokens).flops)
        found = sum(one.product.flops for one in step.operators if one.is_product and one.part == "project")
        if row is None:
            linears = found
            text = attention(job, job.context_rows).flops
        else:
            further = flops(row.further(job)) - (len(row.passes) - 2) * text  # attention to the text is labelled apart
            assert found - linears == flops(row.beside(job)) + further
    with seen() as reading:
        setting.read()
    assert 1 <= reading.flops / flops(reading_floor(job)) < 1.2  # the modulations, whose share shrinks with size


def test_operations_at_full_size():
    found = {row.name: operations(Job(), row) for row in ROWS}
    assert found["default"] == found["weight 0.7"] == pytest.approx(1.1229, abs=1e-4)
    assert found["both branches read"] == pytest.approx(1.2273, abs=1e-4)
    assert found["a quarter of the tokens"] < found["half the tokens"] < found["default"] < found["two pictures"]


def test_only_the_rows_that_are_named():
    words = "bench attention --width 64 --heads 2 --size 32x64 --ref-size 32x32 --rounds 1 --json --row fp8".split()
    report = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    assert [row["name"] for row in report["rows"]] == ["fp8"] and report["rows"][0]["operations"] > 1


def test_command():
    words = "bench attention --width 64 --heads 2 --size 32x64 --ref-size 32x32 --rounds 2 --json".split()
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    report = json.loads(result.stdout)
    assert [row["name"] for row in report["rows"]] == [row.name for row in ROWS]
    assert (report["tokens"], report["reference_tokens"], report["rounds"]) == (8, 4, 2)
    assert all(name in bench_text(report) for name in ("default", "fp8", "half the tokens"))


@pytest.mark.parametrize("words, said", [
    (["--size", "830x1216"], "size is '830x1216'; give WIDTHxHEIGHT in pixels, multiples of 16"),
    (["--ref-size", "0x16"], "ref-size is '0x16'; give WIDTHxHEIGHT"),
    (["--width", "100"], "width is 100 with 16 heads; give a multiple of 8 for each head"),
    (["--rounds", "0"], "rounds is 0; give at least 1"),
    (["--row", "fp9"], "row is 'fp9'; give one of: default, "),
])  # fmt: skip
def test_refusals(words, said):
    result = CliRunner().invoke(app, ["bench", "attention", *words])
    assert said in f"{result.exception}{result.output}"


@pytest.mark.parametrize("rows", [(0,), (1,), (1, 2), (0, 2)])
def test_rows_that_read_are_written_in_place(rows):
    """A batch in which some rows read is those rows alone and the others alone."""
    q, k, v = torch.randn(3, 3, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    group = KeyGroup(torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8), rows=rows)
    together = attend(q, k, v, [group])
    for row in range(3):
        one = slice(row, row + 1)
        read = [KeyGroup(group.k, group.v)] if row in rows else []
        assert torch.allclose(together[one], attend(q[one], k[one], v[one], read), atol=1e-6)
