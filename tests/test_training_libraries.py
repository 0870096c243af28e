"""TensorBoard and bitsandbytes as they are, not as stand-ins: what the one shows and how the other learns."""

import csv
import importlib.util
import shutil

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_training_adapter import losses, same_state, train_here

from snapref import config as sizes
from snapref.config import AdapterConfig
from snapref.training import checkpoints

TEN = {"steps": 12, "decay": 2, "until": 10}


def test_tensorboard_shows_the_numbers_of_the_log_and_of_the_gap(tmp_path):
    """Of a run that went on from its middle as well: what was written past that is shown no more."""
    train_here(tmp_path, tensorboard=True, **TEN)
    run = tmp_path / "runs/tiny"
    shutil.rmtree(checkpoints.folder(run, 10))
    train_here(tmp_path, tensorboard=True, **TEN)
    shown = EventAccumulator(str(run / "tensorboard"), purge_orphaned_data=True).Reload()
    for file, names in (("log.csv", ("loss", "norm", "rate")), ("gaps.csv", ("right", "wrong", "none", "gap"))):
        for name in names:
            written = [(int(row["step"]), float(row[name])) for row in csv.DictReader((run / file).open())]
            tag = name if file == "log.csv" else f"heldout/{name}"
            events = [(event.step, event.value) for event in shown.Scalars(tag)]
            assert [step for step, _ in events] == [step for step, _ in written], name
            assert [v for _, v in events] == pytest.approx([v for _, v in written], abs=6e-5), name


@pytest.mark.skipif(
    not importlib.util.find_spec("bitsandbytes"),
    reason="bitsandbytes is not installed: imported on a CPU it writes to stderr, which no notebook may; "
    "pip install bitsandbytes to run this",
)
def test_eight_bit_adamw_learns_as_adamw_does_and_resumes_to_the_bit(tmp_path, monkeypatch):
    """Near AdamW of 32 bits, its moments in one byte a number, and 10 steps are 5 and 5."""
    # Branches wide enough: bitsandbytes keeps matrices of fewer than 4,096 numbers in 32 bits.
    monkeypatch.setattr(sizes, "WIDE", AdapterConfig("wide", 64, 64, 64.0, 64.0, place=(0.0, 20.0, 0.0)), raising=False)
    for name in ("whole", "halved", "exact"):
        (tmp_path / name).mkdir()
    eight, exact = ({**TEN, "optimizer": name, "options": {"adapter": "WIDE"}} for name in ("adamw8bit", "adamw"))
    whole = train_here(tmp_path / "whole", **eight)
    train_here(tmp_path / "halved", **{**eight, "until": 5})
    same_state(whole, train_here(tmp_path / "halved", **eight))
    state = torch.load(checkpoints.newest(whole) / "optimizer.bin", weights_only=True)["state"].values()
    kinds = {part["state1"].dtype for moments in state for part in moments.values() if isinstance(part, dict)}
    assert torch.uint8 in kinds
    assert losses(whole) == pytest.approx(losses(train_here(tmp_path / "exact", **exact)), rel=1e-2)
