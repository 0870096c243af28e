"""The training loop resumes bit for bit, and what the trainings feed is what the pipeline feeds."""

import csv
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from snapref.config import NANO, V1A
from snapref.reference.branches import Adapter
from snapref.training import checkpoints
from snapref.training.adapter_task import freeze_unread
from snapref.training.captions import Captions
from snapref.training.config import CONFIGS, RunConfig, load_run_config
from snapref.training.draws import FRAMES, draw
from snapref.training.flow import add_noise, draw_sigmas, velocity_loss
from snapref.training.loop import NotFinite, ema_with_warmup, my_rows, train
from snapref.training.optimizers import learns_by_muon, make_optimizers
from snapref.training.pairs import draw_pair
from snapref.training.tokenizers import train_tokenizers


class LineTask:
    """Fits a small network to a fixed function; the data of a step depend on the step alone."""

    def __init__(self, broken_at: int | None = None):
        torch.manual_seed(0)
        self.model = _Line()
        self.broken_at = broken_at

    def batch(self, step, rank, world):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))[my_rows(8, rank, world)]
        if step == self.broken_at:
            x = x * torch.nan
        return {"x": x}

    def export(self, model, path):
        from snapref.files.weights import save_weights

        save_weights(model.state_dict(), path)


class _Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.heads = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x):
        return {"loss": (self.heads(torch.tanh(self.inner(x))) - x.sum(1, keepdim=True)).square().mean()}


def config(**changes):
    return RunConfig(**{"task": "line", "name": "line", "steps": 12, "batch": 8, "warmup": 2, "decay": 4,
                        "save_every": 3, "muon_lr": 0.02, **changes})


def test_a_run_in_pieces_equals_a_run_in_one(tmp_path):
    whole = train(LineTask(), config(), tmp_path / "whole")
    train(LineTask(), config(), tmp_path / "parts", until=5)
    assert checkpoints.step_of(checkpoints.newest(tmp_path / "parts/line")) == 5
    parts = train(LineTask(), config(), tmp_path / "parts")
    last = [checkpoints.newest(run) for run in (whole, parts)]
    for name in ("model.safetensors",):
        a, b = (load_file(c / name) for c in last)
        assert all(torch.equal(a[k], b[k]) for k in a)
    exports = [load_file(run / "export.safetensors") for run in (whole, parts)]
    assert all(torch.equal(exports[0][k], exports[1][k]) for k in exports[0])  # the EMA resumes too
    rows = [[(r["step"], r["loss"]) for r in csv.DictReader((run / "log.csv").open())] for run in (whole, parts)]
    assert rows[0] == rows[1] and len(rows[0]) == 12


def test_a_torn_checkpoint_is_passed_over(tmp_path):
    train(LineTask(), config(), tmp_path, until=6)
    torn = tmp_path / "line/checkpoint-00000009"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"half")
    assert checkpoints.step_of(checkpoints.newest(tmp_path / "line")) == 6
    train(LineTask(), config(), tmp_path)  # goes on from 6 and replaces the torn one
    assert checkpoints.step_of(checkpoints.newest(tmp_path / "line")) == 12


def test_a_loss_that_is_no_number_stops_and_keeps_the_checkpoint(tmp_path):
    sentence = (r"nan at step 8; lower the learning rate, in a copy of the config with less than muon_lr 0.02 and "
                r"adamw_lr 0.003, and begin under another --name with .*line/export.safetensors as init .* from step 6")
    with pytest.raises(NotFinite, match=sentence):
        train(LineTask(broken_at=7), config(), tmp_path)
    with pytest.raises(NotFinite, match=r"with less than adamw_lr 0.003, and begin again$"):
        train(LineTask(broken_at=1), config(name="early", optimizer="adamw"), tmp_path)
    assert checkpoints.step_of(checkpoints.newest(tmp_path / "line")) == 6


def test_the_average_forgets_its_first_weights():
    model, update = [torch.zeros(3)], ema_with_warmup(0.999)
    for count in range(1, 200):
        update(model, [torch.ones(3)], torch.tensor(count))
    assert model[0].min() > 0.999


def test_rate_rises_stays_and_falls():
    c = config(steps=100, warmup=10, decay=20)
    assert c.rate(0) == 0.1 and c.rate(50) == 1.0 and c.rate(90) == 0.5 and c.rate(99) == pytest.approx(0.05)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda p: p.stem)
def test_every_config_reads(path):
    loaded = load_run_config(path.stem)
    assert loaded.name and loaded.task in ("codec", "text", "base", "tagger", "adapter")


def test_config_errors_name_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="no training config called bass; give a JSON file or one of: base, "):
        load_run_config("bass")
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"task": "base", "name": "x", "steps": 3, "batch": 2, "stepz": 4}))
    with pytest.raises(ValueError, match="unknown fields: stepz"):
        load_run_config(str(wrong))
    with pytest.raises(ValueError, match="steps is 0; it must be at least 1"):
        config(steps=0, decay=0)
    with pytest.raises(ValueError, match="a batch of 9 cannot be split over 2"):
        my_rows(9, 0, 2)


