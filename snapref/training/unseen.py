"""Pairs of characters that training never sees, to watch a run by: the held-out gap of its checkpoints.

The gap is the flow-matching loss with another character's reference minus the loss with the right one, the same
noise and sigma each time: what the model takes from the picture itself. Small and quick here; `snapref evaluate
heldout` is the careful one.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from snapref.anima.model import AnimaDiT
from snapref.config import AdapterConfig
from snapref.reference.branches import Adapter
from snapref.reference.encode import joint_velocity
from snapref.training.flow import add_noise, draw_sigmas, velocity_loss
from snapref.training.frozen import FrozenParts
from snapref.training.pairs import reference_scene
from snapref.world import SIZES, UNBIASED, character, prompt, render, scene

READS = ("right", "wrong", "none")


@dataclass(frozen=True)
class Unseen:
    """n pairs of one size. The prompt names the scene alone, as far as the pair allows."""

    latent: Tensor  # (n, 16, 1, h, w), the true picture
    reference: Tensor  # (n, 16, 1, h', w'), the same character elsewhere
    wrong: Tensor  # the same shape, another character
    context: Tensor  # (n, k, c)
    reference_context: Tensor  # (n, k, c)
    empty: Tensor | None  # (1, k, c), of the empty prompt, which guidance needs; None: draw without guidance

    def __len__(self) -> int:
        return len(self.latent)

    def to(self, device) -> "Unseen":
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Unseen(**{name: None if value is None else value.to(device) for name, value in values.items()})


def unseen_drawn(
    parts: FrozenParts, contexts: Callable[[list[str]], Tensor], config: AdapterConfig, count: int, seed: int = 0
) -> Unseen:
    """Held-out characters of the drawn world, without the base's biases."""
    truths, rights, wrongs, prompts = [], [], [], []
    for index in range(count):
        rng = np.random.default_rng((seed, index, 91))
        person = stranger = character(rng, "heldout", UNBIASED)
        while stranger.identity == person.identity:
            stranger = character(rng, "heldout", UNBIASED)
        where, shown = scene(rng), reference_scene(rng)
        truths.append(render(person, where, SIZES["portrait"]))
        rights.append(render(person, shown, SIZES["portrait"]))
        wrongs.append(render(stranger, shown, SIZES["portrait"]))
        prompts.append(prompt(person, where, appearance=False, style=False))
    caption = contexts([config.captions[config.default_mode]])
    return Unseen(
        parts.pictures(truths), parts.pictures(rights), parts.pictures(wrongs), contexts(prompts),
        caption.expand(count, -1, -1), contexts([""]),
    )


def unseen_prepared(pairs, count: int) -> Unseen:
    """Pairs of a prepared set of held-out characters (a `PreparedPairs`), of its largest bucket, spread over it.

    The wrong reference of a pair is the next one of somebody else. Raises ValueError where there is only one person.
    """
    bucket = max(pairs.buckets.values(), key=len)
    chosen = [bucket[i] for i in sorted({*np.linspace(0, len(bucket) - 1, count).round().astype(int).tolist()})]
    batch = pairs.batch(chosen)
    rows = batch["reads"].nonzero()[:, 0].tolist()
    who = persons(pairs)[[chosen[row] for row in rows]]
    others = [next((b for b in [*range(a, len(rows)), *range(a)] if who[b] != who[a]), None) for a in range(len(rows))]
    if len(rows) < 2 or None in others:
        raise ValueError(
            f"{len(rows)} held-out pairs of one size show {len({*who})} characters; prepare pictures of two or more"
        )
    batch = {name: value[rows] for name, value in batch.items()}
    return Unseen(
        batch["latent"], batch["reference"], batch["reference"][others], batch["context"], batch["reference_context"],
        pairs.empty(),
    )


def persons(pairs) -> np.ndarray:
    """(len(pairs),) a number per pair, the same for the pairs of one character: pictures that pairs hold together."""
    first: dict[tuple[int, int], tuple[int, int]] = {}

    def root(picture: tuple[int, int]) -> tuple[int, int]:
        while (above := first.setdefault(picture, picture)) != picture:
            first[picture] = picture = first[above]
        return picture

    ends = [(i, (int(a), int(b))) for i, one in enumerate(pairs.sets)
            for a, b in zip(one.target, one.reference, strict=True)]
    for i, (a, b) in ends:
        first[root((i, b))] = root((i, a))
    roots = [root((i, a)) for i, (a, _) in ends]
    numbers = {picture: n for n, picture in enumerate(dict.fromkeys(roots))}
    return np.array([numbers[picture] for picture in roots])


@torch.no_grad()
def unseen_losses(
    dit: AnimaDiT, adapter: Adapter, unseen: Unseen, shift: float, seed: int = 0, batch: int = 16
) -> dict[str, np.ndarray]:
    """{"right", "wrong", "none"} → losses (n,). With "none" the model is the base: both branches are off."""
    generator = torch.Generator().manual_seed(seed)
    sigmas = draw_sigmas(len(unseen), shift, generator)
    noises = torch.randn(unseen.latent.shape, generator=generator)
    device = next(dit.parameters()).device
    losses: dict[str, list[Tensor]] = {name: [] for name in READS}
    for start in range(0, len(unseen), batch):
        part = slice(start, start + batch)
        latent, noise, sigma, context, captions = (
            value[part].to(device)
            for value in (unseen.latent, noises, sigmas, unseen.context, unseen.reference_context)
        )
        noisy = add_noise(latent, noise, sigma)
        for name, pictures in (("right", unseen.reference), ("wrong", unseen.wrong)):
            reference = pictures[part].to(device)
            velocity = joint_velocity(dit, adapter, noisy, sigma, context, reference, captions)
            losses[name].append(velocity_loss(velocity.float(), latent, noise).cpu())
        losses["none"].append(velocity_loss(dit(noisy, sigma, context).float(), latent, noise).cpu())
    return {name: torch.cat(some).numpy() for name, some in losses.items()}


def gap_summary(losses: dict[str, np.ndarray]) -> dict[str, float]:
    """Mean losses, the gap, and its 95 % interval by the normal approximation; n."""
    gaps = losses["wrong"] - losses["right"]
    reach = 1.96 * gaps.std(ddof=1) / len(gaps) ** 0.5
    means = {name: float(values.mean()) for name, values in losses.items()}
    return {**means, "gap": float(gaps.mean()), "low": float(gaps.mean() - reach), "high": float(gaps.mean() + reach),
            "n": len(gaps)}
