"""Pictures for the notebooks: grids with captions, figures as PNG, a still beside every widget."""

import base64
import io
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

# Okabe and Ito's palette: told apart with every common kind of colour blindness.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = COLOURS = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
SEQUENTIAL, DIVERGING = "viridis", "RdBu_r"  # for amounts, for signed differences


def figure(width: float = 6.4, height: float = 3.2, dpi: int = 100) -> Figure:
    """Returns an empty white figure, width and height in inches. It belongs to no global state."""
    return Figure(figsize=(width, height), dpi=dpi, facecolor="white", layout="constrained")


def to_picture(picture) -> Image.Image:
    """Returns an opaque RGB picture.

    picture: PIL; an array (h, w, 3) or (h, w), uint8 or floats in [0, 1]; a tensor (3, h, w) or (1, 3, h, w).
    """
    if hasattr(picture, "detach"):
        pixels = picture.detach().cpu().float().numpy()
        picture = np.moveaxis(pixels[0] if pixels.ndim == 4 else pixels, 0, -1)
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8:
            picture = np.round(np.clip(picture, 0, 1) * 255).astype(np.uint8)
        picture = Image.fromarray(picture)
    if picture.mode in ("RGBA", "LA", "PA"):
        rgba = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return picture.convert("RGB")


def grid(
    pictures: Sequence, captions: Sequence[str] = (), columns: int | None = None, zoom: int = 1
) -> Image.Image:
    """Returns the pictures in rows on white, each with its caption below, all cells of one size.

    zoom: whole number; pixels are repeated, never blurred. columns: all in one row when not given.
    Raises ValueError when there is no picture, or when captions are given for only some of them.
    """
    if not pictures:
        raise ValueError("grid needs at least one picture")
    if captions and len(captions) != len(pictures):
        raise ValueError(f"{len(pictures)} pictures but {len(captions)} captions; give one for each, or none")
    tiles = [to_picture(picture) for picture in pictures]
    tiles = [tile.resize((tile.width * zoom, tile.height * zoom), Image.Resampling.NEAREST) for tile in tiles]
    width, height = max(t.width for t in tiles), max(t.height for t in tiles)
    font = ImageFont.load_default(size=13)
    lines = [_wrap(caption, font, width) for caption in captions] or [[]] * len(tiles)
    line_height, gap = 17, 8
    caption_height = line_height * max(len(text) for text in lines)
    columns = min(columns or len(tiles), len(tiles))
    rows = -(-len(tiles) // columns)
    step_x, step_y = width + gap, height + caption_height + gap
    sheet = Image.new("RGB", (columns * step_x + gap, rows * step_y + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for index, (tile, text) in enumerate(zip(tiles, lines, strict=True)):
        left, top = gap + index % columns * step_x, gap + index // columns * step_y
        sheet.paste(tile, (left + (width - tile.width) // 2, top + (height - tile.height)))
        for row, line in enumerate(text):
            place = (left + width / 2, top + height + 2 + row * line_height)
            draw.text(place, line, fill="black", font=font, anchor="ma")
    return sheet


def png(picture) -> bytes:
    """Returns PNG bytes of a matplotlib figure or of anything `to_picture` takes.

    Pictures are rounded to levels that lie 5 of 255 apart, figures to 256 colours of their own: nobody sees it, and
    the file is half as large.
    """
    buffer = io.BytesIO()
    if isinstance(picture, Figure):
        picture.savefig(buffer, format="png", facecolor="white")
        drawn = Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        buffer = io.BytesIO()
        drawn.save(buffer, format="png", optimize=True)
    else:
        levels = to_picture(picture).point([5 * round(level / 5) for level in range(256)] * 3)
        levels.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def still(picture, alt: str) -> None:
    """Show a figure, a picture or PNG bytes as one PNG with a text for readers who cannot see it."""
    _display({}, picture if isinstance(picture, bytes) else png(picture), alt)


def live(widget, picture, alt: str) -> None:
    """Show a widget, and in the same output the still picture and text that stand in where no kernel runs.

    widget: any ipywidgets (7.7 or 8) widget; picture: PNG bytes, or what `png` takes.
    """
    if hasattr(widget, "_repr_mimebundle_"):  # ipywidgets 8
        bundle = widget._repr_mimebundle_()
        bundle = dict(bundle[0] if isinstance(bundle, tuple) else bundle)
    else:  # ipywidgets 7
        view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
        bundle = {"application/vnd.jupyter.widget-view+json": view}
    pixels = picture if isinstance(picture, bytes) else png(picture)
    _display(bundle, pixels, alt)


def _display(bundle: dict, pixels: bytes, alt: str) -> None:
    from IPython.display import display  # only in notebooks; `grid` and `png` also serve the command line

    bundle = bundle | {"image/png": base64.b64encode(pixels).decode(), "text/plain": alt}
    display(bundle, metadata={"image/png": {"alt": alt}}, raw=True)


def _wrap(text: str, font, width: int) -> list[str]:
    """Returns the lines of `text`, each at most `width` pixels wide where its words allow it."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
