"""What nano draws for the held-out cases, with and without a picture to read."""

import time

import numpy as np
import torch
from tqdm.auto import tqdm

from snapref.evaluation.cases import APPEARANCE_PROMPT, SCENE_PROMPT, SIZE, Case
from snapref.sampling.pipeline import Pipeline

# Condition → (what the prompt names, which picture of the case is read).
CONDITIONS = {
    "all_tags": (APPEARANCE_PROMPT, None),
    "scene_only": (SCENE_PROMPT, None),
    "reference": (SCENE_PROMPT, "reference"),
    "wrong_reference": (SCENE_PROMPT, "wrong_reference"),
    "twin_reference": (SCENE_PROMPT, "twin_reference"),
}


def draw(
    pipe: Pipeline, cases: list[Case], condition: str, *, seed: int = 0, steps: int | None = None,
    batch: int = 16, quiet: bool = False,
) -> np.ndarray:
    """Samples of one condition: uint8 (n, h, w, 3).

    steps: None for the model's default, as is everything else. A case starts from the same noise in every
    condition, whatever the batch.
    """
    words, picture = CONDITIONS[condition]
    noise = starting_noise(pipe, len(cases), seed)
    drawn = []
    with tqdm(total=len(cases), desc=condition.replace("_", " "), unit="picture", disable=quiet) as bar:
        for start in range(0, len(cases), batch):
            some = cases[start : start + batch]
            result = pipe(
                [case.prompt(words) for case in some],
                references=[getattr(case, picture) for case in some] if picture else None,
                noise=noise[start : start + batch], size=SIZE, steps=steps, quiet=True,
            )
            drawn += [np.asarray(image) for image in result.images]
            bar.update(len(some))
    return np.stack(drawn)


def starting_noise(pipe: Pipeline, count: int, seed: int) -> torch.Tensor:
    """(n, 16, 1, h, w), a case after the other, so that more cases leave the first ones as they were."""
    generator = torch.Generator().manual_seed(seed)
    height, width = (side // pipe.codec.factor for side in SIZE)
    shape = (pipe.config.dit.latent_channels, 1, height, width)
    return torch.stack([torch.randn(shape, generator=generator) for _ in range(count)])


@torch.no_grad()
def through_codec(codec, pictures: np.ndarray) -> np.ndarray:
    """The best a sample can be: pictures uint8 (n, h, w, 3) encoded and decoded."""
    device = next(codec.parameters()).device
    parts = to_pixels(pictures).split(32)
    decoded = torch.cat([codec.decode(codec.encode(part.to(device))).cpu() for part in parts])
    return (decoded * 255).round().byte().permute(0, 2, 3, 1).numpy()


def to_pixels(pictures: np.ndarray) -> torch.Tensor:
    """uint8 (n, h, w, 3) → fp32 (n, 3, h, w) in [0, 1]."""
    return torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2).float() / 255


def seconds_per_picture(pipe: Pipeline, case: Case, steps: int | None = None, runs: int = 3) -> float:
    """Median of single pictures, each from reference file to pixels."""
    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        pipe(case.prompt(SCENE_PROMPT), case.reference, size=SIZE, steps=steps, quiet=True)
        times.append(time.perf_counter() - begun)
    return sorted(times)[runs // 2]
