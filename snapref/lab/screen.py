"""One output of a cell that is redrawn while the cell runs, and that stays as a still picture afterwards."""

import base64
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from snapref.lab import plots

VIEW = "application/vnd.jupyter.widget-view+json"
EVERY = 2.0  # seconds between two looks at least: drawing one takes a tenth of that


class Screen(AbstractContextManager):
    """Within this context an image widget shows `draw()`, anew at each `look()` that comes late enough.

    draw: → a figure or picture. alt: a text for readers who cannot see it. The progress bars of libraries, widgets
    without a still picture, are kept off the notebook meanwhile. Outside of notebooks nothing is shown.
    """

    def __init__(self, draw: Callable, alt: str, every: float = EVERY):
        import ipywidgets  # what a widget needs is loaded for widgets only

        self.draw, self.alt, self.every = draw, alt, every
        self.widget = ipywidgets.Image(format="png", value=plots.png(draw())).add_class("snapref-screen")
        self.drawn = time.monotonic()
        self.undo = ExitStack()

    def __enter__(self) -> "Screen":
        from IPython.display import display
        from IPython.utils.capture import capture_output

        data, options = self.shown()
        self.handle = display(data, **options, display_id=True)
        self.undo.enter_context(capture_output(stdout=False, stderr=False, display=True))
        return self

    def __exit__(self, *_) -> None:
        self.undo.close()
        self.widget.value = plots.png(self.draw())
        if self.handle:
            data, options = self.shown()
            self.handle.update(data, **options)

    def look(self) -> None:
        """Draw again, unless that was done a moment ago."""
        if time.monotonic() - self.drawn >= self.every:
            self.widget.value = plots.png(self.draw())
            self.drawn = time.monotonic()

    def shown(self) -> tuple[dict, dict]:
        """(the widget with its present picture as the still, how `display` is to take it)."""
        view = {VIEW: {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}}
        picture = {"image/png": base64.b64encode(self.widget.value).decode(), "text/plain": self.alt}
        return view | picture, {"metadata": {"image/png": {"alt": self.alt}}, "raw": True}
