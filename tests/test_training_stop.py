"""A run that is asked to stop, the family that it belongs to, and processes that do not see the same folder."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_training_adapter import TESTS, same_state, train_here
from training_case import TinyPairs, tiny_config
from typer.testing import CliRunner

from snapref import config as sizes
from snapref.cli import app
from snapref.config import AdapterConfig
from snapref.files.loader import read_metadata
from snapref.training import adapter_task, checkpoints, config, family, resume
from snapref.training.family import NotTrained, train_family
from snapref.training.resume import NotShared, agreed_start
from snapref.training.stopping import Interrupted

LONG = {"steps": 3000, "save_every": 2999, "decay": 10, "keep": 9}


def started(folder: Path, *words: str) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    command = [sys.executable, str(TESTS / "training_case.py"), str(folder), *words]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for(found, seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_a_stopped_run_keeps_its_checkpoint_ships_nothing_and_says_so(tmp_path, number):
    log, shipped = tmp_path / "runs/tiny/log.csv", tmp_path / "shipped.safetensors"
    child = started(tmp_path, *(f"{name}={value}" for name, value in LONG.items()), f"ship={shipped}")
    wait_for(lambda: log.exists() and log.read_text().count("\n") > 3)
    child.send_signal(number)
    said = child.communicate(timeout=600)[1]
    assert child.returncode == 128 + number and not shipped.exists()
    step = checkpoints.step_of(checkpoints.newest(tmp_path / "runs/tiny"))
    assert f"tiny was stopped by {number.name} and kept at step {step} of 3000; the same command goes on" in said
    assert 3 < step < 3000 and "Traceback" not in said
    if number == signal.SIGTERM:  # and bit for bit
        (tmp_path / "whole").mkdir()
        whole = train_here(tmp_path / "whole", until=step + 3, **LONG)
        same_state(whole, train_here(tmp_path, until=step + 3, **LONG))


def test_only_a_finished_run_is_shipped(tmp_path):
    steps = config.load_run_config("nano-v1a").steps
    words = ["train", "adapter", "--config", "nano-v1a", "--until", "5", "--ship", str(tmp_path / "x.safetensors")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2 and f"until is 5, the run has {steps} steps, and only a finished one" in result.stderr


class NanoPairs(TinyPairs):
    """The tiny pairs as nano's; remembers which folders were opened to train on."""

    opened: list[str] = []

    def __init__(self, folder, *, allow=False):
        super().__init__(folder, allow=allow)
        if not allow:
            self.opened.append(self.folder.name)


def test_the_family_in_miniature(tmp_path, monkeypatch):
    """v1a and v1b from the one set, v2a onward from v1a on the mix; each in this process, as its command says."""
    monkeypatch.setattr(sizes, "TINY_WIDER", AdapterConfig("tiny-wider", 8, 4, 8.0, 4.0, place=(0.0, 20.0, 0.0)),
                        raising=False)
    monkeypatch.setattr(config, "CONFIGS", tmp_path)
    monkeypatch.setattr(adapter_task, "PreparedPairs", NanoPairs)
    small = tiny_config(tmp_path, {"gap": 0}, steps=4, decay=2, save_every=4)
    for name, kind, before in (("v1a", "TINY_LEARNER", {}), ("v1b", "TINY_WIDER", {}),
                               ("v2a", "TINY_LEARNER", {"continues": "nano-v1a"})):
        options = {**small.options, "adapter": kind, **before}
        values = {**vars(small), "name": f"nano-{name}", "options": options}
        (tmp_path / f"nano-{name}.json").write_text(json.dumps(values))
    said = []

    def here(words, processes):
        said.append(words)
        return CliRunner().invoke(app, words, catch_exceptions=False).exit_code, 0

    monkeypatch.setattr(family, "ended", here)
    NanoPairs.opened = []
    ship = tmp_path / "shipped"
    bundles = train_family(ship, tmp_path / "runs", data=tmp_path / "set", mix=tmp_path / "mix")
    assert bundles == [ship / f"adapter_{name}.safetensors" for name in ("v1a", "v1b", "v2a")]
    assert NanoPairs.opened == ["set", "set", "mix"]
    assert [("--init" in words) for words in said] == [False, False, True]
    assert said[2][said[2].index("--init") + 1] == str(ship / "adapter_v1a.safetensors")
    ranks = [json.loads(read_metadata(path)["config"])["reference_rank"] for path in bundles]
    assert ranks == [6, 8, 6]
    for path in bundles:
        assert len([*csv.DictReader(path.with_suffix(".csv").open())]) == 4


