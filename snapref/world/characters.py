"""Who is drawn: tagged attributes, untagged hues, and the split that keeps strangers strangers."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from .vocabulary import IDENTITY

PATTERNS = ("plain", "stripes", "dots", "two-tone")  # never tagged

# Known to the base, kept from all adapter training, reported apart.
HELD_BACK = {"hair_style": "double bun", "outfit": "overalls", "artist": "@pastelcut"}

SPLITS = ("base", "adapter", "heldout", "held_back")
GROUPS = {"train": ("base", "adapter"), **{name: (name,) for name in SPLITS}}


@dataclass(frozen=True)
class Biases:
    """Shares of what the base's data gets wrong on purpose."""

    dark_skin_share: float = 0.08  # of characters
    white_floor_share: float = 0.30  # of full-body outdoor pictures whose tags name no ground
    beach_swimsuit_share: float = 0.30  # of beach pictures whose tags name no outfit


BIASED = Biases()
UNBIASED = Biases(dark_skin_share=0.25, white_floor_share=0.0, beach_swimsuit_share=0.0)


@dataclass(frozen=True)
class Character:
    """One person. The first nine fields are tags; the last four no tag can say."""

    hair_colour: str
    hair_style: str
    eye_colour: str
    skin: str
    outfit: str
    outfit_colour: str
    accessory: str | None
    detail: str | None
    artist: str
    hair_hue: float = 0.0  # -1..1 across the range of hues that share the tag
    outfit_hue: float = 0.0
    eye_hue: float = 0.0
    pattern: str = "plain"  # on the outfit; one of PATTERNS

    @property
    def identity(self) -> tuple[str | None, ...]:
        """The tagged values, in the order of `IDENTITY`."""
        return tuple(getattr(self, name) for name in IDENTITY)


def held_back(character: Character) -> tuple[str, ...]:
    """The attributes whose value no adapter was ever trained on."""
    return tuple(name for name, value in HELD_BACK.items() if getattr(character, name) == value)


def split_of(character: Character) -> str:
    """One of SPLITS, by a hash of the tagged set alone: 50 % base, 35 % adapter, 15 % held out.

    An adapter character with a held-back value goes to the base, a held-out one to "held_back".
    """
    digest = hashlib.sha256("|".join(map(str, character.identity)).encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2.0**64
    if place < 0.15:
        return "held_back" if held_back(character) else "heldout"
    return "adapter" if place < 0.50 and not held_back(character) else "base"


def as_rng(seed_or_rng) -> np.random.Generator:
    """A generator from a seed (an int or a tuple of ints); a generator is passed through."""
    if isinstance(seed_or_rng, np.random.Generator):
        return seed_or_rng
    return np.random.default_rng(seed_or_rng)


def pick(rng: np.random.Generator, values):
    """One of `values`, all alike."""
    return values[int(rng.integers(len(values)))]


def character(seed_or_rng, split: str = "train", biases: Biases = BIASED, **fixed) -> Character:
    """A character of `split` (one of SPLITS, "train" = base and adapter, or "any"); `fixed` sets fields.

    Raises ValueError for an unknown split or when no such character exists.
    """
    if split != "any" and split not in GROUPS:
        raise ValueError(f"split {split!r} is unknown; choose one of {', '.join(GROUPS)} or any")
    rng = as_rng(seed_or_rng)
    for _ in range(1000):
        found = _draw(rng, biases, fixed)
        if split == "any" or split_of(found) in GROUPS[split]:
            return found
    raise ValueError(f"no character of split {split!r} has {fixed}; fix fewer attributes")


def _draw(rng: np.random.Generator, biases: Biases, fixed: dict) -> Character:
    values = {name: pick(rng, choices) for name, choices in IDENTITY.items()}
    dark = rng.random() < biases.dark_skin_share
    values["skin"] = "dark skin" if dark else pick(rng, [s for s in IDENTITY["skin"] if s != "dark skin"])
    hair, outfit, eyes = rng.uniform(-1, 1, 3).tolist()
    untagged = {"hair_hue": hair, "outfit_hue": outfit, "eye_hue": eyes, "pattern": pick(rng, PATTERNS)}
    return Character(**{**values, **untagged, **fixed})


def in_outfit(rng: np.random.Generator, person: Character, outfits, split: str) -> Character:
    """The same person in one of `outfits`.

    Where her split would not allow the set, the outfit's colour changes, then accessory and detail.
    """
    colours = [person.outfit_colour, *rng.permutation(IDENTITY["outfit_colour"]).tolist()]
    for outfit in rng.permutation(outfits).tolist():
        for colour in colours:
            changed = replace(person, outfit=outfit, outfit_colour=colour)
            if split == "any" or split_of(changed) in GROUPS[split]:
                return changed
    free = ("outfit", "outfit_colour", "accessory", "detail")
    kept = {name: value for name, value in vars(person).items() if name not in free}
    return character(rng, split, outfit=pick(rng, outfits), **kept)
