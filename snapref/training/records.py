"""The pictures of a folder as records to make pairs of: a set that `snapref datagen` drew, or one's own pictures.

One's own pictures are listed in `pictures.jsonl`, a line for each:
    {"file": "art/0001.png", "character": "somebody", "style": "flat color", "tags": ["1girl", "red hair", "beach"]}
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from snapref.training.catalog import Catalog
from snapref.training.cleaning import clean_list
from snapref.training.datagen import file_of, missing
from snapref.training.manifest import FILE, Manifest, read_manifest
from snapref.training.pair_rules import Record

OWN = "pictures.jsonl"


@dataclass(frozen=True)
class PictureSet:
    records: list[Record]
    catalog: Catalog
    split: str
    strangers: list[str]  # hashes of the held-out attribute sets


def read_pictures(folder: Path, catalog: Catalog, split: str = "train") -> PictureSet:
    """The pictures of a folder. catalog, split: for one's own; a drawn set has them in its manifest.

    Raises ValueError for a set that is not drawn to its end, and for a list with a line that does not fit.
    """
    if (folder / OWN).is_file() and not (folder / FILE).exists():
        return PictureSet(list(_own(folder, catalog, split)), catalog, split, [])
    if not (folder / FILE).is_file():
        raise ValueError(f"{folder} has neither {FILE} nor {OWN}; give a folder of snapref datagen, or list your own")
    manifest = read_manifest(folder)
    if left := missing(manifest, folder):
        raise ValueError(
            f"{left} of the {manifest.pictures} pictures of {folder} are not drawn yet; run snapref datagen again"
        )
    records = [drawn_record(manifest, number) for number in range(manifest.pictures)]
    return PictureSet(records, manifest.catalog, manifest.split, manifest.strangers)


def drawn_record(manifest: Manifest, number: int) -> Record:
    picture, catalog = manifest.picture(number), manifest.catalog
    seen = [name for name in catalog.appearance if name in picture.tags]
    hidden = sum(value is not None for name, value in picture.values.items() if name in catalog.appearance) - len(seen)
    return Record(
        file_of(manifest, number), f"{picture.character}", picture.identity, picture.style,
        tuple(picture.tags[name] for name in seen),
        tuple(tag for name, tag in picture.tags.items() if name not in catalog.appearance), hidden, picture.size,
    )


def _own(folder: Path, catalog: Catalog, split: str):
    attributes = catalog.attribute_of()
    with open(folder / OWN, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                found = json.loads(line)
                file, character, tags = found["file"], str(found["character"]), list(found["tags"])
                with Image.open(folder / file) as picture:
                    size = (picture.height, picture.width)
            except (ValueError, KeyError, TypeError, OSError) as error:
                raise ValueError(
                    f"line {number} of {folder / OWN} cannot be used ({error}); it must have file, character and tags"
                ) from error
            # A character is known by name here: tags of two pictures of one character differ.
            identity = hashlib.sha256(f"name|{character}".encode()).hexdigest()
            place = int(identity[:16], 16) / 2.0**64
            if (catalog.heldout[0] <= place < catalog.heldout[1]) != (split == "heldout"):
                continue
            kept = [tag for tag in clean_list(tags, catalog) if tag not in catalog.count]
            shown = tuple(tag for tag in kept if attributes.get(tag) in catalog.appearance)
            rest = tuple(tag for tag in kept if tag not in shown and attributes.get(tag) != "style")
            yield Record(file, character, identity, str(found.get("style") or ""), shown, rest, 0, size)
