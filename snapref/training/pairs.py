"""Reference and target pictures of one character, and the prompt that leaves out what the reference supplies."""

from dataclasses import dataclass, replace

import numpy as np

from snapref.world import HELD_BACK, IDENTITY, SIZES, Character, Scene, character, render, scene, split_of, tags

SILENT = 0.70  # of prompts that name no appearance and no outfit; the others name some of it
CHAR = 0.4  # of pairs in mode "char": the reference has another art style, and the prompt names the target's
STYLES = [artist for artist in IDENTITY["artist"] if artist != HELD_BACK["artist"]]


@dataclass(frozen=True)
class Pair:
    reference: np.ndarray  # uint8 (h, w, 3)
    target: np.ndarray
    prompt: str
    mode: str  # "cs" or "char"


def draw_pair(seed: int, index: int, split: str = "adapter", shape: str = "portrait") -> Pair:
    """The index-th pair: the same person in two scenes that share nothing but her; `shape` is the target's."""
    rng = np.random.default_rng((seed, index, 77))
    mode = "char" if rng.random() < CHAR else "cs"
    person = character(rng, split)
    while mode == "char" and not other_styles(person):
        person = character(rng, split)
    before = reference_scene(rng)
    after = scene(rng)
    named = () if rng.random() < SILENT else tuple(
        name for name in IDENTITY if name != "artist" and rng.random() < 0.4
    )
    style = mode == "char" or rng.random() < 0.3
    prompt = ", ".join(tags(person, after, appearance=named, style=style, ground=bool(rng.random() < 0.3)))
    shown = person
    if mode == "char":
        others = other_styles(person)
        shown = others[int(rng.integers(len(others)))]
    return Pair(render(shown, before, SIZES["portrait"]), render(person, after, SIZES[shape]), prompt, mode)


def other_styles(person: Character) -> list[Character]:
    """The same character in every other art style in which she is of the same split.

    There she is another attribute set, which may be held out from this training.
    """
    others = [replace(person, artist=artist) for artist in STYLES if artist != person.artist]
    return [other for other in others if split_of(other) == split_of(person)]


def reference_scene(rng: np.random.Generator) -> Scene:
    """Where a reference shows its character: any scene, but mostly one in which the outfit and the eyes are seen."""
    where = scene(rng, framing=str(rng.choice(["full body", "upper body", "portrait"], p=[0.45, 0.4, 0.15])))
    if where.expression == "closed eyes" and rng.random() < 0.8:
        where = replace(where, expression="smile")
    return where
