"""Draw soon: controls that change one after another, as under a held arrow key, make one drawing."""

import asyncio
from collections.abc import Callable

PAUSE = 0.25  # seconds to wait for another change


class Soon:
    """A callback for `observe` that calls `draw` when no change has followed for a while; without a loop it is now."""

    def __init__(self, draw: Callable[[], None]):
        self.draw = draw
        self.waiting: asyncio.TimerHandle | None = None

    def __call__(self, change=None) -> None:
        self.cancel()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # not in a notebook
            self.draw()
        else:
            self.waiting = loop.call_later(PAUSE, self.draw)

    def cancel(self) -> None:
        """Drop the drawing that is waiting, if one is."""
        if self.waiting:
            self.waiting.cancel()
