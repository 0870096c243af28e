"""figures/demo.png: one picture of a character, three scenes named in words, and the base beside them."""

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from snapref.lab.plots import BLUE, to_picture
from snapref.reference.picture import load_picture
from snapref.sampling.pipeline import Pipeline
from snapref.sampling.settings import Settings
from snapref.world.samples import references

PROMPTS = (
    "1girl, beach, waving, full body",
    "1girl, snow, jumping, open mouth, full body",
    "1girl, night, hands on hips, angry, upper body",
)

TITLE = "Shown once, drawn anywhere"
PAPER, INK, GREY, RULE = "#FFFFFF", "#1A1A1A", "#666666", "#D5D5D5"
LARGE, SMALL = 4, 3  # the picture that was read and those drawn, in heights of a drawn one
MARGIN, GAP, HALL = 56, 20, 72  # around everything, between pictures, between the reference and the scenes
TOP = 132  # where the columns begin
HEADING, CAPTION = 50, 84  # room above a row of pictures, and below it

Corner = tuple[int, int]  # (x, y) in pixels


@dataclass(frozen=True)
class Demo:
    """What was drawn: the reference, and per prompt a picture that read it and one that did not."""

    reference: Image.Image
    name: str  # of the reference's file
    held_out: bool  # whether no training saw the character
    prompts: tuple[str, ...]
    referenced: list[Image.Image]
    alone: list[Image.Image]
    settings: Settings  # the model's defaults filled in
    seconds: float

    def save(self, path: str | Path) -> Path:
        """Writes the poster as a PNG and returns its path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        poster(self).save(path, optimize=True)
        return path


def sample_character(number: int) -> tuple[Image.Image, str]:
    """(picture, path) of a character of data_samples, counted from 1.

    Drawn anew, pixel for pixel, for an installed package has no such folder. Raises ValueError.
    """
    known = references()
    if not 1 <= number <= len(known):
        raise ValueError(f"character {number} is not in data_samples; give 1 to {len(known)}")
    chosen = known[number - 1]
    return Image.fromarray(chosen.picture()), f"data_samples/{chosen.name}"


def draw_demo(
    pipe: Pipeline, picture, name: str, *, held_out: bool = False, prompts: Sequence[str] = PROMPTS,
    settings: Settings | None = None, quiet: bool = False,
) -> Demo:
    """Draws every prompt with the picture and, from the same noise, without it.

    picture: anything that `load_picture` takes; name and held_out: what its caption says.
    """
    begun = time.perf_counter()
    referenced = pipe(prompts, picture, settings=settings, quiet=quiet)
    alone = pipe(prompts, settings=settings, quiet=quiet)
    return Demo(
        to_picture(load_picture(picture)), name, held_out, tuple(prompts), referenced.images, alone.images,
        referenced.settings, time.perf_counter() - begun,
    )


def poster(demo: Demo) -> Image.Image:
    """Returns the demo as one opaque picture: the reference on the left, both rows of scenes on the right."""
    settings, drawn = demo.settings, demo.referenced[0]
    width, height = SMALL * drawn.width, SMALL * drawn.height
    reference = resized(demo.reference, LARGE * drawn.height)
    rows = [[resized(picture, height) for picture in row] for row in (demo.referenced, demo.alone)]
    left = MARGIN + reference.width + HALL
    right = left + len(demo.prompts) * (width + GAP) - GAP
    bottom = TOP + max(2 * (HEADING + height + CAPTION), HEADING + reference.height + 2 * CAPTION)
    sheet = Image.new("RGB", (right + MARGIN, bottom + MARGIN - CAPTION // 2), PAPER)

    write(sheet, (MARGIN, MARGIN), TITLE, 40, INK)
    headed(sheet, (MARGIN, TOP), MARGIN + reference.width, "The one picture it was shown", BLUE)
    caption = demo.name + (", a character that no training saw" if demo.held_out else "")
    framed(sheet, reference, (MARGIN, TOP + HEADING), caption)
    note = f"{drawn.width} by {drawn.height} pixels, {settings.steps} steps, seed {settings.seed}"
    write(sheet, (MARGIN, TOP + HEADING + reference.height + CAPTION), note, 16, GREY)

    headings = ("With the picture: prompts that say nothing of her", "Without it: same prompts, same noise")
    for row, (pictures, heading, colour) in enumerate(zip(rows, headings, (BLUE, GREY), strict=True)):
        top = TOP + row * (HEADING + height + CAPTION)
        headed(sheet, (left, top), right, heading, colour)
        for column, (picture, prompt) in enumerate(zip(pictures, demo.prompts, strict=True)):
            framed(sheet, picture, (left + column * (width + GAP), top + HEADING), prompt)
    return sheet


def resized(picture: Image.Image, height: int) -> Image.Image:
    width = round(picture.width * height / picture.height)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def headed(sheet: Image.Image, corner: Corner, right: int, text: str, colour: str) -> None:
    """A rule from `corner` to `right`, and the text under it."""
    x, y = corner
    ImageDraw.Draw(sheet).rectangle((x, y, right - 1, y + 2), colour)
    write(sheet, (x, y + 12), text, 21, colour)


def framed(sheet: Image.Image, picture: Image.Image, corner: Corner, caption: str) -> None:
    """The picture with its caption, in a hairline that keeps a white sky from running into the paper."""
    x, y = corner
    ImageDraw.Draw(sheet).rectangle((x - 1, y - 1, x + picture.width, y + picture.height), outline=RULE)
    sheet.paste(picture, corner)
    write(sheet, (x, y + picture.height + 12), textwrap.fill(caption, picture.width // 8), 16, INK)


def write(sheet: Image.Image, corner: Corner, text: str, size: int, colour: str) -> None:
    """Text with its top left at `corner`; `size` in pixels."""
    font = ImageFont.load_default(size)
    ImageDraw.Draw(sheet).multiline_text(corner, text, colour, font, spacing=size // 3)
