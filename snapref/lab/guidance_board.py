"""Every guidance control over one seed, with how colourful the picture becomes.

    board = GuidanceBoard(pipe, picture, "1girl, beach, waving, full body")
    board.show()

Core ipywidgets only (7.7 and 8). The reference is read once, when the board is made.
"""

import html
import warnings

import ipywidgets as widgets
from PIL import Image

from snapref.lab.board import sentence
from snapref.lab.guidance_view import saturation
from snapref.lab.plots import grid, live, png, to_picture
from snapref.lab.soon import Soon
from snapref.sampling.settings import Settings

ZOOM = 2
SLIDERS = {  # setting: (lowest, highest, step)
    "guidance": (1, 12, 0.5),
    "ref_guidance": (1, 8, 0.5),
    "apg_eta": (0, 1, 0.1),
    "cfg_rescale": (0, 1, 0.1),
    "fidelity": (0, 1, 0.1),
    "strength": (0, 2, 0.1),
}


class GuidanceBoard:
    """Sliders for what is done with the model's answers; the same noise is drawn again when one is released.

    picture: a reference as `Pipeline.encode` takes it. settings: seed, steps, and where the sliders start.
    """

    def __init__(self, pipe, picture, prompt: str, settings: Settings | None = None):
        self.pipe, self.prompt, self.reference = pipe, prompt, to_picture(picture)
        self.cache = pipe.encode(picture)
        self.start = (settings or Settings()).resolved(pipe.config)
        self.first: Image.Image | None = None  # drawn with the settings of the start
        self.now: Image.Image | None = None
        self.soon = Soon(self.draw)
        wide = {"layout": widgets.Layout(width="320px"), "style": {"description_width": "110px"}}
        two = self.start.ref_guidance is not None
        self.two_scales = widgets.Checkbox(two, description="two scales", **wide)
        self.controls = {}
        for name, (low, high, step) in SLIDERS.items():
            value = getattr(self.start, name)
            value = self.start.guidance if value is None else value  # r = s changes nothing
            self.controls[name] = widgets.FloatSlider(
                min(max(value, low), high), min=low, max=high, step=step, description=name,
                continuous_update=False, **wide,
            )  # fmt: skip
        self.controls["ref_guidance"].disabled = not two
        for name, control in {"two-scales": self.two_scales, **self.controls}.items():
            control.add_class(f"snapref-guidance-{name}").observe(self.soon, "value")
        self.status = widgets.HTML().add_class("snapref-guidance-status")
        self.notes = widgets.HTML().add_class("snapref-guidance-notes")
        self.picture = widgets.Image(value=png(self.sheet()), layout=widgets.Layout(align_self="flex-start"))
        self.picture.add_class("snapref-guidance-picture")
        guidance, reference, *rest = self.controls.values()
        wrapped = widgets.Layout(flex_flow="row wrap")
        sliders = widgets.Box([guidance, self.two_scales, reference, *rest], layout=wrapped)
        self.widget = widgets.VBox([sliders, self.status, self.picture, self.notes])

    def settings(self) -> Settings:
        """Returns what the controls say. ref_guidance counts only while two scales are on."""
        said = {name: control.value for name, control in self.controls.items()}
        if not self.two_scales.value:
            said["ref_guidance"] = None
        return self.start.replace(**said)

    def draw(self, change=None) -> None:
        """Draw what the controls say now; what goes wrong, and what is ignored, becomes a sentence."""
        self.soon.cancel()
        self.controls["ref_guidance"].disabled = not self.two_scales.value
        self.notes.value = ""
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                if self.first is None:
                    self.first = self.pipe(self.prompt, self.cache, settings=self.start, quiet=True).image
                result = self.pipe(self.prompt, self.cache, settings=self.settings(), quiet=True)
        except Exception as error:  # nobody sees a traceback from inside a widget
            self.status.value = html.escape(sentence(error))
            return
        self.now = result.image
        per_step = result.branches / result.settings.steps
        self.status.value = (
            f"saturation {saturation(self.now):.1f}, {self.share():.0%} of the start; "
            f"{per_step:g} model calls per step; {result.seconds:.1f} s"
        )
        notes = dict.fromkeys(str(warning.message) for warning in heard if warning.category is UserWarning)
        self.notes.value = "".join(f"<div>Note: {html.escape(note)}.</div>" for note in notes)
        self.picture.value = png(self.sheet())

    def share(self) -> float:
        """Returns the saturation of the picture now over that of the start."""
        return saturation(self.now) / max(saturation(self.first), 1e-9)

    def sheet(self) -> Image.Image:
        """Returns the reference, the picture of the start, and the picture now."""
        if self.now is None:
            blank = Image.new("RGB", self.reference.size, "#dddddd")
            return grid([self.reference, blank, blank], ["the reference", "start", "now"], zoom=ZOOM)
        captions = ["the reference", "start: saturation 100 %", f"now: saturation {100 * self.share():.0f} %"]
        return grid([self.reference, self.first, self.now], captions, zoom=ZOOM)

    def describe(self) -> str:
        """Returns the pictures in words, for readers who cannot see them."""
        said = self.settings()
        numbers = ", ".join(
            f"{name} {getattr(said, name):g}" for name in SLIDERS if getattr(said, name) is not None
        )
        return (
            f"A reference; “{self.prompt}” drawn with it at the start; the same noise with {numbers}, "
            f"saturation {100 * self.share():.0f} % of the start"
            if self.now
            else "A reference; nothing is drawn yet"
        )

    def show(self) -> None:
        """Draw once, then show the widget with a still picture and a text in the same output."""
        self.draw()
        live(self.widget, bytes(self.picture.value), self.describe())
