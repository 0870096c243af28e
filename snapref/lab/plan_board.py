"""The plan of memory to play with: a card, a way to hold Anima, a size, and what of it fits.

    PlanBoard().show()

Core ipywidgets only (7.7 and 8). Nothing is loaded; a plan takes a second or less.
"""

import html

import ipywidgets as widgets
import torch
from PIL import Image

from snapref.config import BASE, ModelConfig
from snapref.lab.board import sentence
from snapref.lab.memory_view import memory_bars
from snapref.lab.plots import live, png
from snapref.sampling.advice import advice
from snapref.sampling.memory import GB, Ask, make_plan

HELD = {"bf16": torch.bfloat16, "fp16 (T4)": torch.float16, "an fp8 file": torch.bfloat16}


class PlanBoard:
    """Controls for the card and the run; the bars follow when one is released.

    config: the model; sizes are those of its own area and others that its codec can draw.
    """

    def __init__(self, config: ModelConfig = BASE, card: float = 8.0):
        self.config = config
        height, width = config.default_size
        step = config.size_step
        sizes = [tuple(round(side * factor / step) * step for side in (height, width)) for factor in (0.5, 1, 1.5)]
        wide = {"layout": widgets.Layout(width="340px"), "style": {"description_width": "130px"}}
        self.controls = {
            "card": widgets.FloatSlider(card, min=4, max=24, step=0.5, description="free on the card, GB",
                                        continuous_update=False, **wide),
            "held": widgets.Dropdown(options=list(HELD), description="weights", **wide),
            "offload": widgets.Checkbox(False, description="offload", **wide),
            "size": widgets.Dropdown(options=[(f"{w} × {h}", (h, w)) for h, w in sizes], value=sizes[1],
                                     description="picture", **wide),
            "references": widgets.IntSlider(1, min=0, max=4, description="references",
                                            continuous_update=False, **wide),
        }  # fmt: skip
        for name, control in self.controls.items():
            control.add_class(f"snapref-plan-{name}").observe(self.draw, "value")
        self.status = widgets.HTML().add_class("snapref-plan-status")
        blank = png(Image.new("RGB", (64, 16), "white"))
        self.picture = widgets.Image(value=blank).add_class("snapref-plan-picture")
        self.widget = widgets.VBox([*self.controls.values(), self.status, self.picture])

    def ask(self) -> Ask:
        """What the controls ask for."""
        held, references = self.controls["held"].value, self.controls["references"].value
        return Ask(
            self.config, HELD[held], self.controls["size"].value, references=references, adapter=references > 0,
            ref_megapixels=self.config.default_ref_megapixels, fp8="fp8" in held,
            offload=self.controls["offload"].value,
        )  # fmt: skip

    def verdict(self) -> str:
        """Whether it fits, and if not, what to lower."""
        ask, card = self.ask(), self.controls["card"].value
        peak = make_plan(ask).peak
        if peak > card * GB:
            return advice(ask, int(card * GB)).removeprefix("out of memory: ")
        return f"It fits: {peak / GB:.1f} of {card:g} GB."

    def draw(self, change=None) -> None:
        """Plan what the controls say now; what goes wrong becomes a sentence."""
        try:
            said, bars = self.verdict(), memory_bars({"": self.ask()}, [self.controls["card"].value])
        except Exception as error:  # nobody sees a traceback from inside a widget
            self.status.value = html.escape(sentence(error))
            return
        self.status.value = html.escape(said)
        self.picture.value = png(bars)

    def describe(self) -> str:
        """The picture in words."""
        bars = ", ".join(f"{phase} {size / GB:.1f}" for phase, size in make_plan(self.ask()).phases.items())
        return f"GB on the card by phase: {bars}. {self.verdict()}"

    def set(self, **values) -> None:
        """Sets controls by name, as a reader's hand would."""
        for name, value in values.items():
            self.controls[name].value = value

    def show(self) -> None:
        """Plan once, then show the widget with a still picture in the same output."""
        self.draw()
        live(self.widget, bytes(self.picture.value), self.describe())
