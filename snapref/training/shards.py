"""Shards: safetensors files of a few hundred tensors each, an index of their sizes and hashes, and lazy reading.

Nothing is loaded before it is asked for: a shard is mapped into memory when the first tensor of it is read, and a
tensor is the only thing copied. So a set may be many times larger than the memory.
"""

import hashlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from snapref.files.weights import save_weights

OPEN = 256  # shards mapped at a time; a mapping costs an open file, no memory


class ShardError(OSError):
    """A shard that is missing or not what the index says, in one sentence."""


@dataclass(frozen=True)
class Shard:
    """A line of the index: the file holds the numbers first … first + count - 1."""

    file: str
    first: int
    count: int
    bytes: int = 0
    sha256: str = ""

    def to_json(self) -> dict:
        return asdict(self)


def planned(kind: str, total: int, size: int) -> list[Shard]:
    """The shards of `total` numbered things, `size` of them in each."""
    return [Shard(f"{kind}-{i:05d}.safetensors", first, min(size, total - first))
            for i, first in enumerate(range(0, total, size))]


def write_shard(folder: Path, shard: Shard, tensors: dict[str, Tensor]) -> None:
    """Aside, then renamed; each tensor in its own dtype."""
    save_weights(tensors, folder / shard.file, dtype=None)


def whole(folder: Path, shard: Shard) -> bool:
    """Whether a shard is there and as long as its header says."""
    try:
        with safe_open(folder / shard.file, "pt") as file:
            return len({name.split(".")[0] for name in file.keys()}) == shard.count
    except (OSError, SafetensorError):
        return False


def measured(folder: Path, shard: Shard) -> Shard:
    """The shard with its size and sha256, for the index."""
    path = folder / shard.file
    return Shard(shard.file, shard.first, shard.count, path.stat().st_size, sha256_of(path))


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


class Shards:
    """The tensors of one kind, by number. Opening checks that every file is there with its size."""

    def __init__(self, folder: Path, shards: Sequence[Shard]):
        self.folder, self.shards = folder, sorted(shards, key=lambda shard: shard.first)
        self._open: OrderedDict[str, object] = OrderedDict()
        self._firsts = [shard.first for shard in self.shards]
        for shard in self.shards:
            path = folder / shard.file
            if not path.is_file():
                raise ShardError(f"{path} is missing; run snapref prepare again, it makes only what is not there")
            if (found := path.stat().st_size) != shard.bytes:
                raise ShardError(
                    f"{path} has {found:,} bytes, the index says {shard.bytes:,}; remove it and run "
                    "snapref prepare again"
                )

    def shard_of(self, number: int) -> Shard:
        return self.shards[bisect_right(self._firsts, number) - 1]

    def read(self, number: int, part: str = "") -> Tensor:
        """The tensor of a number. Raises ShardError for a shard that went missing or was torn meanwhile."""
        shard = self.shard_of(number)
        try:
            return self._file(shard).get_tensor(f"{number}{part}")
        except (OSError, SafetensorError) as error:
            self._open.pop(shard.file, None)
            raise ShardError(
                f"{self.folder / shard.file} cannot be read ({str(error).splitlines()[0]}); remove it and run snapref "
                "prepare again"
            ) from error

    def verify(self) -> None:
        """Compare every byte with the index. Raises ShardError for the first shard that differs."""
        for shard in self.shards:
            if (found := sha256_of(self.folder / shard.file)) != shard.sha256:
                raise ShardError(
                    f"{self.folder / shard.file} has sha256 {found[:12]}…, the index says {shard.sha256[:12]}…; "
                    "remove it and run snapref prepare again"
                )

    def _file(self, shard: Shard):
        file = self._open.get(shard.file)
        if file is None:
            path = self.folder / shard.file
            if not path.is_file():  # safetensors' own words for it name no file
                raise FileNotFoundError("it is missing")
            file = self._open[shard.file] = safe_open(path, "pt")
            while len(self._open) > OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(shard.file)
        return file
