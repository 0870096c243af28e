"""Checkpoint folders of a run: written aside, renamed when whole, the newest good one found again.

A finished checkpoint lists its files with sizes and hashes, so that a folder whose content was torn (a power cut, a
copy that ended early) is told from a whole one, not only a folder that was never finished.
"""

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path

MARK = "complete"  # a file that only a finished checkpoint has; the last one to be written
LIST = "files.json"  # of every other file: [bytes, sha256]; checkpoints of older versions have none


def folder(run: Path, step: int) -> Path:
    return run / f"checkpoint-{step:08d}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def newest(run: Path) -> Path | None:
    """The last good checkpoint of a run folder, or None. Warns, in a sentence each, of torn ones passed over."""
    for checkpoint in sorted(run.glob("checkpoint-*"), reverse=True):
        if not (damage := damage_of(checkpoint)):
            return checkpoint
        warnings.warn(f"{checkpoint} is passed over: {damage}", stacklevel=2)
    return None


def damage_of(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None for a good one."""
    if not (checkpoint / MARK).exists():
        return "it was never finished"
    if not (checkpoint / LIST).exists():
        return None
    try:
        listed = json.loads((checkpoint / LIST).read_text())
    except ValueError:
        return f"its {LIST} is torn"
    for name, (size, digest) in listed.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} bytes, {size:,} were written"
        if sha256(path) != digest:
            return f"the content of {name} is not what was written"
    return None


def finish(aside: Path, run: Path, step: int, keep: int = 2) -> Path:
    """Move a checkpoint written at `aside` to its place and drop all but the last `keep`."""
    (aside / LIST).write_text(json.dumps(listing(aside)))
    sync(aside)
    (aside / MARK).touch()
    place, stale = folder(run, step), run / f"stale-{step}"
    if place.exists():
        place.rename(stale)
    aside.rename(place)
    shutil.rmtree(stale, ignore_errors=True)
    for old in sorted(p for p in run.glob("checkpoint-*") if (p / MARK).exists())[:-keep]:
        shutil.rmtree(old)
    return place


def clear(run: Path) -> None:
    """Remove what a run that was killed while it wrote has left behind."""
    for pattern in ("aside-*", "stale-*", ".*.safetensors.*"):
        for path in run.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def listing(checkpoint: Path) -> dict[str, tuple[int, str]]:
    """{name: (bytes, sha256)} of all files below a folder, MARK and LIST left out."""
    files = sorted(p for p in checkpoint.rglob("*") if p.is_file() and p.name not in (MARK, LIST))
    return {p.relative_to(checkpoint).as_posix(): (p.stat().st_size, sha256(p)) for p in files}


def sync(checkpoint: Path) -> None:
    """Return when the files lie on the disk, not only in its cache."""
    for path in checkpoint.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
