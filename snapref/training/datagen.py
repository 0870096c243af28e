"""`snapref datagen`: the base draws its own training pictures, or the world's renderer draws "real illustrations".

The unit of work is a batch. A process takes those whose number is its rank modulo the number of processes; a batch
is written aside as a folder and renamed, so no picture is drawn twice. A picture that went missing is drawn again, in
the batch that it belongs to, whose noise it shares.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tqdm.auto import tqdm

from snapref.reference.fingerprint import hash_module
from snapref.sampling.pipeline import Pipeline
from snapref.sampling.settings import PNG_KEY, Settings
from snapref.training.catalog import Catalog
from snapref.training.held_out import WORLD
from snapref.training.manifest import Manifest, Picture
from snapref.world import PATTERNS, Character, render, scene

PICTURES = "pictures"
DATA_KEY = "snapref_data"  # of the PNG header, beside the record that any picture of snapref carries
# nano's pictures change little after this many steps, and a training set takes thousands.
NANO_STEPS = 12
NANO_BATCH, ANIMA_BATCH = 32, 4


def new_manifest(
    model: str, catalog: Catalog, pictures: int, *, per_character: int | None = None, styles: int = 1, seed: int = 0,
    split: str = "train", batch: int | None = None, steps: int | None = None, guidance: float | None = None,
    pipe: Pipeline | None = None,
) -> Manifest:
    """The manifest of a set with everything left out filled in. pipe: who draws; None: nano's renderer.

    Raises ValueError for numbers that make no set, and for a renderer of a world other than nano's.
    """
    if pipe is None and (model != "nano" or foreign_to_world(catalog)):
        found = ", ".join(foreign_to_world(catalog)[:3])
        raise ValueError(
            f"the renderer draws nano's world, no tags of {catalog.name}{f' ({found})' if found else ''}; take "
            "--model nano and its catalog"
        )
    each = catalog.per_character if per_character is None else per_character
    if each < 2:
        raise ValueError(f"per_character is {each}; a pair needs two pictures of a character, so give at least 2")
    config = None if pipe is None else pipe.config
    if batch is None:
        batch = NANO_BATCH if model == "nano" else ANIMA_BATCH
    if steps is None:
        steps = NANO_STEPS if config is None or model == "nano" else config.default_steps
    if guidance is None:
        guidance = 1.0 if config is None else config.default_guidance
    return Manifest(
        model=model, catalog=catalog, seed=seed, pictures=pictures, characters=max(1, pictures // each),
        styles=styles, split=split, renderer=pipe is None, batch=batch, steps=steps, guidance=guidance,
        base="" if pipe is None else hash_module(pipe.model),
    )


def foreign_to_world(catalog: Catalog) -> list[str]:
    """What the renderer cannot draw: attributes that a catalog lacks, and tags and styles that the world has not."""
    found = []
    for mine, worlds in ((catalog.appearance, WORLD.appearance), (catalog.scene, WORLD.scene)):
        found += [f"no {name}" for name in worlds if name not in mine]
        found += [f"{tag}" for name, tags in mine.items() for tag in tags if tag not in worlds.get(name, ())]
    return found + [style for style in catalog.styles if style not in WORLD.styles]


def datagen(
    manifest: Manifest, out: Path, pipe: Pipeline | None = None, *, rank: int = 0, world: int = 1, quiet: bool = False
) -> int:
    """Draw this process's share of what is not there yet; returns the number of pictures drawn.

    The manifest must be in the folder already (`Manifest.write`). Raises OSError where the disk is full; what was
    drawn stays, and running again goes on.
    """
    own = {number: lost for number, numbers in enumerate(manifest.batches())
           if number % world == rank and (lost := lost_of(manifest, out, numbers))}
    drawn, began = 0, time.monotonic()
    with tqdm(total=sum(map(len, own.values())), desc="drawing", unit="picture", disable=quiet or rank > 0) as bar:
        for number, lost in own.items():
            # A batch shares its noise, so the base draws all of it again; the renderer only what is lost.
            pictures = [manifest.picture(n) for n in (lost if pipe is None else manifest.batches()[number])]
            draw = _rendered(manifest, pictures) if pipe is None else _sampled(manifest, pictures, number, pipe)
            try:
                _write(out, number, draw)
            except OSError as error:
                free = shutil.disk_usage(out).free / 1e9
                raise OSError(
                    f"batch {number} cannot be written to {out} ({error}; {free:.2f} GB are free); make room and run "
                    "again, it goes on from there"
                ) from error
            drawn += len(lost)
            bar.update(len(lost))
            bar.set_postfix_str(f"{drawn / (time.monotonic() - began):.1f} pictures/s", refresh=False)
    return drawn


def folder_of(out: Path, batch: int) -> Path:
    return Path(out) / PICTURES / f"{batch:06d}"


def file_of(manifest: Manifest, number: int) -> str:
    """The place of a picture in its set's folder."""
    return f"{PICTURES}/{number // manifest.batch:06d}/{number:07d}.png"


