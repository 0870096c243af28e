"""The options of each task: what a config may say there, and in which range."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from snapref import config as sizes
from snapref.config import AdapterConfig
from snapref.training.config import RunConfig, fits
from snapref.training.draws import FRAMES

MODELS = {"nano": sizes.NANO, "anima": sizes.BASE}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def adapters() -> dict[str, AdapterConfig]:
    """The adapter configs by the names that options give them: V1A, NANO_V1A, …"""
    return {name: value for name, value in vars(sizes).items() if isinstance(value, AdapterConfig)}


@dataclass(frozen=True)
class Rule:
    """What a value must be, as a test and in words."""

    test: Callable[[object], bool]
    words: Callable[[], str]
    needed: bool = False  # the task cannot do without


def whole(low: int, high: float = math.inf, needed: bool = False) -> Rule:
    words = f"a whole number of at least {low}" if high == math.inf else f"a whole number from {low} to {high}"
    return Rule(lambda v: fits(v, int) and low <= v <= high, lambda: words, needed)


def positive(needed: bool = False) -> Rule:
    return Rule(lambda v: fits(v, float) and v > 0, lambda: "a number above 0", needed)


def number(needed: bool = False) -> Rule:
    return Rule(lambda v: fits(v, float) and v >= 0, lambda: "a number of at least 0", needed)


def choice(known: Callable[[], dict], needed: bool = False) -> Rule:
    return Rule(lambda v: isinstance(v, str) and v in known(), lambda: f"one of {', '.join(known())}", needed)


def path(needed: bool = False) -> Rule:
    return Rule(lambda v: isinstance(v, str) and v != "", lambda: "the path of a file or folder", needed)


FLAG = Rule(lambda v: isinstance(v, bool), lambda: "true or false")
JITTER = Rule(
    lambda v: isinstance(v, (list, tuple)) and len(v) in (0, 3) and all(fits(x, float) and x >= 0 for x in v),
    lambda: "three numbers of at least 0, for (t, h, w), such as [0, 4, 4]",
)
PICTURE_KINDS = Rule(
    lambda v: isinstance(v, dict) and v and all(k in FRAMES and fits(n, int) and n > 0 for k, n in v.items()),
    lambda: f"an object of numbers above 0 for some of {', '.join(FRAMES)}", True,
)


def fit_together(changes) -> bool:
    """Whether fields of an adapter config can be replaced by these."""
    if not isinstance(changes, dict) or not set(changes) <= set(AdapterConfig.__dataclass_fields__):
        return False
    ranks, alphas = (all(fits(v, kind) and v > 0 for n, v in changes.items() if n.endswith(end))
                     for end, kind in (("_rank", int), ("_alpha", float)))
    place = changes.get("place", (0, 0, 0))
    return ranks and alphas and isinstance(place, (list, tuple)) and len(place) == 3 and all(
        fits(v, float) for v in place
    )


CHANGES = Rule(
    fit_together, lambda: "an object of ranks and alphas above 0, a place of three numbers, and other fields out of "
    f"{', '.join(AdapterConfig.__dataclass_fields__)}",
)
GAP = Rule(lambda v: fits(v, int) and v >= 0 and v != 1, lambda: "a number of pairs from 2, or 0 for no gap")

RULES: dict[str, dict[str, Rule]] = {
    "codec": {"crop": whole(8, 96), "noise": number(), "freeze_encoder": FLAG, "init": path()},
    "text": {"weights": path(True)},
    "base": {"weights": path(True), "shift": positive(True), "spread": positive(True), "passes": whole(1, needed=True),
             "kinds": PICTURE_KINDS, "init": path()},
    "tagger": {"weights": path(True), "noise": number(True)},
    "adapter": {
        "adapter": choice(adapters, True), "adapter_changes": CHANGES, "model": choice(lambda: MODELS),
        "dtype": choice(lambda: DTYPES), "continues": path(), "recompute": FLAG, "shift": positive(),
        "spread": positive(), "jitter": JITTER, "columns": whole(1), "passes": whole(1), "gap": GAP,
        "previews": whole(0), **{name: path() for name in ("data", "init", "base", "weights", "unseen", "vae")},
    },
}


def check_options(config: RunConfig) -> None:
    """Raises ValueError for an option that its task does not know, lacks, or cannot use."""
    rules, given = RULES[config.task], config.options
    if unknown := sorted(set(given) - set(rules)):
        raise ValueError(f"{config.name} has unknown options: {', '.join(unknown)}; {config.task} knows "
                         f"{', '.join(rules)}")
    for name, rule in rules.items():
        if name not in given and rule.needed:
            raise ValueError(f"{config.name} lacks the option {name}; it must be {rule.words()}")
        if name in given and not rule.test(given[name]):
            raise ValueError(f"{name} is {given[name]!r}; it must be {rule.words()}")


def refuse_unknown_task(task: str, known) -> None:
    """Raises ValueError for a task that nothing here trains."""
    if task not in known:
        raise ValueError(f"task is {task!r}; it must be one of {', '.join(known)}")
