"""Small sets of pictures, drawn and prepared: what the tests of data share."""

import json
from pathlib import Path

from snapref.training import datagen, prepare
from snapref.training.catalog import nano_catalog
from snapref.training.manifest import Manifest, read_manifest
from snapref.training.own_pictures import OWN
from snapref.training.records import read_pictures

CATALOG = nano_catalog()


def rendered(folder: Path, pictures: int = 24, seed: int = 3, **options) -> Manifest:
    made = datagen.new_manifest("nano", CATALOG, pictures, seed=seed, batch=8, **options)
    made.write(folder)
    datagen.datagen(made, folder, quiet=True)
    return made


def prepared(folder: Path, out: Path, pipe, split: str = "train", **options) -> prepare.Plan:
    plan = prepare.new_plan(read_pictures(folder, CATALOG, split), folder, pipe.config, **options)
    plan.write(out, "a print")
    prepare.prepare(plan, out, pipe, quiet=True)
    prepare.finish(plan, out, pipe)
    return plan


def relisted(folder: Path, **changes) -> Path:
    """A drawn set as somebody's own pictures: its manifest goes, its tags stand in a list."""
    made = read_manifest(folder)
    lines = []
    for picture in map(made.picture, range(made.pictures)):
        lines.append({"file": datagen.file_of(made, picture.number), "character": f"who {picture.character}",
                      "style": picture.style, "tags": ["1girl", *picture.tags.values()], **changes})
    (folder / "manifest.json").unlink()
    (folder / OWN).write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder
