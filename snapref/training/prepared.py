"""Prepared pairs for training: latents and contexts are read from shards, nothing is encoded.

A folder is one set (`snapref prepare` made it) or a mix of sets with weights (`snapref merge`). Both are read alike.
"""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from snapref.sampling.fields import brief
from snapref.training.held_out import WORLD, refuse_heldout
from snapref.training.json_file import checked_object, read_json
from snapref.training.origin import print_of
from snapref.training.pair_rules import MODES
from snapref.training.shards import Shard, ShardError, Shards, sha256_of

FORMAT, MERGED = "snapref_prepared/1", "snapref_merged/1"
INDEX, PAIRS, PLAN = "index.json", "pairs.safetensors", "plan.json"
AGAIN = "run snapref prepare again"
KINDS = {
    "format": str, "model": str, "fingerprint": str, "parts": dict, "split": str, "pictures": int, "captions": dict,
    "caption_prompts": dict, "empty_prompt": int, "context_rows": int, "identities": list, "heldout": dict,
    "pairs": dict, "latents": list, "contexts": list,
}
SHARD = {f.name: f.type for f in dataclasses.fields(Shard)}


class PreparedSet:
    """One folder of `snapref prepare`: its index, its pairs, its shards."""

    def __init__(self, folder: Path):
        self.folder, self.index = folder, read_index(folder)
        if self.index.get("format") != FORMAT:
            raise ValueError(f"{folder} is {self.index.get('format')!r}, not {FORMAT!r}; prepare the pictures again")
        check_index(self.index, folder / INDEX)
        path, noted = folder / PAIRS, self.index["pairs"]
        if not path.is_file() or path.stat().st_size != noted["bytes"] or sha256_of(path) != noted["sha256"]:
            raise ShardError(f"{path} is missing or not what the index says; run snapref prepare again")
        table = {name: tensor.numpy() for name, tensor in load_file(path).items()}
        self.target, self.reference, self.prompt = (table[n] for n in ("target", "reference", "prompt"))
        self.mode, self.reads, self.sizes = table["mode"], table["reads"].astype(bool), table["sizes"]
        self.latents = Shards(folder, [Shard(**line) for line in self.index["latents"]])
        self.contexts = Shards(folder, [Shard(**line) for line in self.index["contexts"]])

    def __len__(self) -> int:
        return len(self.target)

    @cached_property
    def buckets(self) -> dict[tuple[int, int, int, int], np.ndarray]:
        """(h, w) of the target's latent and (rh, rw) of the reference's → numbers of the pairs."""
        rows = np.concatenate([self.sizes[self.target, :2], self.sizes[self.reference, 2:]], 1)
        kinds, which = np.unique(rows, axis=0, return_inverse=True)
        return {tuple(kind.tolist()): np.flatnonzero(which.reshape(-1) == i) for i, kind in enumerate(kinds)}

    def pair(self, number: int) -> dict[str, Tensor]:
        """latent, reference (16, 1, h, w) fp32; context, reference_context (k, c) fp32, not padded; reads ()."""
        reference = int(self.reference[number])
        own = (self.sizes[reference, :2] == self.sizes[reference, 2:]).all()
        caption = self.index["caption_prompts"][MODES[self.mode[number]]]
        return {
            "latent": self.latents.read(int(self.target[number])).float(),
            "reference": self.latents.read(reference, "" if own else ".ref").float(),
            "context": self.contexts.read(int(self.prompt[number])).float(),
            "reference_context": self.contexts.read(caption).float(),
            "reads": torch.tensor(bool(self.reads[number])),
        }


