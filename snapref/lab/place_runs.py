"""One reference at many places and by many roads: what nano draws, how well it denoises, where it looks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from snapref import world
from snapref.anima.attention import KeyGroup
from snapref.anima.rope import Place, apply_rope, rope_angles
from snapref.config import DiTConfig
from snapref.lab.attention_view import reference_shares
from snapref.reference.cache import ReferenceCache
from snapref.reference.encode import offered_keys
from snapref.reference.picture import load_picture, to_pixels
from snapref.rivals import ExtraFrame, draw, letterboxed, read_at
from snapref.sampling.pipeline import Pipeline

ROADS = ("the prompt alone", "as a second frame", "own place, no adapter", "own place, adapter")


def four_ways(pipe: Pipeline, picture, prompt: str, frame: int = 1, **settings) -> dict[str, Image.Image]:
    """One prompt and one noise, four ways for the picture to come in: ROADS → what is drawn.

    frame: whether the clip has the reference after the target (1) or before it (0).
    """
    latent, place = latent_of(pipe, picture), pipe.adapter.config.place
    offset = [read_at(pipe.model, pipe.adapter, latent, caption(pipe), place, adapted) for adapted in (False, True)]
    routes = [ExtraFrame(pipe.model, latent, frame), *offset]
    alone = pipe(prompt, quiet=True, **settings).image
    drawn = [draw(pipe, route, [prompt], **settings)[0] for route in routes]
    return dict(zip(ROADS, [alone, *drawn], strict=True))


def base_alone(pipe: Pipeline, picture, prompt: str, rows: Sequence[float], **settings) -> list[Image.Image]:
    """What the base draws, without any adapter, with the picture at each of these rows."""
    route = read_at(
        pipe.model, pipe.adapter, latent_of(pipe, picture), caption(pipe), (0.0, 0.0, 0.0), adapted=False
    )
    caches = [moved(route.cache, pipe.config.dit, (0.0, row, 0.0)) for row in rows]
    return [draw(pipe, replace(route, cache=cache), [prompt], **settings)[0] for cache in caches]


def caption(pipe: Pipeline) -> Tensor:
    """The context (1, k, c) that the reference hears in the adapter's default mode."""
    known = pipe.adapter.config
    return pipe.contexts([known.captions[known.default_mode]])[0]


def latent_of(pipe: Pipeline, picture) -> Tensor:
    """The clean latent (1, 16, 1, h, w) of a picture, letterboxed to the model's default size."""
    sheet = letterboxed(load_picture(picture), pipe.config.default_size)
    return pipe.to_latent(to_pixels(sheet, pipe.config.size_step))


