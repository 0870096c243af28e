"""Two characters on one picture, to be moved about: who is read where, and how strongly.

    board = TwoBoard(pipe, left_picture, right_picture, "2girls, beach, standing, smile, upper body")
    board.show()

Core ipywidgets only (7.7 and 8). Both references are read once, when the board is made.
"""

import html

import ipywidgets as widgets
from PIL import Image, ImageDraw

from snapref.lab.board import sentence
from snapref.lab.plots import grid, live, png
from snapref.lab.soon import Soon

SIZE = (96, 128)  # (height, width) in pixels
ZOOM = 3


class TwoBoard:
    """Sliders for the border between the two regions and for each picture's weight; redrawn when released.

    left, right: pictures as `Pipeline.encode` takes them. seed: of the noise.
    """

    def __init__(self, pipe, left, right, prompt: str, seed: int = 0):
        self.pipe, self.prompt, self.seed = pipe, prompt, seed
        self.cache = pipe.encode([left, right])
        self.soon = Soon(self.draw)
        wide = {"layout": widgets.Layout(width="320px"), "style": {"description_width": "110px"}}
        slider = {"continuous_update": False, **wide}
        self.controls = {
            "regions": widgets.Checkbox(True, description="each in her region", **wide),
            "border": widgets.FloatSlider(0.5, min=0.25, max=0.75, step=0.125, description="border", **slider),
            "left": widgets.FloatSlider(1, min=0, max=2, step=0.25, description="weight, left", **slider),
            "right": widgets.FloatSlider(1, min=0, max=2, step=0.25, description="weight, right", **slider),
        }
        for name, control in self.controls.items():
            control.add_class(f"snapref-two-{name}").observe(self.soon, "value")
        self.status = widgets.HTML().add_class("snapref-two-status")
        blank = Image.new("RGB", SIZE[::-1], "#dddddd")
        self.picture = widgets.Image(value=png(grid([blank], zoom=ZOOM))).add_class("snapref-two-picture")
        self.widget = widgets.VBox([*self.controls.values(), self.status, self.picture])

    def areas(self) -> list[tuple[float, float, float, float]] | None:
        """The two boxes (left, top, right, bottom) in shares; None where everybody reads everything."""
        if not self.controls["regions"].value:
            return None
        border = self.controls["border"].value
        return [(0.0, 0.0, border, 1.0), (border, 0.0, 1.0, 1.0)]

    def draw(self, change=None) -> None:
        """Draw what the controls say now; what goes wrong becomes a sentence."""
        self.soon.cancel()
        areas, weights = self.areas(), tuple(self.controls[side].value for side in ("left", "right"))
        try:
            result = self.pipe(
                self.prompt, self.cache, regions=areas, weights=weights, seed=self.seed, size=SIZE, quiet=True
            )
        except Exception as error:  # nobody sees a traceback from inside a widget
            self.status.value = html.escape(sentence(error))
            return
        where = "each in her region" if areas else "both everywhere"
        self.status.value = f"{where}, weights {weights[0]:g} and {weights[1]:g}: {result.seconds:.1f} s"
        self.picture.value = png(self.sheet(result.image))

    def sheet(self, image: Image.Image) -> Image.Image:
        """The drawing, and the same with the border marked."""
        areas = self.areas()
        if areas is None:
            return grid([image], ["no regions"], zoom=ZOOM)
        marked = image.resize((image.width * ZOOM, image.height * ZOOM), Image.Resampling.NEAREST)
        x = round(areas[0][2] * marked.width)
        ImageDraw.Draw(marked).line([(x, 0), (x, marked.height)], fill="white", width=2)
        return grid([marked], ["the line is the border between the regions"])

    def describe(self) -> str:
        """The picture in words."""
        where = "each read only on her side" if self.areas() else "both read everywhere"
        return f"A picture of two characters drawn for “{self.prompt}”, {where}"

    def show(self) -> None:
        """Draw once, then show the widget with a still picture in the same output."""
        self.draw()
        live(self.widget, bytes(self.picture.value), self.describe())