def missing(manifest: Manifest, out: Path) -> list[str]:
    """The files of the pictures still to draw."""
    return [file_of(manifest, n) for numbers in manifest.batches() for n in lost_of(manifest, out, numbers)]


def lost_of(manifest: Manifest, out: Path, numbers: range) -> list[int]:
    """Which pictures of a batch are not there, or empty as a power cut leaves them."""
    try:
        with os.scandir(folder_of(out, numbers.start // manifest.batch)) as entries:
            there = {entry.name for entry in entries if entry.stat().st_size}
    except OSError:
        return [*numbers]
    return [n for n in numbers if Path(file_of(manifest, n)).name not in there]


def read_picture_record(path: Path) -> dict:
    """What a picture of a set carries: its number, character, tags by attribute, style, seed. Raises ValueError."""
    with Image.open(path) as picture:
        text = picture.info.get(DATA_KEY)
    if text is None:
        raise ValueError(f"{path} carries no tags; only pictures that `snapref datagen` drew do")
    return json.loads(text)


def batch_seed(manifest: Manifest, number: int) -> int:
    """Of a batch's noise: 62 bits from the set's seed and the batch's number."""
    return int(np.random.SeedSequence((manifest.seed, number, 43)).generate_state(1, np.uint64)[0] >> 2)


def _sampled(manifest: Manifest, pictures: list[Picture], number: int, pipe: Pipeline) -> Iterator:
    settings = Settings(
        seed=batch_seed(manifest, number), steps=manifest.steps, guidance=manifest.guidance, size=pictures[0].size
    )
    result = pipe([manifest.prompt(p) for p in pictures], settings=settings, quiet=True)
    for i, (picture, image) in enumerate(zip(pictures, result.images, strict=True)):
        yield picture, image, result.record(i), settings.seed


def _rendered(manifest: Manifest, pictures: list[Picture]) -> Iterator:
    for picture in pictures:
        yield picture, Image.fromarray(render_picture(manifest, picture)), None, manifest.seed


def render_picture(manifest: Manifest, picture: Picture) -> np.ndarray:
    """uint8 (h, w, 3). Hues and pattern, which no tag says, are the character's; jitters are the picture's."""
    hues = np.random.default_rng((manifest.seed, picture.character, 47))
    who = {name: picture.values[name] for name in manifest.catalog.appearance}
    hair, outfit, eyes = hues.uniform(-1, 1, 3).tolist()
    pattern = PATTERNS[int(hues.integers(len(PATTERNS)))]
    person = Character(**who, artist=picture.style, hair_hue=hair, outfit_hue=outfit, eye_hue=eyes, pattern=pattern)
    seen = {name: picture.values[name] for name in manifest.catalog.scene}
    where = scene((manifest.seed, picture.number, 53), **seen)
    return render(person, replace(where, white_floor=False), picture.size)


def _write(out: Path, number: int, drawn: Iterator) -> None:
    final = folder_of(out, number)
    aside = final.with_name(f".{final.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        for picture, image, record, seed in drawn:
            info = PngInfo()
            info.add_itxt(DATA_KEY, json.dumps({
                "number": picture.number, "character": picture.character, "identity": picture.identity,
                "style": picture.style, "tags": dict(picture.tags), "seed": seed,
            }))
            if record is not None:
                info.add_itxt(PNG_KEY, json.dumps(record))
            image.save(aside / f"{picture.number:07d}.png", pnginfo=info)
        if final.exists():
            _fill(final, aside)
        else:
            aside.rename(final)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _fill(final: Path, aside: Path) -> None:
    """Move into a batch's folder what it lacks; what is there stays."""
    for path in aside.iterdir():
        there = final / path.name
        if not there.exists() or not there.stat().st_size:
            path.replace(there)


def clear(out: Path) -> None:
    """Remove what a killed run left half written. For one process, before any of them draws."""
    for folder in (Path(out) / PICTURES).glob(".*"):
        shutil.rmtree(folder, ignore_errors=True)