def held_out_pairs(
    count: int, size: tuple[int, int], seed: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """Yields per held-out character (reference picture, asked-for picture, prompt of the scene alone).

    Pictures are uint8 (h, w, 3) of `size`; both show her whole, in two different backgrounds.
    """
    rng = np.random.default_rng(seed)
    for _ in range(count):
        person = world.character(rng, "heldout")
        here, there = rng.permutation(world.VOCABULARY["background"])[:2].tolist()
        scenes = [
            world.scene(rng, background=place, framing="full body", pose=pose, expression="smile")
            for place, pose in ((here, "standing"), (there, "arms up"))
        ]
        shown = [world.render(person, where, size) for where in scenes]
        yield *shown, world.prompt(person, scenes[1], appearance=False, style=False)


def distances(pipe: Pipeline, count: int, frame: int = 1, seed: int = 0, **settings) -> dict[str, np.ndarray]:
    """ROADS → (count, 2): per held-out character the RMS pixel distance, in 0..255, of what is drawn
    to the reference picture (small: it was copied) and to the asked-for picture."""
    found = {road: [] for road in ROADS}
    cases = held_out_pairs(count, pipe.config.default_size, seed)
    for number, (reference, asked, prompt) in enumerate(cases):
        drawn = four_ways(pipe, reference, prompt, frame, seed=number, **settings)
        for road, image in drawn.items():
            found[road].append([rms(image, picture) for picture in (reference, asked)])
    return {road: np.array(rows) for road, rows in found.items()}


def rms(a, b) -> float:
    """Root mean square difference of two pictures of one size, in 0..255."""
    return float(np.sqrt(np.mean((np.asarray(a, float) - np.asarray(b, float)) ** 2)))


def moved(cache: ReferenceCache, config: DiTConfig, by: Place) -> ReferenceCache:
    """The cache as if its pictures had been read `by` = (t, h, w) patches further on.

    Nothing is read again. A picture's tokens see only each other, and all of them move alike, so no value
    changes and every key turns by one angle.
    """
    angle = rope_angles(config, 1, 1, 1, by, cache.layers[0][0].device)
    pictures = tuple(
        replace(p, place=tuple(a + b for a, b in zip(p.place, by, strict=True)))
        for p in cache.fingerprint.pictures
    )
    return replace(
        cache,
        layers=tuple((apply_rope(k, angle), v) for k, v in cache.layers),
        fingerprint=replace(cache.fingerprint, pictures=pictures),
    )


@dataclass(frozen=True)
class Trial:
    """Held-out characters: a noisy picture of each, and the keys of another picture of her, at place 0."""

    noisy: Tensor  # (n, 16, 1, h, w)
    velocity: Tensor  # what the model should answer
    sigma: Tensor  # (n,)
    context: Tensor  # (n, k, c), scene alone
    keys: list[tuple[Tensor, Tensor]]  # per block, each (n, heads, r, d)


@torch.no_grad()
def trial(pipe: Pipeline, count: int, sigma: float = 0.8, seed: int = 0) -> Trial:
    """`count` held-out characters, each to be denoised in one scene and read from a picture of another."""
    references, asked, prompts = zip(*held_out_pairs(count, pipe.config.default_size, seed), strict=True)
    step = pipe.config.size_step
    read, clean = (
        torch.cat([pipe.to_latent(to_pixels(picture, step)) for picture in pictures])
        for pictures in (references, asked)
    )
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed)).to(clean)
    keys = offered_keys(pipe.model, read, caption(pipe), (0.0, 0.0, 0.0), pipe.adapter.reference)
    level = torch.full((count,), sigma, device=clean.device)
    noisy = sigma * noise + (1 - sigma) * clean
    return Trial(noisy, noise - clean, level, torch.cat(pipe.contexts(prompts)), keys)


@torch.no_grad()
def losses(pipe: Pipeline, t: Trial, place: Place | None, other: bool = False) -> Tensor:
    """Loss per character, (n,), with the references at `place`.

    place None: nothing is read. other: everybody reads her neighbour's picture.
    """
    memory = None if place is None else at_place(pipe, t, place)
    if other:
        memory = [[KeyGroup(g.k.roll(1, 0), g.v.roll(1, 0))] for (g,) in memory]
    answer = pipe.model(t.noisy, t.sigma, t.context, memory=memory, branch=pipe.adapter.target)
    return (answer - t.velocity).square().flatten(1).mean(1)


def attention(pipe: Pipeline, t: Trial, place: Place) -> float:
    """Share of the targets' self-attention that goes to references at `place`; mean over all there is."""
    memory, found = at_place(pipe, t, place), []
    for i in range(len(t.noisy)):
        own = [[KeyGroup(g.k[i : i + 1], g.v[i : i + 1])] for (g,) in memory]
        row = t.noisy[i : i + 1], float(t.sigma[i]), t.context[i : i + 1]
        found.append(reference_shares(pipe.model, *row, own, pipe.adapter.target).sum(-1).mean())
    return float(torch.stack(found).mean())


def at_place(pipe: Pipeline, t: Trial, place: Place) -> list[list[KeyGroup]]:
    """The trial's keys, turned from place 0 to `place`: per block one group, a row per character."""
    angle = rope_angles(pipe.config.dit, 1, 1, 1, place, t.noisy.device)
    return [[KeyGroup(apply_rope(k, angle), v)] for k, v in t.keys]
