"""References that were read before, kept as long as there is room: the same picture is read once.

The key is what a cache is made from: base, adapter, the picture's pixels, mode, caption, size, place, form.
A path or a shape is never part of it: another picture under the same name is another picture.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

from snapref.reference.cache import ReferenceCache

BUDGET = 2**30  # bytes


class ReferenceStore:
    """Least recently used caches go first. budget: bytes; a cache larger than all of it is not kept."""

    def __init__(self, budget: int = BUDGET):
        if budget < 0:
            raise ValueError(f"the budget is {budget} bytes; give 0 or more")
        self.budget = budget
        self._kept: OrderedDict[Hashable, ReferenceCache] = OrderedDict()
        self._lock = Lock()  # widgets read from other threads

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self._kept.values())

    def get(self, key: Hashable, make: Callable[[], ReferenceCache]) -> ReferenceCache:
        """The cache of a key, made if it is not there."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        cache = make()  # outside of the lock: it takes long, and may fail
        if cache.nbytes <= self.budget:
            with self._lock:
                self._kept[key] = cache
                while self.nbytes > self.budget:
                    self._kept.popitem(last=False)
        return cache

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
