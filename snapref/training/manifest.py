"""Which pictures a set consists of: characters × scenes, all of it from one seed, before anything is drawn.

A picture's number says who is on it: number % characters. So a batch shows many characters, and a set that is half
drawn has some pictures of every one of them.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from snapref.training.catalog import Catalog, frozen, place_of
from snapref.training.cleaning import clean

FORMAT = "snapref_manifest/1"
FILE = "manifest.json"
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


@dataclass(frozen=True)
class Manifest:
    """Settings that fix every picture of a set. `split` is "train", or "heldout" to watch a training by."""

    model: str
    catalog: Catalog
    seed: int
    pictures: int
    characters: int
    styles: int  # art styles of a character: 1 as in v1, 3 for pairs that do not share theirs
    split: str
    renderer: bool  # drawn by the world's renderer, not by the base
    batch: int  # pictures drawn together, all of one size
    steps: int
    guidance: float
    base: str  # sha256 of the model that draws; "" for the renderer

    def __post_init__(self):
        for name, least in (("pictures", 2), ("characters", 1), ("styles", 1), ("batch", 1), ("steps", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; at least {least}")
        if self.pictures < 2 * self.characters:
            raise ValueError(
                f"{self.pictures} pictures of {self.characters} characters: a pair needs two of each; "
                f"draw at least {2 * self.characters}, or take fewer characters"
            )
        if self.styles > len(self.catalog.styles):
            raise ValueError(f"styles is {self.styles}; the catalog {self.catalog.name} has {len(self.catalog.styles)}")

    @cached_property
    def people(self) -> list[Person]:
        """The characters; no two have an attribute set in common."""
        return _people(self.catalog, self.seed, self.characters, self.styles, self.split)

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
        path, text = folder / FILE, json.dumps(self.to_json(), indent=1) + "\n"
        if path.exists():
            if (found := path.read_text(encoding="utf-8")) != text:
                old, new = json.loads(found).get("settings", {}), self.to_json()["settings"]
                changed = [f"{k} {old.get(k)!r} there, {new[k]!r} asked" for k in new if old.get(k) != new[k]]
                raise ValueError(
                    f"{folder} was begun with other settings ({'; '.join(changed) or 'another catalog'}); give the "
                    "same ones to go on, or another folder"
                )
            return
        folder.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{FILE}")
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder. Raises ValueError for none, a changed one, or one that trains on a held-out set."""
    path = folder / FILE
    if not path.is_file():
        raise ValueError(f"{folder} has no {FILE}; give a folder that `snapref datagen` made")
    stored = json.loads(path.read_text(encoding="utf-8"))
    if stored.get("format") != FORMAT:
        raise ValueError(f"{path} has format {stored.get('format')!r}, this snapref reads {FORMAT}; draw the set anew")
    manifest = Manifest(**stored["settings"], catalog=Catalog(**frozen(stored["catalog"])))
    catalog = manifest.catalog
    for number, found in enumerate(stored["characters"]):
        for style in found["styles"]:
            split = catalog.split_of(found["values"], style)
            if split != manifest.split:
                who = ", ".join(tag for tag in found["values"].values() if tag)
                raise ValueError(
                    f"character {number} of {path} ({who}) is {told(split)}, the set is {told(manifest.split)}; "
                    "take it out, or draw the set anew"
                )
    if json.loads(json.dumps(manifest.to_json())) != stored:
        raise ValueError(f"{path} was changed by hand; draw the set anew")
    return manifest


def told(split: str) -> str:
    return {"heldout": "held out from all training", "train": "for training"}.get(split, "of neither kind")


def refuse_heldout(identities, catalog_heldout: tuple[float, float], named, where) -> None:
    """Raises ValueError that lists attribute sets (hashes) which no training may see."""
    named, (low, high) = set(named), catalog_heldout
    found = sorted({h for h in identities if h in named or low <= place_of(h) < high})
    if found:
        shown = ", ".join(h[:12] for h in found[:5]) + (", …" if len(found) > 5 else "")
        raise ValueError(
            f"{where} holds {len(found)} held-out characters ({shown}), which no training may see; "
            "use it with --unseen, or prepare a set without them"
        )


def escaped(tag: str) -> str:
    """A tag whose parentheses are letters, no weights."""
    return tag.replace("(", "\\(").replace(")", "\\)")


def _people(catalog: Catalog, seed: int, count: int, styles: int, split: str) -> list[Person]:
    if split not in ("train", "heldout"):
        raise ValueError(f"split is {split!r}; it must be train or heldout")
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