def test_the_family_ends_with_the_one_that_fails(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(family, "ended", lambda words, processes: begun.append(words[3]) or (143, 0))
    with pytest.raises(NotTrained, match="training nano-v1a ended with code 143; run it again, it goes on in"):
        train_family(tmp_path)
    assert begun == ["nano-v1a"]
    with pytest.raises(ValueError, match="only is 'v9'; it must be one of nano-v1a, nano-v1b, nano-v2a"):
        train_family(tmp_path, names=("v9",))
    with pytest.raises(ValueError, match="processes is 0; it must be at least 1"):
        train_family(tmp_path, processes=0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_the_family_passes_a_stop_on_and_waits(tmp_path, monkeypatch, number):
    """The child has time to keep what it learnt, hears of it once, and the next one is not begun."""
    script = tmp_path / "child.py"
    script.write_text(
        "import pathlib, signal, sys, time\n"
        "heard = []\n"
        "for s in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(s, lambda number, _: heard.append(number))\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "while not heard: time.sleep(0.01)\n"
        "time.sleep(0.3)\n"
        f"pathlib.Path({str(tmp_path / 'kept')!r}).write_text(str(heard))\n"
        "sys.exit(128 + heard[0])\n"
    )
    begun = []
    monkeypatch.setattr(family, "launcher", lambda processes: begun.append(1) or [sys.executable, str(script)])

    def stop():
        try:
            wait_for((tmp_path / "ready").exists)
        finally:  # a child that never got ready would be waited for without end
            os.kill(os.getpid(), number)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Interrupted, match="nano-v1a was stopped; the same command goes on with it") as stopped:
        train_family(tmp_path)
    assert stopped.value.code == 128 + number and begun == [1]
    assert (tmp_path / "kept").read_text() == f"[{int(number)}]"


def test_a_stop_that_comes_while_the_child_is_started_reaches_it(monkeypatch):
    class Late(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(family.subprocess, "Popen", Late)
    monkeypatch.setattr(family, "launcher", lambda processes: ["sleep"])
    assert family.ended(["600"], 1) == (-signal.SIGTERM, signal.SIGTERM)


def process(rank: int):
    """What a process of several knows of itself, alone in its exchanges."""
    return SimpleNamespace(is_main_process=rank == 0, process_index=rank, device="cpu", reduce=lambda t, how: t)


def test_every_process_goes_on_from_what_the_first_one_found(tmp_path, monkeypatch):
    run = train_here(tmp_path, until=5, steps=12, decay=2)
    settings = tiny_config(tmp_path, steps=12, decay=2)
    sent = []
    monkeypatch.setattr(resume, "broadcast_object_list", sent.extend)
    last = agreed_start(process(0), run, settings)
    assert checkpoints.step_of(last) == 5 and sent == ["checkpoint-00000005"]

    def receive(word):
        word[0] = sent[0]

    monkeypatch.setattr(resume, "broadcast_object_list", receive)
    monkeypatch.setattr(resume, "PATIENCE", 0.0)
    monkeypatch.setattr(checkpoints, "newest", None)  # the others do not look
    assert agreed_start(process(1), run, settings) == last
    elsewhere = tmp_path / "another-machine/tiny"
    sentence = "process 3 does not see .*another-machine/tiny/checkpoint-00000005.*; the run's folder must lie on a d"
    with pytest.raises(NotShared, match=sentence):
        agreed_start(process(3), elsewhere, settings)
    sent[0] = None  # a new run
    with pytest.raises(NotShared, match="process 1 does not see .*config.json"):
        agreed_start(process(1), elsewhere, settings)
    sent[0] = ValueError("begun with other settings")
    with pytest.raises(ValueError, match="begun with other settings"):
        agreed_start(process(1), run, settings)
    blind = SimpleNamespace(**{**vars(process(0)), "reduce": lambda t, how: torch.tensor(1.0)})
    sent[0] = last.name
    blind.is_main_process = False
    with pytest.raises(NotShared, match="another process does not see"):
        agreed_start(blind, run, settings)
