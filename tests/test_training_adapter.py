"""Training an adapter: exact resume after a kill, processes that agree, what stops a run, what is checked first."""

import copy
import csv
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from reference_case import TINY, TINY_ADAPTER, tiny_adapter, tiny_model
from safetensors.torch import load_file
from training_case import TinyPairs, tiny_config

from snapref import config as sizes
from snapref.reference import encode
from snapref.reference.branches import Adapter
from snapref.reference.bundle import save_bundle
from snapref.training import adapter_task, checkpoints, exact, loop
from snapref.training.adapter_task import AdapterStep, AdapterTask, freeze_unread
from snapref.training.exact import NotTheSame, check_cached_equals_joint
from snapref.training.family import launcher
from snapref.training.flow import draw_sigmas
from snapref.training.loop import NoData, NotFinite, NotSaved, train

TESTS = Path(__file__).parent
TWO = tuple(launcher(2)[1:-2])  # two processes of what follows


def run(folder: Path, *words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    command = [sys.executable, *before, str(TESTS / "training_case.py"), str(folder), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)


def train_here(folder: Path, options=None, until=None, **changes) -> Path:
    settings = tiny_config(folder, options, **changes)
    return train(AdapterTask(settings), settings, folder / "runs", until)


def losses(folder: Path) -> list[float]:
    return [float(row["loss"]) for row in csv.DictReader((folder / "log.csv").open())]


def same_state(one: Path, other: Path) -> None:
    """Weights, average and optimizers of the newest checkpoints, bit for bit."""
    one, other = checkpoints.newest(one), checkpoints.newest(other)
    assert one.name == other.name
    a, b = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    for name in ("custom_checkpoint_0.pkl", "optimizer.bin"):
        x, y = (torch.load(folder / name, weights_only=True) for folder in (one, other))
        assert_equal(x, y)


def assert_equal(x, y):
    if isinstance(x, torch.Tensor):
        assert torch.equal(x, y)
    elif isinstance(x, dict):
        assert x.keys() == y.keys()
        for key in x:
            assert_equal(x[key], y[key])
    elif isinstance(x, (list, tuple)):
        for a, b in zip(x, y, strict=True):
            assert_equal(a, b)
    else:
        assert x == y


def test_thirty_steps_are_fifteen_a_kill_and_fifteen(tmp_path):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = train_here(tmp_path / "whole")
    killed = run(tmp_path / "killed", "die_at=17")
    assert killed.returncode == -9, killed.stderr
    folder = tmp_path / "killed/runs/tiny"
    assert checkpoints.step_of(checkpoints.newest(folder)) == 15
    (folder / "aside-20").mkdir()  # what a kill inside a save leaves
    train_here(tmp_path / "killed")
    assert not (folder / "aside-20").exists()
    same_state(whole, folder)
    assert losses(whole) == losses(folder) and len(losses(whole)) == 30


def test_two_processes_give_the_loss_curve_of_one(tmp_path):
    # By AdamW: Muon rounds its gradient to bf16, where a difference in the last place may become a whole step of bf16.
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = train_here(tmp_path / "one", steps=8, decay=2, save_every=8, optimizer="adamw")
    two = run(tmp_path / "two", "steps=8", "decay=2", "save_every=8", "optimizer=adamw", before=TWO)
    assert two.returncode == 0, two.stderr
    both = zip(losses(one), losses(tmp_path / "two/runs/tiny"), strict=True)
    assert max(abs(a - b) for a, b in both) <= 1e-5, (losses(one), losses(tmp_path / "two/runs/tiny"))
    assert len(set(losses(one))) == 8


def test_a_batch_in_parts_gives_the_loss_curve_of_a_whole_one(tmp_path):
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = train_here(tmp_path / "whole", steps=6, decay=2, save_every=6, optimizer="adamw")
    parts = train_here(tmp_path / "parts", steps=6, decay=2, save_every=6, optimizer="adamw", accumulate=4)
    assert max(abs(a - b) for a, b in zip(losses(whole), losses(parts), strict=True)) <= 1e-5


def test_every_checkpoint_leaves_a_bundle_and_its_gap(tmp_path):
    folder = train_here(tmp_path, steps=10, decay=2)
    assert sorted(p.name for p in (folder / "bundles").iterdir()) == ["00000005.safetensors", "00000010.safetensors"]
    rows = list(csv.DictReader((folder / "gaps.csv").open()))
    assert [row["step"] for row in rows] == ["5", "10"]
    for row in rows:
        assert float(row["gap"]) == pytest.approx(float(row["wrong"]) - float(row["right"]), abs=2e-5)
        assert float(row["low"]) <= float(row["gap"]) <= float(row["high"])


def test_torn_content_is_passed_over_and_said(tmp_path):
    folder = train_here(tmp_path, until=10, steps=12, decay=2)
    last = checkpoints.folder(folder, 10)
    state = bytearray((last / "optimizer.bin").read_bytes())
    state[len(state) // 2] ^= 1
    (last / "optimizer.bin").write_bytes(state)
    with pytest.warns(UserWarning, match="checkpoint-00000010 is passed over: the content of optimizer.bin is not"):
        assert checkpoints.step_of(checkpoints.newest(folder)) == 5
    (last / "optimizer.bin").write_bytes(state[:100])
    assert "optimizer.bin has 100 bytes" in checkpoints.damage_of(last)
    (last / "files.json").write_text("{")
    assert checkpoints.damage_of(last) == "its files.json is torn"
    (last / "files.json").unlink()
    assert checkpoints.damage_of(last) is None  # as older versions wrote them
    (last / "complete").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train_here(tmp_path, steps=12, decay=2)
    assert checkpoints.step_of(checkpoints.newest(folder)) == 12


def test_a_full_disk_stops_in_one_sentence_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    folder, whole = tmp_path / "runs/tiny", loop.Accelerator.save_state

    def full(self, output_dir, **options):
        if output_dir.endswith("-10"):
            Path(output_dir).mkdir()
            (Path(output_dir) / "model.safetensors").write_bytes(b"half")
            raise OSError(28, "No space left on device")
        return whole(self, output_dir, **options)

    monkeypatch.setattr(loop.Accelerator, "save_state", full)
    sentence = r"checkpoint of step 10 cannot be written to .*No space left.*make room.*continues from step 5$"
    with pytest.raises(NotSaved, match=sentence):
        train_here(tmp_path, steps=12, decay=2)
    assert checkpoints.step_of(checkpoints.newest(folder)) == 5 and not (folder / "aside-10").exists()
    monkeypatch.setattr(loop.Accelerator, "save_state", whole)
    train_here(tmp_path, steps=12, decay=2)
    assert checkpoints.step_of(checkpoints.newest(folder)) == 12


def test_a_lost_shard_stops_in_one_sentence_and_the_last_checkpoint_stays(tmp_path):
    train_here(tmp_path, until=5, steps=12, decay=2)
    (tmp_path / "pairs/lost").touch()
    with pytest.raises(FileNotFoundError, match="shard 3 of the prepared pairs is missing"):
        train_here(tmp_path, steps=12, decay=2)  # before anything is trained
    (tmp_path / "pairs/lost").unlink()
    before = TinyPairs.batch

    def lost(self, numbers, calls=iter(range(99))):  # noqa: B006, B008
        if next(calls) == 4:
            raise FileNotFoundError("shard 3 of the prepared pairs is missing; run snapref prepare again")
        return before(self, numbers)

    TinyPairs.batch = lost
    try:
        sentence = r"shard 3 .* is missing; .*; the run stopped at step \d+ and continues from step 5$"
        with pytest.raises(NoData, match=sentence):
            train_here(tmp_path, steps=12, decay=2)
    finally:
        TinyPairs.batch = before
    train_here(tmp_path, steps=12, decay=2)
    assert checkpoints.step_of(checkpoints.newest(tmp_path / "runs/tiny")) == 12


def test_a_gradient_that_is_no_number_stops_before_it_is_saved(tmp_path, monkeypatch):
    calls = iter(range(99))

    def broken(*args):
        losses = adapter_task_loss(*args)
        return losses / 0 if next(calls) == 6 else losses

    adapter_task_loss = adapter_task.velocity_loss
    monkeypatch.setattr(adapter_task, "velocity_loss", broken)
    with pytest.raises(NotFinite, match="the loss is inf at step 7; .* continues from step 5"):
        train_here(tmp_path, {"gap": 0}, steps=12, decay=2)


def test_other_settings_do_not_go_on_with_a_run(tmp_path, monkeypatch):
    bundle = tmp_path / "bundle.safetensors"
    save_bundle(tiny_adapter(replace(TINY_ADAPTER, target_alpha=4.0, reference_alpha=6.0)), bundle)
    monkeypatch.setattr(sizes, "TINY_WIDER", replace(sizes.TINY_LEARNER, reference_rank=8), raising=False)
    train_here(tmp_path, until=5, steps=12, decay=2)
    changes = [
        ({}, {"batch": 8, "adamw_lr": 0.1}, r"with batch 4 \(now 8\), adamw_lr 0.003 \(now 0.1\);"),
        ({"shift": 2.0}, {}, r"shift not given \(now 2.0\); give the old values to go on with it, or another --name"),
        ({"jitter": [0, 2, 1]}, {}, r"with jitter \[0, 1, 1\] \(now \[0, 2, 1\]\)"),
        ({"data": str(tmp_path / "other")}, {}, r"with data .*pairs \(now .*other\)"),
        ({"init": str(bundle)}, {}, r"with init not given \(now .*bundle.safetensors\)"),
        ({"adapter": "TINY_WIDER"}, {}, r"with adapter TINY_LEARNER \(now TINY_WIDER\)"),
        ({}, {"seed": 6}, r"with seed 5 \(now 6\)"), ({}, {"ema": 0.5}, r"with ema 0.9 \(now 0.5\)"),
    ]
    for options, fields, sentence in changes:
        with pytest.raises(ValueError, match=sentence):
            train_here(tmp_path, options, **{"steps": 12, "decay": 2, **fields})
    monkeypatch.chdir(tmp_path)  # what is learnt stays the same: the files by another path, more steps, another rhythm
    same = {"data": "pairs", "gap": 4, "recompute": True}
    train_here(tmp_path, same, steps=14, decay=3, save_every=7, keep=1, accumulate=2)
    assert checkpoints.step_of(checkpoints.newest(tmp_path / "runs/tiny")) == 14


def batch_for(step: AdapterStep, count: int = 3, alone: bool = False) -> dict:
    rows = TinyPairs(Path("x")).batch([1, 3, 5][:count])
    generator = torch.Generator().manual_seed(2)
    rows["noise"] = torch.randn(rows["latent"].shape, generator=generator)
    rows["sigma"] = draw_sigmas(count, 3.0, generator)
    if alone:
        rows["reads"] = torch.zeros(count, dtype=torch.bool)
    return rows


def learner(recompute: bool = False) -> AdapterStep:
    adapter = tiny_adapter().requires_grad_(True)
    freeze_unread(adapter)
    return AdapterStep(tiny_model(), adapter, recompute)


@pytest.mark.parametrize("alone", [False, True], ids=["read", "alone"])
def test_recomputing_gives_the_same_gradients_bit_for_bit(alone):
    gradients = []
    for recompute in (False, True):
        step = learner(recompute)
        step(**batch_for(step, alone=alone))["loss"].backward()
        gradients.append({n: p.grad for n, p in step.adapter.named_parameters() if p.requires_grad})
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])
    assert any(g.any() for n, g in gradients[0].items() if n.startswith("ref")) != alone