def test_who_learns_by_which_optimizer():
    from snapref.anima.model import AnimaDiT

    dit = AnimaDiT(NANO)
    names = {n: learns_by_muon(n, p) for n, p in dit.named_parameters()}
    assert names["blocks.0.self_attn.q_proj.weight"] and names["llm_adapter.blocks.0.mlp.0.weight"]
    assert not any(names[n] for n in ("x_embedder.proj.1.weight", "final_layer.linear.weight",
                                      "llm_adapter.embed.weight", "blocks.0.self_attn.q_norm.weight"))
    count = sum(p.numel() for o in make_optimizers(dit, config()) for g in o.param_groups for p in g["params"])
    assert count == sum(p.numel() for p in dit.parameters())


def test_sigmas_cover_every_level_and_shift_toward_noise():
    g = torch.Generator().manual_seed(0)
    plain, shifted = draw_sigmas(4096, 1.0, g), draw_sigmas(4096, 3.0, g)
    assert 0 < plain.min() and shifted.max() < 1 and abs(plain.median() - 0.5) < 0.01
    assert abs(shifted.median() - 0.75) < 0.01  # 3 * 0.5 / (1 + 2 * 0.5)


def test_flow_matching_of_the_true_velocity_is_exact():
    clean, noise = torch.randn(3, 16, 2, 4, 4), torch.randn(3, 16, 2, 4, 4)
    sigma = torch.tensor([[0.0, 0.5], [0.3, 0.3], [1.0, 1.0]])
    x = add_noise(clean, noise, sigma)
    assert torch.equal(x[0, :, 0], clean[0, :, 0]) and torch.equal(x[2], noise[2])
    assert velocity_loss(noise - clean, clean, noise).max() == 0
    learn = torch.tensor([[0.0, 1.0]] * 3)
    wrong_first = (noise - clean).clone()
    wrong_first[:, :, 0] += 1
    assert velocity_loss(wrong_first, clean, noise, learn).max() == 0
    assert torch.allclose(velocity_loss(wrong_first, clean, noise), torch.tensor(0.5))


def test_batched_captions_are_what_the_pipeline_tokenizes(tmp_path):
    from transformers import PreTrainedTokenizerFast

    from snapref.anima.text import TextEncoder

    texts = [draw("portrait", 3, i).caption for i in range(20)]
    train_tokenizers(texts, NANO.text, tmp_path)
    captions = Captions(tmp_path)
    fast = [PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / f"{n}_tokenizer.json")) for n in ("qwen", "t5")]
    encoder = TextEncoder(nn.Module(), *fast, nn.Module(), NANO.text)
    for text in [*texts, ""]:
        tokens = encoder.tokenize(text)
        assert captions.qwen_ids([text])[0][0].tolist() == list(tokens.qwen_ids)
        assert captions.t5_ids([text])[0][0].tolist() == list(tokens.t5_ids)


@pytest.mark.parametrize("kind", FRAMES)
def test_a_number_is_a_picture(kind):
    one, again, other = draw(kind, 1, 5), draw(kind, 1, 5), draw(kind, 1, 6)
    assert np.array_equal(one.frames, again.frames) and one.caption == again.caption
    assert len(one.frames) == FRAMES[kind] and not np.array_equal(one.frames, other.frames)


def test_pairs_name_the_scene_and_keep_held_out_characters_out():
    from snapref.world import HELD_BACK, parse, split_of

    silent = 0
    for i in range(60):
        pair = draw_pair(2, i)
        named = parse(pair.prompt)
        assert "background" in named and pair.reference.shape == (128, 96, 3)
        silent += "hair_colour" not in named and "outfit" not in named
        assert not set(HELD_BACK.values()) & set(named.values())
        if pair.mode == "char":
            assert "artist" in named  # the prompt sets the style that the picture does not
    assert silent > 30
    from snapref.world import character

    assert all(split_of(character(i, "adapter")) == "adapter" for i in range(50))


def test_unread_parameters_are_taken_out_of_training():
    with torch.device("meta"):
        adapter = Adapter(V1A, NANO)
    freeze_unread(adapter)
    frozen = {n for n, p in adapter.named_parameters() if not p.requires_grad}
    last = NANO.dit.blocks - 1
    assert len(frozen) == 12 and all(n.startswith(f"ref.blocks.{last}.") for n in frozen)


def test_no_pair_shows_a_held_out_character(monkeypatch):
    """A "char" reference has another art style, and so another attribute set, which has a split of its own."""
    from snapref.world import split_of

    seen = []
    monkeypatch.setattr("snapref.training.pairs.render", lambda person, *rest: seen.append(person))
    modes = {draw_pair(5, i).mode for i in range(120)}
    assert modes == {"cs", "char"} and {split_of(person) for person in seen} == {"adapter"}
