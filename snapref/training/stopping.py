"""Ctrl-C and SIGTERM: asked for at any time, obeyed where nothing is lost."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """A run ended early because somebody asked for it; what it had learnt is kept."""

    def __init__(self, sentence: str, number: int):
        super().__init__(sentence)
        self.code = 128 + number  # the shell's exit code for a program that a signal ended


@contextmanager
def asked_to_stop(pass_on: Callable[[int], None] | None = None) -> Iterator[Callable[[], int]]:
    """A function that says which signal came first, 0 while none has; the program itself goes on.

    pass_on: called with each signal, where another process has to hear of it.
    """
    came: list[int] = []

    def note(number, _) -> None:
        came.append(number)
        if pass_on:
            pass_on(number)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield lambda: came[0] if came else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