def test_recomputing_keeps_less_for_the_backward():
    kept = []
    for recompute in (False, True):
        step, seen = learner(recompute), {}

        def pack(x, seen=seen):
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = step(**batch_for(step))["loss"]
        kept.append(sum(seen.values()))
        del loss
    assert kept[1] < kept[0] / 2


def test_only_the_branches_learn_and_every_one_of_them():
    step = learner()
    step(**batch_for(step))["loss"].backward()
    assert not any(p.requires_grad for p in step.frozen[0].parameters())
    learning = [n for n, p in step.adapter.named_parameters() if p.requires_grad]
    assert all(step.adapter.get_parameter(n).grad.any() for n in learning)
    last = TINY.dit.blocks - 1
    asleep = {n for n, p in step.adapter.named_parameters() if not p.requires_grad}
    assert asleep == {n for n, _ in step.adapter.named_parameters()
                      if n.startswith(f"ref.blocks.{last}.") and "k_proj" not in n and "v_proj" not in n}


def test_training_that_is_not_what_is_sampled_is_refused(monkeypatch):
    step = learner()
    batch = batch_for(step)
    new = Adapter(tiny_adapter().config, TINY)  # B = 0, as at step 0
    assert check_cached_equals_joint(step.frozen[0], new, batch) < 1e-5
    real = encode.offered_keys

    def noised(dit, latents, context, place, branch):
        return real(dit, latents, context, (place[0], place[1] + 1, place[2]), branch)

    def joint(*args, **options):
        monkeypatch.setattr(encode, "offered_keys", noised)
        try:
            return encode.joint_velocity(*args, **options)
        finally:
            monkeypatch.setattr(encode, "offered_keys", real)

    monkeypatch.setattr(exact, "joint_velocity", joint)  # trains with the reference elsewhere
    with pytest.raises(NotTheSame, match="a cached reference changes the velocity by .*nothing was trained"):
        check_cached_equals_joint(step.frozen[0], new, batch)


