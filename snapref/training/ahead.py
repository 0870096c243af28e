"""The batch of the next step, fetched while this one is computed."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor


class Ahead:
    """fetch(step) → batch, one step ahead in a thread where `wanted`; counts the seconds spent waiting.

    Worth it where fetching is reading a disk; where it is computing, it would only take the step's own cores.
    """

    def __init__(self, fetch: Callable[[int], dict[str, Tensor]], stop: int, wanted: bool):
        self.fetch, self.stop, self.waited = fetch, stop, 0.0
        self._pool = ThreadPoolExecutor(1) if wanted else None
        self._next: tuple[int, Future] | None = None

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *exception) -> None:
        if self._pool:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def batch(self, step: int) -> dict[str, Tensor]:
        """Raises what fetching raised."""
        begun = time.perf_counter()
        if self._next and self._next[0] == step:
            batch = self._next[1].result()
        else:
            batch = self.fetch(step)
        if self._pool and step + 1 < self.stop:
            self._next = step + 1, self._pool.submit(self.fetch, step + 1)
        self.waited += time.perf_counter() - begun
        return batch
