"""Three ways to a reference: click one of a dozen strangers, upload a picture, or build a character."""

import base64
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import ipywidgets as widgets
from PIL import Image

from snapref.lab.plots import png
from snapref.reference.picture import PictureError, load_picture
from snapref.world import IDENTITY, Character, Scene, character, render, split_of
from snapref.world.samples import references

BUILT_IN = Scene(background="classroom", framing="full body")  # where a built character stands
TRAINED_ON = {
    "base": "The base was trained on this set of attributes; the adapter was not.",
    "adapter": "The base and the adapter were trained on this set of attributes.",
    "heldout": "Neither the base nor the adapter was trained on this set of attributes.",
    "held_back": "Nothing was trained on this set, and one of its attributes no adapter ever saw.",
}
# A button that shows a picture: the picture is its background, so that mouse, Tab and Enter all work.
STYLE = """<style>
.snapref-choice {{ width: {width}px; height: {height}px; padding: 0; margin: 2px; border-radius: 4px;
  background-color: white; background-size: cover; background-position: center; }}
.snapref-choice:focus {{ outline: 2px solid #000; }}
.snapref-chosen {{ box-shadow: 0 0 0 3px #D55E00 !important; }}
{pictures}
</style>"""
THUMBNAIL = (72, 96)  # width, height in pixels


class ReferencePicker:
    """`picture` (PIL) is the reference chosen last, `title` a few words on it, `problem` what went wrong.

    start: which of the samples to begin with. on_change runs whenever one of the three has changed.
    """

    def __init__(self, start: int, on_change: Callable[[], None]):
        self.on_change = lambda: None  # not before everything is there
        self.samples = references()
        self.problem = ""
        self.buttons = [self.button(i) for i in range(len(self.samples))]
        self.upload = widgets.FileUpload(accept="image/*", multiple=False, description="picture file")
        self.upload.observe(self.uploaded, "value")
        self.choices = {name: drop_down(name) for name in IDENTITY}
        self.known = widgets.HTML()
        self.following = False  # whether the drop-downs are being set, not chosen
        self.choose(start)
        for choice in self.choices.values():
            choice.observe(self.built, "value")
        self.widget = self.tabs()
        self.on_change = on_change

    def tabs(self) -> widgets.Tab:
        """Returns the three ways, one tab each."""
        stranger = widgets.Button(description="another stranger", icon="random").add_class("snapref-stranger")
        stranger.on_click(self.draw_lots)
        row = widgets.Layout(flex_flow="row wrap")
        tabs = widgets.Tab(
            [
                widgets.VBox([widgets.HTML(style()), widgets.Box(self.buttons, layout=row)]),
                widgets.VBox([self.upload, widgets.HTML("PNG, JPEG, WebP, GIF or TIFF")]),
                widgets.VBox([widgets.Box([*self.choices.values()], layout=row), stranger, self.known]),
            ]
        )
        for index, title in enumerate(("Pick", "Upload", "Build")):
            tabs.set_title(index, title)
        return tabs

    def button(self, index: int) -> widgets.Button:
        button = widgets.Button(tooltip=words_of(self.samples[index].person))
        button.add_class("snapref-choice").add_class(f"snapref-choice-{index}")
        button.layout = widgets.Layout(width=f"{THUMBNAIL[0]}px", height=f"{THUMBNAIL[1]}px")
        button.on_click(lambda _: self.choose(index))
        return button

    def choose(self, index: int) -> None:
        """Take one of the samples."""
        sample = self.samples[index]
        self.follow(sample.person)
        self.take(Image.fromarray(sample.picture()), words_of(sample.person))
        self.buttons[index].add_class("snapref-chosen")

    def uploaded(self, change) -> None:
        """Take the file; if it is no picture, keep the old one and say why."""
        data = file_bytes(change["new"])
        if data is None:
            return
        try:
            self.take(load_picture(data), "your picture")
        except PictureError as error:
            self.problem = str(error)
            self.on_change()

    def built(self, change=None) -> None:
        """Draw the character that the drop-downs name and take her."""
        if self.following:
            return
        person = self.person
        self.known.value = TRAINED_ON[split_of(person)]
        self.take(Image.fromarray(render(person, BUILT_IN)), words_of(person))

    @property
    def person(self) -> Character:
        return replace(self.start, **{name: choice.value or None for name, choice in self.choices.items()})

    def follow(self, person: Character) -> None:
        """Set the drop-downs to a character; what no tag says (hues, pattern) stays hers from here on."""
        self.start, self.following = person, True
        for name, choice in self.choices.items():
            choice.value = getattr(person, name) or ""
        self.following = False
        self.known.value = TRAINED_ON[split_of(person)]

    def draw_lots(self, button=None) -> None:
        """Build a held-out character at random."""
        self.follow(character(None, "heldout"))
        self.built()

    def take(self, picture: Image.Image, title: str) -> None:
        self.picture, self.title, self.problem = picture, title, ""
        for button in self.buttons:
            button.remove_class("snapref-chosen")
        self.on_change()


@cache
def style() -> str:
    """Returns the style sheet that puts the samples' pictures on their buttons."""
    pictures = "\n".join(
        f".snapref-choice-{i} {{ background-image: url(data:image/png;base64,{data}); }}"
        for i, sample in enumerate(references())
        for data in [base64.b64encode(png(sample.picture())).decode()]
    )
    width, height = THUMBNAIL
    return STYLE.format(width=width, height=height, pictures=pictures)


def drop_down(attribute: str) -> widgets.Dropdown:
    options = [(tag or "none", tag or "") for tag in IDENTITY[attribute]]  # None would be "nothing chosen"
    return widgets.Dropdown(
        options=options, description=attribute.replace("_", " "), layout=widgets.Layout(width="225px"),
        style={"description_width": "95px"},
    ).add_class(f"snapref-{attribute.replace('_', '-')}")  # fmt: skip


def words_of(person: Character) -> str:
    """Returns what one sees first, such as "orange hair, spiky hair, dress"."""
    return ", ".join((person.hair_colour, person.hair_style, person.outfit))


def file_bytes(value) -> bytes | None:
    """Returns the first file of an upload's value; ipywidgets 7 has a dict by name there, 8 a tuple."""
    files = [*value.values()] if isinstance(value, dict) else [*value]
    return bytes(files[0]["content"]) if files else None
