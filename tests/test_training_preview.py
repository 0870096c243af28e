"""What one sees of a run: the panel of a checkpoint, the held-out gap, the ranking of checkpoints, the logs."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_case import context, latent, tiny_adapter, tiny_model
from torch import nn
from training_case import TinyPairs

from snapref.evaluation import compare as comparing
from snapref.evaluation.compare import candidates, compare, comparison_text
from snapref.files.loader import WeightsError
from snapref.reference.bundle import save_bundle
from snapref.reference.encode import encode_reference
from snapref.training.ahead import Ahead
from snapref.training.flow import add_noise, draw_sigmas, velocity_loss
from snapref.training.log import Log, append_row
from snapref.training.preview import COLUMNS, draw_panel
from snapref.training.unseen import Unseen, gap_summary, persons, unseen_losses, unseen_prepared


class TinyCodec(nn.Module):
    """Three of the latent's channels as a picture."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def decode(self, latents):
        return self.gain * latents[:, :3, 0].repeat_interleave(4, 2).repeat_interleave(4, 3).sigmoid()


def pairs(count: int = 4) -> Unseen:
    return Unseen(
        torch.cat([latent(8, 6, i) for i in range(count)]), torch.cat([latent(6, 6, 20 + i) for i in range(count)]),
        torch.cat([latent(6, 6, 40 + i) for i in range(count)]), torch.cat([context(5, i) for i in range(count)]),
        context(5, 70).expand(count, -1, -1), context(5, 80),
    )


