"""The pictures of a folder as records to make pairs of: a set that `snapref datagen` drew, or one's own pictures."""

from dataclasses import dataclass
from pathlib import Path

from snapref.training.catalog import Catalog
from snapref.training.datagen import file_of, missing
from snapref.training.held_out import world_identity
from snapref.training.manifest import FILE, Manifest, read_manifest
from snapref.training.own_pictures import OWN, own_records
from snapref.training.pair_rules import Record


@dataclass(frozen=True)
class PictureSet:
    records: list[Record]
    catalog: Catalog
    split: str
    strangers: list[str]  # hashes of the held-out attribute sets


def read_pictures(folder: Path, catalog: Catalog, split: str = "train", model: str | None = None) -> PictureSet:
    """The pictures of a folder. catalog, split: for one's own; a drawn set has them in its manifest.

    model: which the set is prepared for, "nano" or "anima"; None: any. Raises ValueError for a set that is not drawn to
    its end or for another model, and for a list with a line that does not fit.
    """
    if (folder / OWN).is_file() and not (folder / FILE).exists():
        return PictureSet(own_records(folder, catalog, split), catalog, split, [])
    if not (folder / FILE).is_file():
        raise ValueError(f"{folder} has neither {FILE} nor {OWN}; give a folder of snapref datagen, or list your own")
    manifest = read_manifest(folder)
    if model not in (None, manifest.model):
        raise ValueError(
            f"{folder} was drawn for {manifest.model}, not for {model}; prepare it with --model {manifest.model}, or "
            f"draw a set with snapref datagen --model {model}"
        )
    if left := missing(manifest, folder):
        shown = f"{left[0]}, …" if len(left) > 1 else left[0]
        raise ValueError(
            f"{len(left)} of the {manifest.pictures} pictures of {folder} are not there ({shown}); run snapref datagen "
            "again with the same settings, it draws what is missing"
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
        world_identity((picture.style, *picture.values.values())),
    )
