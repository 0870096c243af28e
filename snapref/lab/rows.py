"""Pictures of any size side by side at one height: small ones enlarged in whole pixels' look, large ones shrunk."""

from collections.abc import Sequence

from PIL import Image

from snapref.lab.plots import grid, still, to_picture


def at_height(picture, height: int) -> Image.Image:
    """Returns the picture `height` pixels high, its shape kept; an enlarged one shows its pixels."""
    picture = to_picture(picture)
    width = max(1, round(picture.width * height / picture.height))
    way = Image.Resampling.NEAREST if picture.height < height else Image.Resampling.LANCZOS
    return picture.resize((width, height), way)


def show_row(pictures: Sequence, names: Sequence[str], alt: str, height: int = 256) -> None:
    """Shows pictures (whatever `to_picture` takes) in one row with their names below, and `alt` as the text."""
    still(grid([at_height(picture, height) for picture in pictures], names), alt)
