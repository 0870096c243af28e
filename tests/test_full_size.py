"""The full-size run in miniature: the same code, files and process; what it reports and that it cleans up."""

import json

import pytest
import torch

from snapref.anima.model import AnimaDiT
from snapref.config import BASE
from snapref.evaluation import full_size as room
from snapref.files.loader import read_tensors


def test_tiny_run_reports_and_leaves_nothing(tmp_path):
    report = room.full_size("tiny", tmp_path)
    assert [*tmp_path.iterdir()] == []
    with torch.device("meta"):
        assert report["parameters"] == sum(p.numel() for p in AnimaDiT(room.TINY).parameters())
    # A reference and a negative prompt: two branches in each of two steps.
    assert report["branches"] == 4 and report["blocks"] == 3
    assert report["seconds"].keys() == {"write", "load", "reference", "draw"}
    tokens = (64 // 16) ** 2
    assert report["reference_bytes"] == 2 * 3 * tokens * 64 * 4
    peaks = [*report["peak_until"].values()]
    assert [*report["peak_until"]] == ["imports", "load", "reference", "draw"]
    assert 5e7 < peaks[0] <= peaks[-1] == report["peak_bytes"]  # torch alone takes more than 50 MB
    assert json.loads(json.dumps(report)) == report
    assert "ABOVE" in room.as_text(report)  # a miniature's files are nothing beside torch itself
    assert "within 1.25" in room.as_text(report | {"peak_ratio": 1.2})


def test_files_are_removed_after_a_failure(tmp_path, monkeypatch):
    def broken(scale, folder):
        (folder / "base.safetensors").write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.setattr(room, "write_files", broken)
    with pytest.raises(KeyboardInterrupt):
        room.full_size("tiny", tmp_path)
    monkeypatch.setattr(room, "write_files", lambda scale, folder: None)
    with pytest.raises(RuntimeError, match="does not exist"):
        room.full_size("tiny", tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_is_told_before_the_first_byte(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10**9})
    monkeypatch.setattr(room.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match=r"has 1.0 GB free, 7.0 are needed; give another folder"):
        room.full_size("full", tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_written_tensors_have_the_official_names_and_are_read_back(tmp_path):
    paths = room.write_files("tiny", tmp_path)
    with torch.device("meta"):
        state = AnimaDiT(room.TINY).state_dict()
    stored = read_tensors(paths["base"])
    assert {name: t.shape for name, t in stored.items()} == {f"net.{n}": t.shape for n, t in state.items()}
    assert {t.dtype for t in stored.values()} == {torch.bfloat16}
    assert room.SCALES["full"][0] is BASE
