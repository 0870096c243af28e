"""Several pictures on one canvas, to be read as one. The way of the well-known Image Stitch node."""

from collections.abc import Sequence
from functools import reduce

from PIL import Image

from snapref.reference.picture import MAX_PIXELS, PictureError

DIRECTIONS = ("right", "down", "left", "up")
COLOURS = {
    "white": (255, 255, 255), "black": (0, 0, 0), "red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255),
}  # fmt: skip


def stitch(
    pictures: Sequence[Image.Image],
    direction: str = "right",
    match_size: bool = True,
    spacing: int = 0,
    colour: str = "white",
) -> Image.Image:
    """All pictures on one canvas, each joined to the canvas so far; one picture stays as it is.

    pictures: RGB or RGBA. direction: on which side of the canvas the next one comes.
    match_size: the next one takes the canvas's height (right, left) or width (down, up), its proportions
    kept; the first is never resized. Otherwise the smaller side is filled up around the middle: with white
    for white, else with black. spacing: pixels between two, made even; colour: of the spacing.
    The canvas has any size: it is still brought to the size that the model reads, all pictures together.
    """
    return reduce(lambda canvas, new: join(canvas, new, direction, match_size, spacing, colour), pictures)


def join(
    canvas: Image.Image, picture: Image.Image, direction: str, match_size: bool, spacing: int, colour: str
) -> Image.Image:
    beside = direction in ("right", "left")
    if match_size:
        scale = canvas.height / picture.height if beside else canvas.width / picture.width
        long = max(1, int((picture.width if beside else picture.height) * scale))
        size = (long, canvas.height) if beside else (canvas.width, long)
        check_canvas(*size)
        if size != picture.size:
            picture = picture.resize(size, Image.Resampling.LANCZOS)
    mode = "RGBA" if "RGBA" in (canvas.mode, picture.mode) else "RGB"  # without alpha: opaque
    parts = [canvas.convert(mode), picture.convert(mode)]
    if direction in ("left", "up"):
        parts.reverse()
    spacing += spacing % 2
    along = spacing + sum(part.width if beside else part.height for part in parts)
    across = max(part.height if beside else part.width for part in parts)

    size = (along, across) if beside else (across, along)
    check_canvas(*size)
    sheet = Image.new(mode, size, "white" if colour == "white" else "black")
    at = 0
    for number, part in enumerate(parts):
        if number and spacing:
            gap = (at, 0, at + spacing, across) if beside else (0, at, across, at + spacing)
            sheet.paste(COLOURS[colour], gap)
            at += spacing
        middle = (across - (part.height if beside else part.width)) // 2
        sheet.paste(part, (at, middle) if beside else (middle, at))
        at += part.width if beside else part.height
    return sheet


def check_canvas(width: int, height: int) -> None:
    """Raises PictureError before a canvas is made that would not be read anyway."""
    if width * height > MAX_PIXELS:
        raise PictureError(
            f"stitched, the pictures have {width * height:,} pixels ({width}×{height}), at most {MAX_PIXELS:,}; give "
            "smaller ones, or read them one by one"
        )
