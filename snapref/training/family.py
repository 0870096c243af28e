"""All of nano's adapters, one after the other: v1a and v1b from new branches, v2a onward from v1a."""

import os
import subprocess
import sys
from pathlib import Path

from snapref.training.config import load_run_config

FAMILY = ("nano-v1a", "nano-v1b", "nano-v2a")


def train_family(
    ship: Path, runs: Path = Path("runs"), *, data: Path | None = None, mix: Path | None = None,
    unseen: Path | None = None, weights: Path | None = None, processes: int = 2, names: tuple[str, ...] = FAMILY,
) -> list[Path]:
    """Train the named ones, each by its own `snapref train adapter`, resuming what was begun; returns the bundles.

    ship: the folder for adapter_v1a.safetensors and so on, with their logs. data: prepared pairs of v1a and v1b (None:
    the renderer's); mix: those of v2a (None: as `data`). A config that continues another takes that one's bundle from
    `ship`. Raises RuntimeError, naming the run, where one ends in an error; those before it are kept.
    """
    bundles = []
    for name in names:
        before = load_run_config(name).options.get("continues")
        files = {"data": mix or data if before else data, "unseen": unseen, "weights": weights}
        files |= {"init": bundle_of(before, ship) if before else None, "runs": runs, "ship": bundle_of(name, ship)}
        words = [word for key, path in files.items() if path for word in (f"--{key}", str(path))]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        command += ["-m", "snapref", "train", "adapter", "--config", name, *words]
        threads = str(max(1, (os.cpu_count() or 1) // processes))
        done = subprocess.run(command, env={"OMP_NUM_THREADS": threads, **os.environ})
        if done.returncode:
            raise RuntimeError(f"training {name} ended with code {done.returncode}; run it again, it goes on in {runs}")
        bundles.append(bundle_of(name, ship))
    return bundles


def bundle_of(name: str, folder: Path) -> Path:
    return folder / f"adapter_{name.removeprefix('nano-')}.safetensors"