def test_the_panel_is_the_same_each_time_and_leaves_all_as_it_was():
    dit, adapter = tiny_model(), tiny_adapter()
    before = {name: weight.clone() for name, weight in dit.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    panels = [draw_panel(dit, adapter, TinyCodec(), pairs(), rows=2, steps=2) for _ in range(2)]
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(panels[0], panels[1]) and len(COLUMNS) == 5
    assert all(torch.equal(before[name], weight) for name, weight in dit.state_dict().items())
    width = (panels[0].width + 4) // 5 - 4
    right, wrong, none = (np.asarray(panels[0])[14:, i * (width + 4) :][:, :width] for i in (1, 2, 3))
    assert not np.array_equal(right, wrong) and not np.array_equal(right, none)


def test_the_loss_of_a_pair_is_the_loss_of_sampling_from_its_cache():
    dit, adapter, unseen = tiny_model(), tiny_adapter(), pairs(3)
    losses = unseen_losses(dit, adapter, unseen, shift=3.0, batch=2)
    generator = torch.Generator().manual_seed(0)
    sigmas, noises = draw_sigmas(3, 3.0, generator), None
    noises = torch.randn(unseen.latent.shape, generator=generator)
    for row in range(3):
        one = slice(row, row + 1)
        noisy = add_noise(unseen.latent[one], noises[one], sigmas[one])
        for name, pictures in (("right", unseen.reference), ("wrong", unseen.wrong), ("none", None)):
            memory, branch = None, None
            if pictures is not None:
                memory = encode_reference(dit, adapter, [pictures[one]], unseen.reference_context[one]).memory()
                branch = adapter.target
            with torch.no_grad():
                velocity = dit(noisy, sigmas[one], unseen.context[one], memory=memory, branch=branch)
            expected = velocity_loss(velocity, unseen.latent[one], noises[one]).item()
            assert losses[name][row] == pytest.approx(expected, rel=1e-4)


def test_a_gap_has_its_interval():
    found = gap_summary({"right": np.array([1.0, 2, 3]), "wrong": np.array([2.0, 3, 4.3]), "none": np.zeros(3)})
    assert found["gap"] == pytest.approx(1.1) and found["low"] < 1.1 < found["high"] and found["n"] == 3


def test_prepared_held_out_pairs_read_another_picture_as_the_wrong_one():
    pairs = TinyPairs(Path("unseen"))
    assert persons(pairs).tolist() == [n // 8 for n in range(40)]
    unseen = unseen_prepared(pairs, 12)
    pictures = {pair["reference"].sum().item(): n // 8 for n in range(40) for pair in [pairs.pair(n)]}
    for right, wrong in zip(unseen.reference, unseen.wrong, strict=True):
        assert pictures[right.sum().item()] != pictures[wrong.sum().item()]
    assert len(unseen) >= 8 and unseen.empty.shape == (1, 5, 48)
    with pytest.raises(ValueError, match="show 1 characters; prepare pictures of two or more"):
        pairs.buckets = {(6, 4, 6, 6): [1, 3, 5, 7]}
        unseen_prepared(pairs, 4)


def test_checkpoints_are_ranked_and_equal_ones_are_told_to_be_equal(tmp_path, monkeypatch):
    monkeypatch.setattr(comparing, "open_base", lambda options, device: tiny_model())
    for step, seed in ((5, 1), (10, 1), (15, 9)):
        save_bundle(tiny_adapter(seed=seed), tmp_path / f"a/bundles/{step:08d}.safetensors")
    report = compare([tmp_path / "a"], n=16, unseen=tmp_path / "unseen", quiet=True)
    rows = report["ranking"]
    assert [row["gap"] for row in rows] == sorted((row["gap"] for row in rows), reverse=True)
    same = {row["step"]: row for row in rows}
    assert same[5]["gap"] == same[10]["gap"] and same[5]["gap"] != same[15]["gap"]
    assert rows[0]["behind"] == 0 and all(row["ci95"][0] <= row["gap"] <= row["ci95"][1] for row in rows)
    assert rows[0]["gap"] == pytest.approx(rows[0]["wrong"] - rows[0]["right"], abs=2e-4)
    assert "a step 5" in comparison_text(report) and "behind the best" in comparison_text(report)
    assert [c.step for c in candidates([tmp_path / "a"], last=2)] == [10, 15]
    with pytest.raises(WeightsError, match="holds no checkpoints of an adapter; give a run's folder"):
        candidates([tmp_path])


def test_runs_on_different_bases_are_not_compared(tmp_path):
    for name, weights in (("a", "x"), ("b", "y")):
        save_bundle(tiny_adapter(), tmp_path / name / "bundles/00000005.safetensors")
        (tmp_path / name / "config.json").write_text(f'{{"options": {{"weights": "{weights}"}}}}')
    with pytest.raises(ValueError, match="the runs differ in weights: x, y; compare those of one base"):
        compare([tmp_path / "a", tmp_path / "b"], quiet=True)


def test_the_next_batch_is_fetched_while_a_step_is_computed():
    asked = []
    with Ahead(lambda step: asked.append(step) or {"step": step}, stop=3, wanted=True) as ahead:
        assert [ahead.batch(step)["step"] for step in range(3)] == [0, 1, 2]
    assert asked == [0, 1, 2] and ahead.waited > 0

    def lost(step):
        if step == 1:
            raise OSError("gone")
        return {}

    with Ahead(lost, stop=3, wanted=True) as ahead:
        ahead.batch(0)
        with pytest.raises(OSError, match="gone"):
            ahead.batch(1)


def test_a_resumed_log_counts_its_seconds_on(tmp_path):
    log = Log(tmp_path / "log.csv", 0)
    for step in (1, 2, 3):
        log.row(step, 4 * step, 10.0 * step, 1.0, 1.0, {"loss": 0.5}, data=0.1)
    log.close()
    log = Log(tmp_path / "log.csv", 2)
    log.row(3, 12, 5.0, 1.0, 1.0, {"loss": 0.4}, data=0.2)
    log.close()
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert [row["seconds"] for row in rows] == ["10.0", "20.0", "25.0"] and rows[2]["data"] == "0.2000"


def test_tensorboard_that_is_missing_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.warns(UserWarning, match="tensorboard is not installed, so only log.csv is written") as said:
        log = Log(tmp_path / "log.csv", 0, tensorboard=True)
    log.row(1, 4, 1.0, 1.0, 1.0, {"loss": 0.5})
    assert len(said) == 1


def test_a_row_of_the_same_step_is_replaced(tmp_path):
    for step, gap in ((5, 1), (10, 2), (15, 3), (10, 9)):
        append_row(tmp_path / "gaps.csv", {"step": step, "gap": gap})
    rows = [(r["step"], r["gap"]) for r in csv.DictReader((tmp_path / "gaps.csv").open())]
    assert rows == [("5", "1"), ("10", "9")]