def test_training_is_compared_with_sampling_also_where_no_row_reads(monkeypatch):
    step = learner()
    alone = batch_for(step, alone=True)
    assert check_cached_equals_joint(step.frozen[0], step.adapter, alone) < 1e-5
    real = exact.joint_velocity
    monkeypatch.setattr(exact, "joint_velocity", lambda *args, **options: real(*args, **options) * 1.01)
    with pytest.raises(NotTheSame):
        check_cached_equals_joint(step.frozen[0], step.adapter, alone)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("where", ["base", "autocast"])
def test_a_step_in_half_precision_is_near_one_in_fp32(half, where):
    """The base held in half precision, or one in fp32 whose products are; losses and gradients, both finite."""
    found = []
    for dtype in (torch.float32, half):
        step = learner()
        if where == "base":
            dit = copy.deepcopy(step.frozen[0]).to(dtype)
            step = AdapterStep(dit, step.adapter)
        with torch.autocast("cpu", half, enabled=where == "autocast" and dtype == half):
            loss = step(**batch_for(step))["loss"]
        loss.backward()
        gradients = torch.cat([p.grad.flatten() for p in step.adapter.parameters() if p.requires_grad])
        found.append((loss, gradients))
    (whole, exactly), (loss, gradients) = found
    assert loss.dtype == torch.float32 and gradients.isfinite().all()
    near = 2e-2 if half == torch.bfloat16 else 4e-3
    assert loss.item() != whole.item() and loss.item() == pytest.approx(whole.item(), rel=near)
    assert (gradients - exactly).norm() < 5 * near * exactly.norm()


