"""What a file or a call is refused with, as the one sentence that a user reads."""

import os
from collections.abc import Callable
from pathlib import Path


def said(call: Callable[[], object], folder: str | Path = "") -> str:
    """Returns the sentence of the error that `call` raises, without the folder in front of file names.

    Raises AssertionError if it raises none: an example that stopped being refused is no example.
    """
    try:
        call()
    except (ValueError, OSError, MemoryError) as error:
        sentence = str(error)
        return sentence.replace(f"{folder}{os.sep}", "").replace(str(folder), "the folder") if folder else sentence
    raise AssertionError("nothing was refused; this example no longer shows a refusal")
