"""The widget of the course: a reference, a prompt, a strength; side by side what they draw.

    board = Board(snapref.load("nano"))
    board.show()

Core ipywidgets only (7.7 and 8). Drawing runs in the kernel's own thread, never beside a cell that draws too.
"""

import html

import ipywidgets as widgets
from PIL import Image

from snapref.lab.comparison import WITH, WITHOUT, Comparer, Comparison
from snapref.lab.picker import ReferencePicker
from snapref.lab.plots import grid, live, png
from snapref.lab.prompt_box import PromptBox
from snapref.lab.soon import Soon
from snapref.sampling.settings import Settings

PROMPT = "1girl, beach, waving, full body"
ZOOM = 2
MODES = {"cs": "character and style", "char": "character only"}


class Board:
    """Reference, with it and without it, redrawn when a control is released.

    pipe: a Pipeline with an adapter. start: which of the samples (0 to 11) to begin with.
    settings: their strength, seed, guidance, steps and mode are where the controls start.
    """

    def __init__(self, pipe, prompt: str = PROMPT, start: int = 5, settings: Settings | None = None):
        settings = (settings or Settings()).resolved(pipe.config)
        self.comparer = Comparer(pipe)
        self.shown: Comparison | None = None
        self.previews: dict[str, Image.Image] = {}  # of the drawing under way
        self.soon = Soon(self.draw)
        self.picker = ReferencePicker(start, self.soon)
        self.prompt = PromptBox(prompt, self.soon)
        self.controls = controls(settings, pipe.adapter.config if pipe.adapter else None)
        for control in self.controls.values():
            control.observe(self.soon, "value")
        self.button = widgets.Button(description="draw", button_style="primary", icon="pencil")
        self.button.add_class("snapref-draw").on_click(self.draw)
        self.bar = widgets.IntProgress(min=0, max=1, layout=widgets.Layout(width="140px"))
        self.status = widgets.HTML().add_class("snapref-status")
        self.notes = widgets.HTML().add_class("snapref-notes")
        own_size = widgets.Layout(align_self="flex-start", max_width="100%")
        self.picture = widgets.Image(value=png(self.sheet()), layout=own_size).add_class("snapref-picture")
        self.widget = widgets.VBox(
            [
                self.picker.widget,
                self.prompt.widget,
                widgets.Box([*self.controls.values()], layout=widgets.Layout(flex_flow="row wrap")),
                widgets.HBox([self.button, self.bar, self.status]),
                self.picture,
                self.notes,
            ]
        )

    def settings(self) -> Settings:
        """Returns what the controls say. Raises SettingsError."""
        return Settings(**{name: control.value for name, control in self.controls.items()})

    def show(self) -> None:
        """Draw once, then show the widget with a still picture and a text in the same output."""
        self.draw()
        live(self.widget, bytes(self.picture.value), self.describe())

    def draw(self, button=None) -> None:
        """Draw what the controls say now. Whatever goes wrong becomes a sentence below the pictures."""
        self.soon.cancel()
        try:
            self.shown = self.comparer(
                self.prompt.prompt, self.picker.picture, self.settings(), self.progress
            )
        except KeyboardInterrupt:
            self.tell("Stopped; press draw to go on.")
        except Exception as error:  # nobody sees a traceback from inside a widget
            self.tell("Nothing was drawn.", sentence(error))
        else:
            self.tell(self.shown.account, *self.shown.notices)
        self.previews = {}
        self.picture.value = png(self.sheet())

    def tell(self, status: str, *notes: str) -> None:
        """Show one line beside the bar, and sentences below the pictures."""
        self.bar.value = 0
        self.status.value = html.escape(status)
        notes = [note for note in (self.picker.problem, *notes) if note]
        self.notes.value = "".join(f"<div>Note: {html.escape(note)}.</div>" for note in notes)

    def progress(self, which: str, done: int, steps: int, look: Image.Image | None) -> None:
        """Called after every step; shows a preview where there is one."""
        self.bar.max, self.bar.value = steps, done
        self.status.value = f"drawing {which}: step {done} of {steps}"
        if look:
            self.previews[which] = look
            self.picture.value = png(self.sheet())

    def sheet(self) -> Image.Image:
        """Returns the three pictures side by side: finished, under way, or grey where nothing is yet."""
        reference = self.comparer.fitted(self.picker.picture)
        blank = Image.new("RGB", reference.size, "#dddddd")
        drawn = {WITH: blank, WITHOUT: blank}
        if self.shown:
            drawn = {WITH: self.shown.with_reference, WITHOUT: self.shown.without}
        drawn |= self.previews
        return grid([reference, *drawn.values()], ["the reference", *drawn], zoom=ZOOM)

    def describe(self) -> str:
        """Returns the pictures in words, for readers who cannot see them."""
        strength = self.controls["strength"].value
        return (
            f"Three pictures side by side: the reference ({self.picker.title}); the prompt "
            f"“{self.prompt.prompt}” drawn with it at strength {strength:g}; "
            "the same prompt and the same noise without it."
        )


def controls(settings: Settings, adapter) -> dict[str, widgets.Widget]:
    """Returns the controls by the name of their setting. Sliders report when released, or per arrow key."""
    wide = {"layout": widgets.Layout(width="300px"), "style": {"description_width": "80px"}}
    captions = adapter.captions if adapter else {}
    modes = [(MODES.get(mode, mode), mode) for mode in captions] or [("no adapter", None)]
    mode = settings.mode or (adapter.default_mode if adapter else None)
    found = {
        "strength": widgets.FloatSlider(
            settings.strength, min=0, max=2, step=0.05, continuous_update=False, **wide
        ),
        "mode": widgets.Dropdown(options=modes, value=mode, **wide),
        "seed": widgets.BoundedIntText(settings.seed, min=0, max=2**31 - 1, **wide),
        "guidance": widgets.FloatSlider(
            settings.guidance, min=1, max=8, step=0.5, continuous_update=False, **wide
        ),
        "steps": widgets.IntSlider(settings.steps, min=4, max=50, continuous_update=False, **wide),
    }
    for name, control in found.items():
        control.description = name
        control.add_class(f"snapref-{name}")
    return found


def sentence(error: Exception) -> str:
    """Returns an error's own sentence; of one that is not meant for people, its name too."""
    meant = isinstance(error, (ValueError, ArithmeticError, OSError))
    return str(error) if meant and str(error) else f"{type(error).__name__}: {error}"
