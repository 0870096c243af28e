"""What a training run is told: one frozen dataclass, read from a JSON file in `configs/` or from a user's own."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from snapref.sampling.fields import brief

CONFIGS = Path(__file__).parent / "configs"
OPTIMIZERS = ("muon", "adamw", "adamw8bit")
PRECISIONS = ("no", "bf16", "fp16")
LEAST = {"steps": 1, "batch": 1, "seed": 0, "muon_lr": 0, "muon_weight_decay": 0, "adamw_lr": 0, "warmup": 0,
         "decay": 0, "ema": 0, "clip": 0, "save_every": 1, "adamw_weight_decay": 0, "accumulate": 1, "keep": 1}
LARGEST = 2**63  # of any number in a config; a NaN is below nothing
KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", dict: "an object"}


@dataclass(frozen=True)
class RunConfig:
    task: str  # codec, text, base, tagger, adapter
    name: str  # of the run's folder
    steps: int
    batch: int  # samples per step, over all processes
    seed: int = 0
    muon_lr: float = 8e-3  # matrices (torch.optim.Muon)
    muon_weight_decay: float = 0.1
    adamw_lr: float = 3e-3  # all other parameters
    warmup: int = 100  # steps of linear rise
    decay: int = 0  # last steps, over which the rate falls linearly to 0; the rest is constant
    ema: float = 0.999
    clip: float = 1.0  # gradient norm
    save_every: int = 250
    precision: str = "no"  # Accelerate's mixed_precision: no, bf16, fp16
    optimizer: str = "muon"  # muon (with adamw for what is no inner matrix), adamw, adamw8bit
    adamw_weight_decay: float = 0.0
    accumulate: int = 1  # parts of a step's batch that go through the model one after the other
    keep: int = 2  # checkpoints to go on from
    tensorboard: bool = False  # besides log.csv
    options: dict = field(default_factory=dict)  # of the task alone

    def __post_init__(self):
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if not fits(value, f.type):
                raise ValueError(f"{f.name} is {brief(value)}; it must be {KINDS[f.type]}")
            if f.name in LEAST and value < LEAST[f.name]:
                raise ValueError(f"{f.name} is {value}; it must be at least {LEAST[f.name]}")
        if not self.name or not self.task:
            raise ValueError("task and name must not be empty; a run's folder has its name")
        if self.ema >= 1:
            raise ValueError(f"ema is {self.ema}; it must be below 1, such as 0.999")
        if self.decay > self.steps:
            raise ValueError(f"decay is {self.decay} steps, longer than the run of {self.steps}")
        for name, known in (("optimizer", OPTIMIZERS), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}")

    def rate(self, step: int) -> float:
        """Learning-rate factor of a step: linear warm-up, constant, linear decay to 0."""
        rise = min(1.0, (step + 1) / max(1, self.warmup))
        fall = min(1.0, (self.steps - step) / max(1, self.decay))
        return rise * fall


def fits(value, kind: type) -> bool:
    """Whether a value from a JSON file is of that kind; a whole number is a number too, a truth value is not."""
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool) and abs(value) < LARGEST
    return isinstance(value, kind)


def load_run_config(source: str, options: dict | None = None, **changes) -> RunConfig:
    """The config of a name (`source`) in `configs/` or of a path.

    `changes` replace its fields and `options` single options of its task, where they are not None.
    """
    path = CONFIGS / f"{source}.json"
    if not path.is_file():
        path = Path(source)
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in CONFIGS.glob("*.json")))
        raise ValueError(f"no training config called {source}; give a JSON file or one of: {known}")
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON file ({error}); copy one of {CONFIGS} and change it") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no object of names and values; copy one of {CONFIGS} and change it")
    fields = dataclasses.fields(RunConfig)
    unknown = sorted(set(values) - {f.name for f in fields})
    if unknown:
        raise ValueError(f"{path.name} has unknown fields: {', '.join(unknown)}")
    values.update({k: v for k, v in changes.items() if v is not None})
    needed = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    if lacking := [name for name in needed if name not in values]:
        raise ValueError(f"{path.name} lacks {', '.join(lacking)}; copy one of {CONFIGS} and change it")
    config = RunConfig(**values)
    given = {k: v for k, v in (options or {}).items() if v is not None}
    return dataclasses.replace(config, options={**config.options, **given})
