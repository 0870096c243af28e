"""Two processes of one command share its work, as torchrun starts them on a machine without a GPU."""

import json
import os
import subprocess

import pytest

from snapref.training.family import launcher


def told(*words) -> dict:
    """What the command prints with --json."""
    run = subprocess.run(
        [*launcher(2), *map(str, words), "--json"], capture_output=True, text=True, timeout=900,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(next(line for line in run.stdout.splitlines() if line.startswith("{")))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    out = tmp_path_factory.mktemp("two") / "pictures"
    return out, told("datagen", "--renderer", "--out", out, "--pictures", 70, "--batch", 10)


def test_each_draws_its_share(drawn):
    out, report = drawn
    assert report["missing"] == 0 and 0 < report["drawn_here"] < 70
    assert len([*out.rglob("*.png")]) == 70


def test_each_prepares_its_share(drawn, tmp_path):
    report = told("prepare", drawn[0], "--out", tmp_path / "prepared", "--each", 1, "--verify")
    assert report["pictures"] == 70 and report["pairs"] > 0
    assert not [path for path in (tmp_path / "prepared").iterdir() if path.name.startswith(".")]
