"""Pictures for the page at a third of their bytes: a palette of a few colours, chosen for the picture."""

import io

from matplotlib.figure import Figure
from PIL import Image

from snapref.lab.plots import png, to_picture

DRAWN, PLOTTED = 128, 32  # colours that pictures and diagrams get by without a visible loss


def compact(picture, colours: int | None = None) -> bytes:
    """PNG bytes with at most 256 colours, without dithering, of a matplotlib figure or what `plots.png` takes.

    colours: None takes DRAWN for pictures and PLOTTED for figures. Give the bytes to `plots.still` or `plots.live`.
    """
    if isinstance(picture, Figure):
        rgb, colours = Image.open(io.BytesIO(png(picture))).convert("RGB"), colours or PLOTTED
    else:
        rgb, colours = to_picture(picture), colours or DRAWN
    few = rgb.quantize(colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    few.save(buffer, format="png", optimize=True)
    return buffer.getvalue()