@pytest.fixture
def fresh_accelerate():
    """Accelerate holds a process to its first precision; called, and at the end, it forgets it."""
    yield AcceleratorState._reset_state
    AcceleratorState._reset_state()


@pytest.mark.parametrize("changes", [{"precision": "bf16"}, {"precision": "bf16", "options": {"dtype": "bfloat16"}},
                                     {"options": {"dtype": "float16"}}], ids=["bf16", "bf16 base", "fp16 base"])
def test_the_loop_in_half_precision_is_near_the_loop_in_fp32(tmp_path, fresh_accelerate, changes):
    whole, options = train_here(tmp_path, {"gap": 0}, until=2), {"gap": 0, **changes.pop("options", {})}
    fresh_accelerate()
    half = train_here(tmp_path, options, until=2, name="half", **changes)
    assert losses(half) != losses(whole) and losses(half) == pytest.approx(losses(whole), rel=2e-2)


@pytest.mark.parametrize("options, sentence", [
    ({"unseen": None}, "no held-out gap is measured and no panel is drawn .* give --unseen, prepared from .*--heldout"),
    ({"previews": 2}, "no panel is drawn at the checkpoints, only the gap is measured; give --vae"),
])
def test_what_no_checkpoint_will_have_is_said_at_the_start(tmp_path, options, sentence):
    settings = tiny_config(tmp_path, options)
    settings = replace(settings, options={k: v for k, v in settings.options.items() if v is not None})
    with pytest.warns(UserWarning, match=sentence):
        train(AdapterTask(settings), settings, tmp_path / "runs", 1)