class PreparedPairs:
    """The pairs of a folder. Pair numbers run through all sets of a mix, one after the other.

    allow: held-out characters too, to watch a run by. Without it their attribute sets are refused: by the manifest's
    list, and by the law on their hashes. Raises ValueError for those, and for sets that do not fit each other;
    ShardError (an OSError) for a shard that is missing or has another size.
    """

    def __init__(self, folder: Path, *, allow: bool = False):
        self.folder = Path(folder)
        index = read_index(self.folder)
        lines = merged_lines(self.folder, index) if index.get("format") == MERGED else [(self.folder, 1.0)]
        self.sets = [PreparedSet(folder) for folder, _ in lines]
        weights = np.array([weight for _, weight in lines], float)
        self.weights = weights / weights.sum()
        first = self.sets[0].index
        for one in self.sets[1:]:
            refuse_other(self.sets[0], one)
        if not allow:
            refuse_strangers(self.sets, self.folder)
        self.model: str = first["model"]  # name of the model that the set was prepared for
        self.fingerprint: str = first["fingerprint"]  # sha256 over the text part and the codec
        self.captions: dict[str, str] = first["captions"]  # mode → what the reference branch hears
        self.splits: set[str] = {one.index["split"] for one in self.sets}  # "train" or "heldout"
        self._starts = np.cumsum([0, *map(len, self.sets)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def buckets(self) -> dict[tuple[int, int, int, int], list[int]]:
        """{(h, w, rh, rw): [pair numbers]}, in latent pixels of target and reference."""
        found: dict[tuple[int, int, int, int], list[int]] = {}
        for start, one in zip(self._starts, self.sets, strict=False):
            for kind, numbers in one.buckets.items():
                found.setdefault(kind, []).extend((numbers + start).tolist())
        return found

    @cached_property
    def by_set(self) -> list[list[np.ndarray]]:
        """Of each set its buckets: arrays of pair numbers."""
        starts = zip(self._starts, self.sets, strict=False)
        return [[numbers + start for numbers in one.buckets.values()] for start, one in starts]

    def batch(self, pairs: Sequence[int]) -> dict[str, Tensor]:
        """Pairs of one bucket: latent (b, 16, 1, h, w), reference (b, 16, 1, rh, rw), context and
        reference_context (b, k, c) with zero rows up to the model's number, all fp32, and reads (b,) bool.

        Raises ValueError for pairs of different sizes, ShardError for a shard that cannot be read.
        """
        rows = [self._set_of(n).pair(int(n - self._starts[self._which(n)])) for n in pairs]
        for name in ("latent", "reference"):
            if len(shapes := {tuple(row[name].shape[-2:]) for row in rows}) > 1:
                raise ValueError(f"pairs of {name}s {sorted(shapes)} are no batch; take them from one bucket")
        return {name: torch.stack([self._padded(row[name]) if "context" in name else row[name] for row in rows])
                for name in rows[0]}

    def empty(self) -> Tensor:
        """The context of the empty prompt, (1, k, c), which guidance needs."""
        one = self.sets[0]
        return self._padded(one.contexts.read(one.index["empty_prompt"]).float())[None]

    def check_base(self, llm_adapter: nn.Module) -> None:
        """Raises ValueError where contexts were made with the text part of another base."""
        here, there = print_of(llm_adapter), self.sets[0].index["parts"]["llm_adapter"]
        if here != there:
            raise ValueError(
                f"{self.folder} was prepared with another base (text part {there[:8]}…, this one has {here[:8]}…); "
                "prepare the pictures again with this base"
            )

    def verify(self) -> None:
        """Compare every byte of every shard with the index: minutes for a large set."""
        for one in self.sets:
            one.latents.verify()
            one.contexts.verify()

    def _which(self, number: int) -> int:
        if not 0 <= number < len(self):
            raise ValueError(f"pair {number} is not in {self.folder}, which has {len(self)}")
        return int(np.searchsorted(self._starts, number, side="right")) - 1

    def _set_of(self, number: int) -> PreparedSet:
        return self.sets[self._which(number)]

    def _padded(self, context: Tensor) -> Tensor:
        rows = self.sets[0].index["context_rows"]
        return torch.nn.functional.pad(context, (0, 0, 0, rows - len(context)))


def read_index(folder: Path) -> dict:
    """The index of a set or a mix. Raises ValueError for none, and for a torn one."""
    path = folder / INDEX
    if not path.is_file():
        begun = ", which was begun: run snapref prepare again, it goes on" if (folder / PLAN).exists() else ""
        raise ValueError(f"{folder} has no {INDEX}{begun or '; give a folder that snapref prepare or merge made'}")
    return read_json(path, f"remove it and {AGAIN} (of a mix: snapref merge)")


def check_index(index: dict, path: Path) -> None:
    """Raises ValueError for the index of a set that lacks something or holds another kind of it."""
    checked_object(index, KINDS, path, AGAIN, {"world": list})
    checked_object(index["pairs"], {"bytes": int, "sha256": str, "count": int}, f"pairs of {path}", AGAIN)
    checked_object(index["heldout"], {"named": list, "range": list}, f"heldout of {path}", AGAIN)
    for kind in ("latents", "contexts"):
        for number, line in enumerate(index[kind]):
            checked_object(line, SHARD, f"{kind} {number} of {path}", AGAIN)


def merged_lines(folder: Path, index: dict) -> list[tuple[Path, float]]:
    """Folder and weight of each set of a mix. Raises ValueError for an index that names none, or a weight like -1."""
    path, again = folder / INDEX, "run snapref merge again"
    lines = checked_object(index, {"format": str, "sets": list}, path, again)["sets"]
    if not lines:
        raise ValueError(f"{path} names no sets; {again}")
    for number, line in enumerate(lines):
        checked_object(line, {"folder": str, "weight": object}, f"set {number} of {path}", again, {"pairs": int})
        weight = line["weight"]
        if type(weight) not in (int, float) or not 0 < weight < float("inf"):
            raise ValueError(
                f"the weight of {line['folder']} in {path} is {brief(weight)}; it must be a positive number: {again}"
            )
    return [(folder / line["folder"], line["weight"]) for line in lines]


def refuse_other(one: PreparedSet, other: PreparedSet) -> None:
    """Raises ValueError for sets of which no mix can be made."""
    for name in ("model", "fingerprint", "captions", "context_rows"):
        if one.index[name] != other.index[name]:
            a, b = (str(part.index[name])[:40] for part in (one, other))
            raise ValueError(
                f"{one.folder} and {other.folder} do not mix: {name} is {a} and {b}; prepare both with the same model"
            )


def refuse_strangers(sets: Sequence[PreparedSet], where: Path) -> None:
    """Raises ValueError where a set holds what it, or a set beside it, or the drawn world holds out."""
    identities = {h for one in sets for h in one.index["identities"]}
    for one in sets:
        held = one.index["heldout"]
        refuse_heldout(identities & set(held["named"]), (0.0, 0.0), held["named"], where)
        refuse_heldout(one.index["identities"], tuple(held["range"]), (), where)
        # Older sets of nano's do not say which of their attribute sets are the drawn world's: all of them.
        world = one.index.get("world", one.index["identities"] if one.index["model"] == WORLD.name else [])
        refuse_heldout(world, WORLD.heldout, (), where)
