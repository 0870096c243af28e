"""`snapref merge A:0.8 B:0.2`: several prepared sets as one, each with its share of the pairs. Nothing is copied."""

import os
from collections.abc import Sequence
from pathlib import Path

from snapref.training.json_file import write_json
from snapref.training.prepared import (
    INDEX,
    MERGED,
    PreparedSet,
    merged_lines,
    read_index,
    refuse_other,
    refuse_strangers,
)


def folder_and_weight(text: str) -> tuple[Path, float]:
    """The folder and the weight of "data/real:0.8"; 1 where none is given.

    Raises ValueError for a weight that is not positive.
    """
    folder, colon, weight = text.rpartition(":")
    if not colon or Path(text).is_dir():
        return Path(text), 1.0
    try:
        value = float(weight)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"the weight of {folder} is {weight!r}; give a positive number, as in {folder}:0.8")
    return Path(folder), value


def merge(sets: Sequence[tuple[Path, float]], out: Path) -> Path:
    """Write the index of a mix. Weights count relative to each other; sets of sets are taken apart.

    Raises ValueError for fewer than two sets, for one named twice, for sets of different models, and for characters
    of one that another holds out.
    """
    lines: list[tuple[Path, float]] = []
    for folder, weight in sets:
        index = read_index(folder)
        if index.get("format") == MERGED:
            parts = merged_lines(folder, index)
            total = sum(share for _, share in parts)
            lines += [(place, weight * share / total) for place, share in parts]
        else:
            lines.append((folder, weight))
    if len(lines) < 2:
        raise ValueError(f"{len(lines)} prepared set is no mix; give at least two, as in A:0.8 B:0.2")
    places = [folder.resolve() for folder, _ in lines]
    for folder, place in zip(lines, places, strict=True):
        if places.count(place) > 1:
            raise ValueError(f"{folder[0]} is in the mix twice; name it once, with the sum of its weights")
    opened = [PreparedSet(folder) for folder, _ in lines]
    for one in opened[1:]:
        refuse_other(opened[0], one)
    refuse_strangers(opened, out)
    if (out / INDEX).exists() and read_index(out).get("format") != MERGED:
        raise ValueError(f"{out} holds a prepared set; write the mix to another folder")
    named = [{"folder": os.path.relpath(place, out.resolve()), "weight": weight, "pairs": len(one)}
             for place, (_, weight), one in zip(places, lines, opened, strict=True)]
    write_json(out / INDEX, {"format": MERGED, "sets": named})
    return out / INDEX
