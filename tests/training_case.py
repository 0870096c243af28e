"""A tiny adapter run on prepared pairs: what the tests of training share, also as a program of its own.

    python tests/training_case.py FOLDER [name=value …]     trains in FOLDER/runs by `snapref train adapter`; fields of
                                                            RunConfig, or die_at=STEP, or ship=FILE
"""

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from reference_case import TINY, tiny_model

from snapref import config as sizes
from snapref.cli import app
from snapref.config import AdapterConfig
from snapref.files.weights import save_weights
from snapref.training import adapter_task, commands, options
from snapref.training.config import RunConfig

sizes.TINY_LEARNER = AdapterConfig("tiny-learner", 6, 4, 6.0, 4.0, place=(0.0, 20.0, 0.0))
options.MODELS["tiny"] = TINY


class TinyPairs:
    """40 pairs in two buckets, of the shape of PreparedPairs; a pair follows from its number."""

    model, shapes = "tiny", ((4, 6), (6, 4))
    buckets = {(*shape, 6, 6): [*range(i, 40, 2)] for i, shape in enumerate(shapes)}
    by_set, weights, splits = [[np.array(numbers) for numbers in buckets.values()]], [1.0], {"heldout"}
    # Five characters of eight pairs; pictures of one character are held together by pairs that share them.
    sets = [SimpleNamespace(target=[*range(40)], reference=[n // 8 * 8 + (n + 1) % 8 for n in range(40)])]

    def __init__(self, folder: Path, *, allow: bool = False):
        self.folder, self.captions = Path(folder), {"cs": "a", "char": "b"}
        self.fingerprint = self.folder.name

    def __len__(self) -> int:
        return 40

    def batch(self, numbers) -> dict[str, torch.Tensor]:
        if (self.folder / "lost").exists():
            raise FileNotFoundError("shard 3 of the prepared pairs is missing; run snapref prepare again")
        rows = [self.pair(int(n)) for n in numbers]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def pair(self, number: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(1000 + number)
        height, width = self.shapes[number % 2]

        def random(*shape):
            return torch.randn(shape, generator=generator)

        return {
            "latent": random(16, 1, height, width), "reference": random(16, 1, 6, 6), "context": random(5, 48),
            "reference_context": random(5, 48), "reads": torch.tensor(number % 5 != 0),
        }

    def empty(self) -> torch.Tensor:
        return torch.zeros(1, 5, 48)


adapter_task.PreparedPairs = TinyPairs


def tiny_config(folder: Path, options: dict | None = None, **changes) -> RunConfig:
    base = folder / "tiny.safetensors"
    if not base.exists():
        save_weights(tiny_model().state_dict(), base, dtype=None)
    (folder / "pairs").mkdir(exist_ok=True)
    values = {"task": "adapter", "name": "tiny", "steps": 30, "batch": 4, "seed": 5, "warmup": 3, "decay": 10,
              "muon_lr": 0.01, "ema": 0.9, "save_every": 5}
    chosen = {"model": "tiny", "adapter": "TINY_LEARNER", "base": str(base), "data": str(folder / "pairs"),
              "jitter": [0, 1, 1], "unseen": str(folder / "unseen"), "gap": 8, "previews": 0,
              **(options or {})}
    return RunConfig(**{**values, **changes}, options=chosen)


class DyingTask(adapter_task.AdapterTask):
    """Ends the process without a word, as a power cut does, when the data of a step are asked for."""

    die_at = -1

    def batch(self, step, rank, world):
        if step == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(step, rank, world)


if __name__ == "__main__":
    torch.set_num_threads(1)
    target, given = Path(sys.argv[1]), dict(word.split("=") for word in sys.argv[2:])
    DyingTask.die_at = int(given.pop("die_at", -1))
    ship = ["--ship", given.pop("ship")] if "ship" in given else []
    settings = tiny_config(target, **{name: int(value) if value.isdigit() else value for name, value in given.items()})
    config = target / f"config-{os.environ.get('RANK', 0)}.json"
    config.write_text(json.dumps(dataclasses.asdict(settings)))
    commands.TASKS["adapter"] = (__name__, "DyingTask")
    app(["train", "adapter", "--config", str(config), "--runs", str(target / "runs"), *ship])
