"""Whether a run of that name goes on, and from which checkpoint: one process looks, all take its answer."""

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from snapref.training import checkpoints
from snapref.training.config import RunConfig

NOTE = "config.json"
# What may change when a run goes on: its length, what is kept and shown, and into how many parts a sum is split.
FREE = {"steps", "decay", "save_every", "keep", "tensorboard", "accumulate"}
FREE_OPTIONS = {"unseen", "vae", "gap", "previews", "recompute"}
PATHS = {"data", "init", "base", "weights"}  # the same file, however it is written
PATIENCE = 20.0  # seconds in which a network disk has to show what another machine wrote


class NotShared(OSError):
    """A process does not see the run's folder."""


def agreed_start(accelerator: Accelerator, run: Path, config: RunConfig) -> Path | None:
    """The checkpoint that every process goes on from; None for a new run.

    Raises, in every process, what `open_run` raises, and NotShared where one of them does not see what it has to load.
    """
    word: list = [None]
    if accelerator.is_main_process:
        try:
            open_run(run, config)
            last = checkpoints.newest(run)
            word = [last and last.name]
        except (OSError, ValueError) as error:
            word = [error]
    broadcast_object_list(word)
    if isinstance(word[0], Exception):
        raise word[0]
    last = run / word[0] if word[0] else None
    needed = last / checkpoints.MARK if last else run / NOTE
    found = appears(needed)
    if accelerator.reduce(torch.tensor(float(not found), device=accelerator.device), "sum").item():
        who = "another process" if found else f"process {accelerator.process_index}"
        raise NotShared(
            f"{who} does not see {needed}; the run's folder must lie on a disk that all machines share, "
            "which --runs can name"
        )
    return last


def appears(path: Path) -> bool:
    """Whether a file is seen, now or before long."""
    end = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() >= end:
            return False
        time.sleep(0.2)
    return True


def open_run(run: Path, config: RunConfig) -> None:
    """Make the run's folder and note its settings. Raises ValueError where it was begun to learn something else."""
    run.mkdir(parents=True, exist_ok=True)
    checkpoints.clear(run)
    new = json.loads(json.dumps(dataclasses.asdict(config)))
    if any(run.glob("checkpoint-*")) and (changed := list(differences(noted(run) or new, new))):
        raise ValueError(
            f"{run} was begun with {', '.join(changed)}; give the old values to go on with it, or another --name "
            "for a new run"
        )
    aside = run / f".{NOTE}"
    aside.write_text(json.dumps(new, indent=1) + "\n")
    aside.replace(run / NOTE)


def noted(run: Path) -> dict | None:
    """The settings of a run as they were noted; None where there are none. Raises ValueError for a damaged note."""
    path = run / NOTE
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or not isinstance(found.get("options"), dict):
            raise ValueError("it has no options")
    except ValueError as error:
        raise ValueError(
            f"{path} does not say how the run was begun ({error}); put its config back there, with its options"
        ) from error
    return found


def differences(old: dict, new: dict) -> Iterator[str]:
    """Of all that changes what is learnt, "shift 3.0 (now 2.0)" for whatever is not the same."""
    usual = {f.name: f.default for f in dataclasses.fields(RunConfig)}
    for name in [name for name in usual if name not in {*FREE, "name", "options"}]:
        if (before := old.get(name, usual[name])) != new[name]:
            yield f"{name} {before} (now {new[name]})"
    for name in sorted((old["options"].keys() | new["options"].keys()) - FREE_OPTIONS):
        before, after = (config["options"].get(name, "not given") for config in (old, new))
        if before != after and not (name in PATHS and Path(before).resolve() == Path(after).resolve()):
            yield f"{name} {before} (now {after})"
