"""A picture and what its caption says of it, sampled together, since the biases live between the two."""

from dataclasses import dataclass, replace

import numpy as np

from .characters import BIASED, Biases, Character, as_rng, in_outfit
from .characters import character as draw_character
from .prompts import APPEARANCE, SCENE_ORDER, pair_tags, tags
from .render import render, render_pair
from .scenes import Scene, next_frame
from .scenes import scene as draw_scene
from .vocabulary import IDENTITY, PAIR_APPEARANCE, QUALITY_TAGS

# What captions leave out, as shares of pictures.
NAMED = {"everything": 0.62, "some": 0.20, "scene only": 0.12, "appearance only": 0.06}
OUTFIT_UNNAMED = 0.20  # besides, of pictures whose other tags are all there
GROUND_NAMED = 0.35
STYLE_UNNAMED = 0.12
SHUFFLED = 0.25
QUALITY = 0.25
SIZES = {"portrait": (128, 96), "landscape": (96, 128), "square": (112, 112)}  # (h, w) in pixels
SIZE_SHARES = {"portrait": 0.76, "landscape": 0.14, "square": 0.10}
OTHER_OUTFITS = [outfit for outfit in IDENTITY["outfit"] if outfit != "swimsuit"]


@dataclass(frozen=True)
class Sample:
    """One training example before it is drawn: one or two characters, a scene, a size, a caption."""

    people: tuple[Character, ...]
    scene: Scene
    tags: tuple[str, ...]
    size: tuple[int, int]
    second: Scene | None = None  # of a two-frame clip

    @property
    def prompt(self) -> str:
        return ", ".join(self.tags)

    def pictures(self, scale: float = 1) -> list[np.ndarray]:
        """The picture, or both frames of a clip: uint8 (h, w, 3) each."""
        scenes = [self.scene] if self.second is None else [self.scene, self.second]
        draw = render if len(self.people) == 1 else render_pair
        return [draw(*self.people, moment, self.size, scale) for moment in scenes]


def sample(seed_or_rng, split: str = "train", biases: Biases = BIASED, *, person: Character | None = None,
           where: Scene | None = None, clip: bool = False, size: tuple[int, int] | None = None) -> Sample:
    """One character, her scene and a caption that may leave things out.

    A given `person` keeps her outfit whatever the biases; a given `where` keeps its floor.
    """
    rng = as_rng(seed_or_rng)
    kind = _choice(rng, NAMED)
    keep = {name for name in APPEARANCE if kind == "everything" or (kind == "some" and rng.random() < 0.6)}
    keep |= set(APPEARANCE) if kind == "appearance only" else set()
    if rng.random() < OUTFIT_UNNAMED:
        keep -= {"outfit", "outfit_colour"}
    seen = () if kind == "appearance only" else SCENE_ORDER
    if kind == "some":
        seen = tuple(name for name in SCENE_ORDER if rng.random() < 0.8)
    ground = bool(rng.random() < GROUND_NAMED) and "ground" in seen

    given = where is not None
    where = where or draw_scene(rng)
    if person is None:
        person = draw_character(rng, split, biases)
        if where.background == "beach" and "outfit" not in keep:
            person = _dress_for_beach(rng, person, split, biases)
    if not given:
        where = _lose_floor(rng, where, ground, biases)
    words = tags(person, where, appearance=tuple(keep), scene=seen, ground=ground,
                 style=bool(rng.random() >= STYLE_UNNAMED))
    size = size or SIZES[_choice(rng, SIZE_SHARES)]
    second = next_frame(rng, where) if clip else None
    return Sample((person,), where, tuple(_arranged(rng, words, solo=True)), size, second)


def sample_pair(seed_or_rng, split: str = "train", biases: Biases = BIASED,
                size: tuple[int, int] = SIZES["landscape"]) -> Sample:
    """Two characters of `split` in one art style, side by side, with "left …" and "right …" tags."""
    rng = as_rng(seed_or_rng)
    left = draw_character(rng, split, biases)
    right = draw_character(rng, split, biases, artist=left.artist)
    where = draw_scene(rng, framing="full body" if rng.random() < 0.5 else "upper body")
    ground = bool(rng.random() < GROUND_NAMED)
    where = _lose_floor(rng, where, ground, biases)
    keep = tuple(n for n in PAIR_APPEARANCE if n in ("hair_colour", "outfit") or rng.random() < 0.8)
    words = pair_tags(left, right, where, appearance=keep, ground=ground,
                      style=bool(rng.random() >= STYLE_UNNAMED))
    return Sample((left, right), where, tuple(_arranged(rng, words, solo=False)), size)


def _choice(rng: np.random.Generator, shares: dict[str, float]) -> str:
    names = list(shares)
    return names[int(np.searchsorted(np.cumsum(list(shares.values())), rng.random(), side="right"))]


def _dress_for_beach(rng, person: Character, split: str, biases: Biases) -> Character:
    """The swimsuit bias, with exactly its share: the others wear anything but a swimsuit.

    Without the bias (share 0) the outfit stays as drawn.
    """
    if not biases.beach_swimsuit_share:
        return person
    swims = rng.random() < biases.beach_swimsuit_share
    if swims == (person.outfit == "swimsuit"):
        return person
    return in_outfit(rng, person, ["swimsuit"] if swims else OTHER_OUTFITS, split)


def _lose_floor(rng, where: Scene, ground_named: bool, biases: Biases) -> Scene:
    """The white-floor bias: outdoors, full body, and no ground in the caption."""
    lost = where.outdoors and where.framing == "full body" and not ground_named
    return replace(where, white_floor=bool(lost and rng.random() < biases.white_floor_share))


def _arranged(rng, words: list[str], solo: bool) -> list[str]:
    """The caption's order: the count first, the rest sometimes shuffled, quality tags sometimes in front."""
    head, rest = words[:1], words[1:]
    if rng.random() < SHUFFLED:
        rest = [rest[i] for i in rng.permutation(len(rest))]
    if rng.random() < QUALITY:
        front = [word for word in QUALITY_TAGS[:4] if rng.random() < 0.6]
        return [*front, *head, *(["solo"] if solo and rng.random() < 0.6 else []), *rest]
    return [*head, *rest]
