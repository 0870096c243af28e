"""What a training run is told: one frozen dataclass, read from a JSON file in `configs/` or from a user's own."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

CONFIGS = Path(__file__).parent / "configs"
OPTIMIZERS = ("muon", "adamw", "adamw8bit")
PRECISIONS = ("no", "bf16", "fp16")


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
        for name, low in (("steps", 1), ("batch", 1), ("warmup", 0), ("decay", 0), ("save_every", 1), ("accumulate", 1),
                          ("keep", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {low}")
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


def load_run_config(source: str, options: dict | None = None, **changes) -> RunConfig:
    """The config of a name (`source`) in `configs/` or of a path.

    `changes` replace its fields and `options` single options of its task, where they are not None.
    """
    path = CONFIGS / f"{source}.json"
    if not path.exists():
        path = Path(source)
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in CONFIGS.glob("*.json")))
        raise ValueError(f"no training config called {source}; give a JSON file or one of: {known}")
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON file ({error}); copy one of {CONFIGS} and change it") from None
    unknown = sorted(set(values) - {f.name for f in dataclasses.fields(RunConfig)})
    if unknown:
        raise ValueError(f"{path.name} has unknown fields: {', '.join(unknown)}")
    values.update({k: v for k, v in changes.items() if v is not None})
    given = {k: v for k, v in (options or {}).items() if v is not None}
    values["options"] = {**values.get("options", {}), **given}
    return RunConfig(**values)