def test_nothing_is_said_where_all_is_given_or_nothing_is_wanted(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_here(tmp_path, {"previews": 0}, until=1)
        train_here(tmp_path, {"gap": 0, "previews": 2}, until=1, name="unwatched")


def test_wrong_files_for_the_checkpoints_fail_at_the_start(tmp_path, monkeypatch):
    never = tmp_path / "never.safetensors"
    with pytest.raises(ValueError, match="never.safetensors"):
        train_here(tmp_path, {"vae": str(never), "previews": 2})
    monkeypatch.setattr(TinyPairs, "splits", {"train"})
    with pytest.raises(ValueError, match="unseen shows characters that trainings see; give --unseen a set prepared"):
        train_here(tmp_path)
    monkeypatch.setattr(TinyPairs, "model", "nano")
    with pytest.raises(ValueError, match="was prepared for nano, this config trains tiny"):
        train_here(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(TinyPairs, "buckets", {(6, 4, 6, 6): [1, 3, 5, 7]})
    with pytest.raises(ValueError, match="show 1 characters; prepare pictures of two or more"):
        train_here(tmp_path)
    assert not list((tmp_path / "runs").rglob("checkpoint-*"))


def test_the_loop_looks_before_it_trains(tmp_path, monkeypatch):
    def refuse(*args):
        raise NotTheSame("not the same")

    monkeypatch.setattr(adapter_task, "check_cached_equals_joint", refuse)
    with pytest.raises(NotTheSame):
        train_here(tmp_path)
    assert not list((tmp_path / "runs/tiny").glob("checkpoint-*"))


def test_bad_choices_are_told_in_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="optimizer is 'sgd'; it must be one of muon, adamw, adamw8bit"):
        tiny_config(tmp_path, optimizer="sgd")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ValueError, match="adamw8bit needs bitsandbytes, which is not installed"):
        train_here(tmp_path, optimizer="adamw8bit")
    with pytest.raises(ValueError, match="v1a goes on from|tiny-learner goes on from v1a; give --init"):
        train_here(tmp_path, {"continues": "v1a"})
    with pytest.raises(ValueError, match="hold no batch of 30 of one size; take a smaller batch"):
        train_here(tmp_path, batch=30)
    with pytest.raises(ValueError, match="model is 'huge'; it must be one of nano, anima"):
        train_here(tmp_path, {"model": "huge"})


def test_branches_split_over_processes_get_the_gradients_of_whole_ones(tmp_path):
    """FSDP as Accelerate sets it up on GPUs (version 2, no wrapping); on a CPU Accelerate itself does not use it."""
    script = tmp_path / "split.py"
    script.write_text(
        "import torch\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "from test_training_adapter import batch_for, learner\n"
        "from snapref.training.loop import whole\n"
        "torch.set_num_threads(1)\n"
        "mesh = init_device_mesh('cpu', (2,))\n"
        "one, split = learner(recompute=True), learner(recompute=True)\n"
        "fully_shard(split, mesh=mesh)\n"
        "for step in (one, split):\n"
        "    step(**batch_for(step))['loss'].backward()\n"
        "pairs = zip(one.parameters(), split.parameters(), strict=True)\n"
        "for a, b in pairs:\n"
        "    assert len(b.to_local()) < len(a)\n"
        "    assert a.grad is None or torch.allclose(a.grad, b.grad.full_tensor(), atol=1e-6)\n"
        "assert all(torch.equal(a, b) for a, b in zip(one.parameters(), whole(split).parameters(), strict=True))\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    launch = [sys.executable, *TWO, str(script)]
    done = subprocess.run(launch, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
