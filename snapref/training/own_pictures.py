"""One's own pictures: a list of files with their tags, and who of them no training may see.

They are listed in `pictures.jsonl`, a line for each:
    {"file": "art/0001.png", "character": "somebody", "style": "flat color", "tags": ["1girl", "red hair", "beach"]}
"""

import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import ExifTags, Image

from snapref.reference.picture import load_picture
from snapref.training.catalog import Catalog, place_of
from snapref.training.cleaning import clean_list
from snapref.training.datagen import DATA_KEY
from snapref.training.held_out import (
    EVERYBODY,
    WORLD,
    kept_back,
    told,
    world_identity,
    world_set,
    world_values,
)
from snapref.training.pair_rules import Record

OWN = "pictures.jsonl"
# Where a PNG may be said to be turned behind its pixels, which a look at its header does not reach.
LATE = (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp")


@dataclass(frozen=True)
class Line:
    file: str
    character: str
    style: str
    tags: tuple[str, ...]
    size: tuple[int, int]  # (h, w) in pixels, as shown
    noted: str = ""  # hash of the attribute set that `snapref datagen` drew it from, where it did
    noted_tags: tuple[str, ...] = ()  # likewise its tags, the style among them


@dataclass(frozen=True)
class Known:
    """What a picture's character is known by."""

    identity: str  # sha256
    world: str  # that of its attribute set in the drawn world; "" where it has none
    stranger: bool  # held out by its attribute set
    apart: bool  # held out by name, as a share of one's own characters is
    kept_back: tuple[str, ...]  # tags that no adapter is trained on


def own_records(folder: Path, catalog: Catalog, split: str) -> list[Record]:
    """The pictures of a list that are of this split.

    A character is known by name, for the tags of two pictures of one differ; but one whose tags contain an attribute
    set of the drawn world, or that `snapref datagen` drew, by that set, as in a manifest. Raises ValueError for a line
    that does not fit, and in a set to train on for pictures that no training may see.
    """
    lines, found, refused = list(read_lines(folder)), [], []
    hidden, attributes = seen_elsewhere(lines), catalog.attribute_of()
    for line in lines:
        known = known_as(line, hidden[line.character], catalog)
        if split == "train" and (known.stranger or known.kept_back):
            refused.append(f"{line.file}: {told('heldout') if known.stranger else ', '.join(known.kept_back)}")
        elif (known.stranger or known.apart) == (split == "heldout"):
            found.append(_record(line, known, catalog, attributes))
    if refused:
        shown = "; ".join(refused[:3]) + ("; …" if len(refused) > 3 else "")
        raise ValueError(
            f"{folder / OWN} lists {len(refused)} pictures of characters that no training may see ({shown}); take "
            "them out, or prepare the held-out ones with --heldout to watch a training by"
        )
    if not found:
        raise ValueError(f"none of the {len(lines)} pictures of {folder / OWN} is {told(split)}; list more characters")
    return found


def known_as(line: Line, hidden: list[str], catalog: Catalog) -> Known:
    """hidden: tags of its character that the picture itself does not show."""
    listed = world_set((line.style, *line.tags, *hidden)) or {}
    listed_hash = world_identity(listed.values())
    from_world = bool({*line.noted_tags} & {*WORLD.styles})  # whatever the list says of it now
    noted_hash = line.noted if from_world else ""
    named = hashlib.sha256(f"name|{line.character}".encode()).hexdigest()
    world = listed_hash or noted_hash
    stranger = _inside(listed_hash, WORLD) or _inside(noted_hash, WORLD) or _inside(line.noted, catalog)
    back = {*kept_back(listed), *(kept_back(world_values(line.noted_tags)) if from_world else ())}
    apart = not (world or line.noted) and _inside(named, catalog)
    return Known(world or line.noted or named, world, stranger, apart, tuple(sorted(back)))


def read_lines(folder: Path) -> Iterator[Line]:
    """The lines of a list. Raises ValueError that names the first one that cannot be used."""
    with open(folder / OWN, encoding="utf-8") as lines:
        for number, text in enumerate(lines, start=1):
            if not text.strip():
                continue
            try:
                found = json.loads(text)
                size, noted = looked_at(folder / found["file"])
                yield Line(found["file"], f"{found['character']}", found.get("style") or "",
                           tuple(map(str, found["tags"])), size, *_noted(noted))
            except FileNotFoundError as error:
                raise ValueError(
                    f"line {number} of {folder / OWN} cannot be used ({found['file']} is not there); put the picture "
                    "back, or take the line out"
                ) from error
            except (ValueError, KeyError, TypeError, AttributeError, OSError, Image.DecompressionBombError) as error:
                why = f"it lacks {error}" if isinstance(error, KeyError) else error
                raise ValueError(
                    f"line {number} of {folder / OWN} cannot be used ({why}); it must be a JSON object with file, "
                    "character and tags"
                ) from error


def looked_at(path: Path) -> tuple[tuple[int, int], str | None]:
    """(h, w) of a picture as `load_picture` turns it, and what `snapref datagen` noted in it.

    Only a picture that may be turned is decoded.
    """
    data = path.read_bytes()
    with Image.open(io.BytesIO(data)) as picture:
        size, noted = (picture.height, picture.width), picture.info.get(DATA_KEY)
        plain = picture.format == "PNG" and not any(mark in data for mark in LATE)
        if not plain and _orientation(picture) != 1:
            upright = load_picture(data)
            size = upright.height, upright.width
    return size, noted


def seen_elsewhere(lines: Iterable[Line]) -> dict[str, list[str]]:
    """Of each character, tags that a picture may hide (eyes that are closed), where its others agree on them."""
    known: dict[str, dict[str, set[str]]] = {}
    for line in lines:
        tags = known.setdefault(line.character, {name: set() for name in EVERYBODY})
        for name, tag in world_values((line.style, *line.tags)).items():
            tags.setdefault(name, set()).add(tag)
    return {who: [tag for name in EVERYBODY if len(tags[name]) == 1 for tag in tags[name]]
            for who, tags in known.items()}


def _record(line: Line, known: Known, catalog: Catalog, attributes: dict[str, str]) -> Record:
    kept = [tag for tag in clean_list([*line.tags], catalog) if tag not in catalog.count]
    shown = tuple(tag for tag in kept if attributes.get(tag) in catalog.appearance)
    rest = tuple(tag for tag in kept if tag not in shown and attributes.get(tag) != "style")
    return Record(line.file, line.character, known.identity, line.style, shown, rest, 0, line.size, known.world)


def _noted(text: str | None) -> tuple[str, tuple[str, ...]]:
    """The hash and the tags that a picture of `snapref datagen` carries; nothing of a note that nobody can read."""
    try:
        found = json.loads(text or "{}")
        identity, tags = found["identity"], (found["style"], *found["tags"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ()
    return (identity, tags) if re.fullmatch("[0-9a-f]{64}", f"{identity}") else ("", tags)


def _inside(identity: str, catalog: Catalog) -> bool:
    """Whether a hash is one that the catalog holds out."""
    return bool(identity) and catalog.heldout[0] <= place_of(identity) < catalog.heldout[1]


def _orientation(picture: Image.Image) -> int:
    try:
        return picture.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # a block cut anywhere, as in `upright`; what nobody can read turns nothing
        return 1
