"""Watching a run changes nothing in it; what is shown comes from its files; the branches drawn are the ones built."""

import os
import signal
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from training_case import tiny_config

from snapref.config import BASE, NANO, NANO_V1A, V1A, V1B
from snapref.lab import lora_view, screen
from snapref.lab.screen import Screen
from snapref.lab.training_view import course, curves, follow, shortened
from snapref.reference.branches import Adapter
from snapref.training.adapter_task import AdapterTask
from snapref.training.loop import train


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A tiny run of 6 steps, watched, in two calls; its folder and config."""
    folder = tmp_path_factory.mktemp("followed")
    config = tiny_config(folder, {"previews": 0}, save_every=3, steps=6, decay=2)
    for until in (2, 6):
        run = follow(config, folder / "runs", until)
    return run, config, folder


def test_a_watched_run_learns_what_an_unwatched_one_learns(followed):
    run, config, folder = followed
    alone = train(AdapterTask(config), config, folder / "alone")
    watched, unwatched = (load_file(path / "export.safetensors") for path in (run, alone))
    assert all(torch.equal(watched[name], value) for name, value in unwatched.items())


def test_the_course_has_every_step_once_and_the_gap_before_the_first(followed):
    found = course(followed[0])
    assert [step for step, _ in found.losses] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in found.gaps] == [0, 2, 3, 6]
    assert found.last["gap"] == pytest.approx(found.last["wrong"] - found.last["right"], abs=2e-5)


def test_a_run_that_goes_on_starts_from_where_the_other_ended(followed):
    run, config, folder = followed
    onward = shortened(config, name="onward", init=str(run / "export.safetensors"))
    first = course(follow(onward, folder / "runs", 1)).gaps[0]
    last = course(run).last
    assert first["step"] == 0
    for name in ("right", "wrong", "none"):  # the file is fp16
        assert first[name] == pytest.approx(last[name], rel=1e-2)


def test_an_interrupted_cell_keeps_a_checkpoint_and_the_next_call_goes_on(tmp_path, monkeypatch):
    config, batch = tiny_config(tmp_path, steps=6, decay=2), AdapterTask.batch

    def interrupted(self, step, rank, world):
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return batch(self, step, rank, world)

    monkeypatch.setattr(AdapterTask, "batch", interrupted)
    run = follow(config, tmp_path / "runs", 6)
    assert 3 <= course(run).losses[-1][0] <= 4
    monkeypatch.setattr(AdapterTask, "batch", batch)
    assert [step for step, _ in course(follow(config, tmp_path / "runs", 6)).losses] == [1, 2, 3, 4, 5, 6]


def test_a_torn_last_line_is_left_out(tmp_path):
    (tmp_path / "log.csv").write_text("step,loss\n1,0.5\n2,0.25\n3")
    assert course(tmp_path).losses == [(1, 0.5), (2, 0.25)]


def test_an_empty_run_can_be_drawn(tmp_path):
    left, right = curves(course(tmp_path), 10).axes
    assert not left.lines and not right.lines and right.get_title() == "no gap measured yet"


def test_the_title_says_the_gap_and_its_interval(followed):
    found = course(followed[0])
    left, right = curves(found, 6).axes
    assert right.get_title() == f"gap {found.last['gap']:.3f} " + (
        f"(95 %: {found.last['low']:.3f} to {found.last['high']:.3f})"
    )
    assert len(left.lines) == 2 and len(right.lines) == 3
    assert left.lines[1].get_ydata()[-1] == pytest.approx(sum(loss for _, loss in found.losses) / 6)


def test_shortened_tells_fields_from_options(tmp_path):
    config = tiny_config(tmp_path)
    changed = shortened(config, save_every=2, gap=3)
    assert changed == replace(config, save_every=2, options={**config.options, "gap": 3})


def test_a_screen_is_redrawn_no_more_often_than_asked_and_at_the_end(monkeypatch):
    now, drawn = [0.0], []
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])

    def draw():
        drawn.append(now[0])
        return torch.full((3, 4, 4), len(drawn) / 10)

    with Screen(draw, "grey", every=2.0) as shown:
        for now[0] in (0.5, 1.9, 2.0, 3.0, 4.5, 5.0):
            shown.look()
        before = shown.widget.value
    assert drawn == [0.0, 2.0, 4.5, 5.0] and shown.widget.value != before


def test_a_screen_is_finished_after_an_error_too():
    pictures = iter([torch.zeros(3, 4, 4), torch.ones(3, 4, 4)])
    with pytest.raises(ZeroDivisionError), Screen(lambda: next(pictures), "black, then white") as shown:
        first = shown.widget.value
        1 / 0  # noqa: B018
    assert shown.widget.value != first


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([(V1A, BASE), (V1B, BASE), (NANO_V1A, NANO)]), st.integers(1, 64), st.integers(1, 64))
def test_the_table_counts_what_an_adapter_has(sizes, reference_rank, target_rank):
    config, model = sizes
    config = replace(config, reference_rank=reference_rank, target_rank=target_rank)
    model = replace(model, dit=replace(model.dit, blocks=2))  # all blocks are alike
    per_block = sum(sum(one.values()) for one in lora_view.carried(config, model.dit).values())
    with torch.device("meta"):
        assert per_block * model.dit.blocks == Adapter(config, model).parameter_count
    *_, reference, target = lora_view.table(config, model.dit).splitlines()[-1].replace(",", "").split()
    assert int(reference) + int(target) == per_block


def test_the_drawing_shows_each_linear_once_and_each_pair_twice():
    together = [name for names in lora_view.kinds(V1A, BASE.dit) for name in names]
    assert sorted(together) == sorted(lora_view.linear_shapes(BASE.dit)) and len(lora_view.kinds(V1A, BASE.dit)) == 5
    (axes,) = lora_view.to_scale(V1A, BASE.dit).axes
    thin = [p for p in axes.patches if min(p.get_width(), p.get_height()) in (64, 128)]
    assert len(thin) == 2 * (2 + 1 + 0 + 1 + 1)  # A and B, of both branches in self-attention, none on the text's k, v
    assert sum(p.get_width() * p.get_height() for p in thin) == 3 * 524_288 - 262_144 + 2 * 1_310_720
