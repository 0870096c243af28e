"""Which pictures a set consists of: characters × scenes, all of it from one seed, before anything is drawn.

A picture's number says who is on it: number % characters. So a batch shows many characters, and a set that is half
drawn has some pictures of every one of them.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from snapref.sampling.fields import checked, choice, number, plain
from snapref.sampling.schedule import TABLE_SIZE
from snapref.training.catalog import Catalog, catalog_of
from snapref.training.cleaning import clean
from snapref.training.held_out import WORLD, told, world_split
from snapref.training.json_file import checked_object, read_json, write_json

FORMAT = "snapref_manifest/1"
FILE = "manifest.json"
TORN = "remove it and run snapref datagen again with the settings of the pictures there, which stay"
STRANGERS = 64  # held-out characters that a manifest names


@dataclass(frozen=True)
class Person:
    """A made-up character: a tag for each attribute, and the styles it is drawn in."""

    values: Mapping[str, str | None]
    styles: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    number: int
    character: int
    style: str
    identity: str  # sha256 of the attribute set
    values: Mapping[str, str | None]  # of character and scene, as drawn from the catalog
    tags: Mapping[str, str]  # of them what is seen and does not contradict, by attribute
    size: tuple[int, int]  # (h, w) in pixels


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Settings that fix every picture of a set. Raises ValueError that names a field, its value and its range."""

    model: str = plain(MISSING, "whose tags the prompts are, and who draws")
    catalog: Catalog
    seed: int = number(MISSING, 0, 2**63 - 2, "of characters, scenes and noise")
    pictures: int = number(MISSING, 2, 9_999_999, "how many; their files have seven digits")
    characters: int = number(MISSING, 1, 9_999_999, "how many")
    styles: int = number(MISSING, 1, 9_999_999, "of a character: 1 as in v1, 3 for pairs that do not share theirs")
    split: str = choice(MISSING, ("train", "heldout"), "heldout: to watch a training by")
    renderer: bool = plain(False, "drawn by the world's renderer, not by the base")
    batch: int = number(MISSING, 1, 4096, "pictures drawn together, all of one size")
    steps: int = number(MISSING, 1, TABLE_SIZE, "of the sampler")
    guidance: float = number(MISSING, 0, 100, "classifier-free guidance")
    base: str = plain(MISSING, "sha256 of the model that draws; empty for the renderer")

    def __post_init__(self):
        for f in dataclasses.fields(self):
            if f.metadata:
                object.__setattr__(self, f.name, checked(f, getattr(self, f.name)))  # frozen: the only way to write
        if self.pictures < 2 * self.characters:
            raise ValueError(
                f"{self.pictures} pictures of {self.characters} characters: a pair needs two of each; "
                f"draw at least {2 * self.characters}, or take fewer characters"
            )
        if self.styles > len(self.catalog.styles):
            raise ValueError(f"styles is {self.styles}; the catalog {self.catalog.name} has {len(self.catalog.styles)}")

    @cached_property
    def people(self) -> list[Person]:
        """The characters; no two have an attribute set in common.

        Raises ValueError for a catalog of the drawn world's tags that splits its characters otherwise.
        """
        found = _people(self.catalog, self.seed, self.characters, self.styles, self.split)
        refuse_split(
            found, self.catalog, self.split, f"the catalog {self.catalog.name}",
            f"give it the drawn world's own heldout {list(WORLD.heldout)}, train {list(WORLD.train)}, kept_back and "
            "identity",
        )
        return found

    @cached_property
    def strangers(self) -> list[str]:
        """Hashes of the held-out characters, the same for every set of this catalog and seed."""
        drawn = _people(self.catalog, self.seed, STRANGERS, 1, "heldout")
        return [self.catalog.identity_hash(person.values, person.styles[0]) for person in drawn]

    def picture(self, number: int) -> Picture:
        who, turn = number % self.characters, number // self.characters
        person, catalog = self.people[who], self.catalog
        style = person.styles[turn % len(person.styles)]
        rng = np.random.default_rng((self.seed, number, 31))
        framing = _pick(rng, catalog.scene["framing"])
        scene = {name: _pick(rng, tags) for name, tags in catalog.scene.items()}
        scene |= {"framing": framing, "pose": _pick(rng, catalog.poses_in.get(framing, catalog.scene["pose"]))}
        values = {**person.values, **scene}
        identity = catalog.identity_hash(person.values, style)
        return Picture(number, who, style, identity, values, clean(values, catalog), self.size(number // self.batch))

    def size(self, batch: int) -> tuple[int, int]:
        """(h, w) of all pictures of a batch."""
        names, shares = zip(*self.catalog.sizes.items(), strict=True)
        shares = np.array(shares) / sum(shares)
        height, width = names[np.random.default_rng((self.seed, batch, 37)).choice(len(names), p=shares)].split("x")
        return int(height), int(width)

    def batches(self) -> list[range]:
        """The pictures of each batch, by number."""
        return [range(i, min(i + self.batch, self.pictures)) for i in range(0, self.pictures, self.batch)]

    def prompt(self, picture: Picture) -> str:
        """What the base is asked to draw: everything that is seen."""
        return ", ".join(map(escaped, (*self.catalog.prefix, *picture.tags.values(), picture.style)))

    def to_json(self) -> dict:
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "catalog"}
        people = [{"values": dict(p.values), "styles": list(p.styles)} for p in self.people]
        return {"format": FORMAT, "settings": settings, "heldout": self.strangers, "characters": people,
                "catalog": dataclasses.asdict(self.catalog)}

    def write(self, folder: Path) -> None:
        """Write manifest.json, or find it there. Raises ValueError where the folder was begun otherwise."""
        path, new = folder / FILE, self.to_json()
        if not path.exists():
            return write_json(path, new)
        found = read_json(path, TORN)
        if found != json.loads(json.dumps(new)):
            old, now = found.get("settings"), new["settings"]
            old = old if isinstance(old, dict) else {}
            changed = [f"{k} {old.get(k)!r} there, {now[k]!r} asked" for k in now if old.get(k) != now[k]]
            raise ValueError(
                f"{folder} was begun with other settings ({'; '.join(changed) or 'another catalog'}); give the "
                "same ones to go on, or another folder"
            )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder.

    Raises ValueError for none, a torn or changed one, or one that trains on a held-out attribute set.
    """
    path, anew = folder / FILE, "draw the set anew"
    if not path.exists():
        raise ValueError(f"{folder} has no {FILE}; give a folder that `snapref datagen` made")
    stored = read_json(path, TORN)
    if stored.get("format") != FORMAT:
        raise ValueError(f"{path} has format {stored.get('format')!r}, this snapref reads {FORMAT}; {anew}")
    kinds = {"format": str, "settings": dict, "heldout": list, "characters": list, "catalog": dict}
    checked_object(stored, kinds, path, anew)
    names = [f.name for f in dataclasses.fields(Manifest) if f.name != "catalog"]
    settings = checked_object(stored["settings"], dict.fromkeys(names, object), f"settings of {path}", anew)
    catalog = catalog_of(stored["catalog"], f"the catalog in {path}", anew)
    try:
        manifest = Manifest(**settings, catalog=catalog)
    except ValueError as error:
        raise ValueError(f"{path} cannot be used ({error}); {anew}") from error
    people = [checked_object(one, {"values": dict, "styles": list}, f"character {i} of {path}", anew)
              for i, one in enumerate(stored["characters"])]
    people = [Person(one["values"], tuple(one["styles"])) for one in people]
    refuse_split(people, catalog, manifest.split, path, f"take it out, or {anew}")
    if json.loads(json.dumps(manifest.to_json())) != stored:
        raise ValueError(f"{path} was changed by hand; {anew}")
    return manifest


def refuse_split(people: Sequence[Person], catalog: Catalog, split: str, where, again: str) -> None:
    """Raises ValueError for a character who is not of this split by the catalog, or by the drawn world's own law."""
    for which, person in enumerate(people):
        for style in person.styles:
            laws = {"": catalog.split_of(person.values, style),
                    " in the drawn world": world_split([style, *person.values.values()])}
            for law, found in laws.items():
                if found not in (None, split):
                    who = ", ".join(str(tag) for tag in (*person.values.values(), style) if tag)
                    raise ValueError(
                        f"character {which} of {where} ({who}) is {told(found)}{law}, the set is {told(split)}; "
                        f"{again}"
                    )


def escaped(tag: str) -> str:
    """A tag whose parentheses are letters, no weights."""
    return tag.replace("(", "\\(").replace(")", "\\)")


def _people(catalog: Catalog, seed: int, count: int, styles: int, split: str) -> list[Person]:
    rng = np.random.default_rng((seed, ("train", "heldout").index(split), 29))
    found, known = [], set()
    for _ in range(1000 * count):
        if len(found) == count:
            return found
        values = clean({name: _pick(rng, tags) for name, tags in catalog.appearance.items()}, catalog)
        values = {name: values.get(name) for name in catalog.appearance}
        fitting = [style for style in catalog.styles if catalog.split_of(values, style) == split]
        if len(fitting) < styles:
            continue
        chosen = tuple(fitting[i] for i in rng.permutation(len(fitting))[:styles].tolist())
        hashes = {catalog.identity_hash(values, style) for style in chosen}
        if not hashes & known:
            known |= hashes
            found.append(Person(values, chosen))
    raise ValueError(
        f"the catalog {catalog.name} gives only {len(found)} different characters in {styles} styles; {count} are "
        "asked for: take fewer, or a longer catalog"
    )


def _pick(rng: np.random.Generator, values):
    return values[int(rng.integers(len(values)))]
