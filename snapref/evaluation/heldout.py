"""The flow-matching loss of a held-out target with the right picture, with a wrong one, and with none.

The most sensitive score of an adapter: no sampling and no tagger, the same noise and the same sigma three
times. The gap (wrong - right) is what the model takes from the picture itself.
"""

from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from snapref.anima.attention import KeyGroup
from snapref.evaluation.cases import SCENE_PROMPT, Case
from snapref.evaluation.samples import starting_noise, to_pixels
from snapref.evaluation.stats import estimate
from snapref.reference.branches import merged
from snapref.reference.encode import offered_keys
from snapref.sampling.pipeline import Pipeline
from snapref.sampling.settings import Settings
from snapref.training.flow import add_noise, draw_sigmas, velocity_loss

# A mean over all sigmas hides where the picture helps.
BANDS = {"below 0.3": (0.0, 0.3), "0.3 to 0.7": (0.3, 0.7), "above 0.7": (0.7, 1.0)}
READS = {"right": "reference", "wrong": "wrong_reference", "none": None}


@torch.no_grad()
def heldout_losses(
    pipe: Pipeline, cases: list[Case], seed: int = 0, batch: int = 32, quiet: bool = False
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """({"right", "wrong", "none"} → losses (n,), sigmas (n,)). The prompt names the scene alone.

    With "none" the model is the base: both branches are off.
    """
    generator = torch.Generator().manual_seed(seed)
    sigmas = draw_sigmas(len(cases), pipe.config.shift, generator)
    noise = starting_noise(pipe, len(cases), seed + 1)
    losses: dict[str, list[Tensor]] = {name: [] for name in READS}
    with tqdm(total=len(cases), desc="held-out loss", unit="pair", disable=quiet) as bar:
        for start in range(0, len(cases), batch):
            part = slice(start, start + batch)
            for name, loss in batch_losses(pipe, cases[part], sigmas[part], noise[part]).items():
                losses[name].append(loss)
            bar.update(len(cases[part]))
    return {name: torch.cat(parts).numpy() for name, parts in losses.items()}, sigmas.numpy()


@torch.no_grad()
def batch_losses(pipe: Pipeline, cases: list[Case], sigma: Tensor, noise: Tensor) -> dict[str, Tensor]:
    """(b,) per kind of reference."""
    clean = latents_of(pipe, [case.picture for case in cases])
    sigma, noise = sigma.to(pipe.device), noise.to(pipe.device)
    noisy = add_noise(clean, noise, sigma)
    context = pipe.text([case.prompt(SCENE_PROMPT) for case in cases]).to(pipe.device)
    losses = {}
    for name, picture in READS.items():
        memory = read(pipe, [getattr(case, picture) for case in cases]) if picture else None
        with merged(pipe.model, pipe.adapter.target) if picture else nullcontext():
            velocity = pipe.model(noisy, sigma, context, memory=memory)
        losses[name] = velocity_loss(velocity.float(), clean, noise).cpu()
    return losses


def latents_of(pipe: Pipeline, pictures: list[np.ndarray]) -> Tensor:
    """(b, 16, 1, h, w) of uint8 pictures (h, w, 3)."""
    return pipe.to_latent(to_pixels(np.stack(pictures)))


def read(pipe: Pipeline, pictures: list[np.ndarray]) -> list[list[KeyGroup]]:
    """What a batch remembers whose row i reads picture i and no other, in the adapter's default mode.

    The keys and values of a ReferenceCache, for many pictures in one call.
    """
    _, caption = pipe.caption(Settings())
    latents, context = latents_of(pipe, pictures), pipe.text([caption]).to(pipe.device)
    adapter = pipe.adapter
    keys = offered_keys(pipe.model, latents, context, adapter.config.place, adapter.reference)
    return [[KeyGroup(k, v)] for k, v in keys]


def heldout_report(losses: dict[str, np.ndarray], sigmas: np.ndarray) -> dict:
    """Means, the gap with its interval, and the same per band of sigmas (None for a band without a case)."""
    bands = {name: (sigmas >= low) & (sigmas < high) for name, (low, high) in BANDS.items()}
    inside = {name: {kind: loss[rows] for kind, loss in losses.items()} for name, rows in bands.items()}
    return {
        **loss_summary(losses),
        "bands": {name: loss_summary(some) if len(some["right"]) else None for name, some in inside.items()},
    }


def loss_summary(losses: dict[str, np.ndarray]) -> dict:
    gap = estimate(losses["wrong"] - losses["right"])
    means = {name: estimate(loss)["mean"] for name, loss in losses.items()}
    return {**means, "gap": gap["mean"], "ci95": gap["ci95"], "n": gap["n"]}
