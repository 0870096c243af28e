"""Both scales behind one name: a tiny model of the real layout with random weights, and nano as it is shipped."""

from contextlib import contextmanager
from functools import cache

import torch
from pipeline_case import picture, tiny_pipeline

import snapref
from snapref.sampling.pipeline import Pipeline
from snapref.sampling.result import Result

SCALES = ("tiny", "nano")
PROMPT, OTHER = "1girl, beach, waving", "1girl, night, smile"


@cache
def pipe_of(scale: str) -> Pipeline:
    """The parts are shared between tests: put back what you change."""
    return tiny_pipeline() if scale == "tiny" else snapref.load("nano", device="cpu")


@cache
def cache_of(scale: str, seed: int):
    return pipe_of(scale).encode(picture(seed, (48, 32 + 16 * (seed % 2))))


def draw(scale: str, prompt=PROMPT, reference=None, **options) -> Result:
    """Two steps at a small size: enough for every branch, window and buffer."""
    return pipe_of(scale)(prompt, reference, quiet=True, **{"steps": 2, "size": (64, 48), **options})


def noise_of(scale: str, count: int = 1, height: int = 8, width: int = 6, seed: int = 0) -> torch.Tensor:
    """(count, 16, 1, h, w)."""
    return torch.randn(count, 16, 1, height, width, generator=torch.Generator().manual_seed(seed))


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference over the largest value."""
    return ((found.double() - wanted.double()).abs().max() / wanted.abs().max()).item()


@contextmanager
def work(pipe: Pipeline):
    """Counts what the model is asked: {"rows": batch rows of every call, "reads": calls of the encoder}.

    Whatever the pipeline remembers is freed first, or nothing would be read again.
    """
    pipe.free()
    counts = {"rows": [], "reads": 0}
    inner = pipe.model.keys_values

    def counted(*args, **options):
        counts["reads"] += 1
        return inner(*args, **options)

    pipe.model.keys_values = counted
    hook = pipe.model.register_forward_pre_hook(lambda module, inputs: counts["rows"].append(len(inputs[0])))
    try:
        yield counts
    finally:
        hook.remove()
        del pipe.model.keys_values
