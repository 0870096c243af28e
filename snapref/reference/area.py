"""A part of a picture: a side, a box, or a mask. Who stands where, and what of a reference is shown.

A box is given in shares of the picture, so it fits any size; a mask is brought to the size at hand by
averaging, exactly, and a cell of which at least half is covered belongs to the part.
"""

import numbers
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from snapref.reference.fingerprint import hash_tensors
from snapref.reference.picture import PictureError, load_picture

Box = tuple[float, float, float, float]  # (left, top, right, bottom) as shares of width and height

SIDES: dict[str, Box] = {
    "all": (0.0, 0.0, 1.0, 1.0),
    "left": (0.0, 0.0, 0.5, 1.0),
    "right": (0.5, 0.0, 1.0, 1.0),
    "top": (0.0, 0.0, 1.0, 0.5),
    "bottom": (0.0, 0.5, 1.0, 1.0),
}
CLOSE = 0.02  # by which a mask's proportions may differ from its picture's
HALF = 0.5 - 1e-9  # of a cell; the sum of shares that make a half may fall short by rounding
NUMBERS = re.compile(r"[-+\d.einfa]+(,[-+\d.einfa]+)+", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Area:
    """A box, or a mask of shares (h, w) in [0, 1]."""

    name: str  # for messages: "regions[0]"
    box: Box | None = None
    mask: Tensor | None = None

    def covered(self, rows: int, columns: int) -> Tensor:
        """Which cells of a grid belong to it: bool (rows, columns). At least half of a cell must be covered.

        Raises PictureError for a part that is there, but too thin for any cell.
        """
        if self.box is not None:
            left, top, right, bottom = self.box
            shares = overlap(top, bottom, rows)[:, None] * overlap(left, right, columns)
        else:
            height, width = self.mask.shape
            shares = averaging(height, rows) @ self.mask.double() @ averaging(width, columns).T
        cells = shares >= HALF
        if shares.any() and not cells.any():
            raise PictureError(
                f"{self.name} covers no cell of {rows}×{columns} by half (at most {shares.max():.0%}); "
                "make it larger"
            )
        return cells

    def check_shape(self, height: int, width: int, what: str) -> None:
        """Raises PictureError for a mask of other proportions than a picture of (height, width) pixels.

        What rounding both sides of a smaller or larger mask to whole pixels can do is allowed, and `CLOSE`: the
        nearest size that a model draws may differ so much from the size that the mask was made for.
        """
        if self.mask is None:
            return
        tall, wide = self.mask.shape
        if abs(wide * height - tall * width) > max((height + width) / 2, CLOSE * tall * width):
            raise PictureError(
                f"{self.name} is a mask of {wide}×{tall} pixels, {what} is {width}×{height}; give a mask of "
                "the same proportions, or a box in shares"
            )

    def described(self):
        """Returns plain values for a record: the box (None for all), or the mask's size and sha256."""
        if self.box is not None:
            return None if self.box == SIDES["all"] else [*self.box]
        return {"mask": hash_tensors([("mask", self.mask)]), "size": [*self.mask.shape[::-1]]}


def read_area(name: str, given) -> Area | None:
    """None for None, else the part of a picture that `given` names. Raises PictureError.

    given: "left", "right", "top", "bottom", "all"; a box (left, top, right, bottom) in shares 0..1, also as
    "0,0,0.5,1"; or a mask, white where the part is: a path, a PIL image, an array or a tensor (h, w), as bool,
    uint8 in 0..255 or floats in 0..1. Where a mask file is transparent, it counts as black.
    """
    if given is None:
        return None
    if isinstance(given, str):
        if given in SIDES:
            return Area(name, SIDES[given])
        if NUMBERS.fullmatch(given.replace(" ", "")):
            return Area(name, checked_box(name, given.split(",")))
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes, bytearray, memoryview)):
        return Area(name, checked_box(name, given))
    if isinstance(given, (np.ndarray, Tensor)):
        if given.ndim == 1:
            return Area(name, checked_box(name, given.tolist()))
        return Area(name, mask=mask_of_array(name, given))
    return Area(name, mask=mask_of_picture(name, given))


def checked_box(name: str, values) -> Box:
    try:
        box = tuple(float(v) for v in values if isinstance(v, (str, numbers.Real)))
    except ValueError:
        box = ()
    if len(box) != 4 or len(values) != 4:
        raise PictureError(f"{name} is {values!r}; a box is four numbers: left, top, right, bottom in 0..1")
    left, top, right, bottom = box
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise PictureError(
            f"{name} is the box {left:g}, {top:g}, {right:g}, {bottom:g}; it must lie within 0 to 1, left "
            "below right and top below bottom"
        )
    return box


def mask_of_array(name: str, array) -> Tensor:
    mask = array.detach().cpu() if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    while mask.ndim > 2 and 1 in (mask.shape[0], mask.shape[-1]):
        mask = mask[0] if mask.shape[0] == 1 else mask[..., 0]
    if mask.ndim != 2 or 0 in mask.shape:
        raise PictureError(f"{name} is an array of shape {tuple(array.shape)}; give a mask (height, width)")
    if mask.dtype == torch.uint8:
        return mask.float() / 255
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise PictureError(f"{name} is an array of {array.dtype}; give bools, uint8 in 0..255 or floats in 0..1")
    mask = mask.float()
    if not (mask.isfinite().all() and mask.min() >= 0 and mask.max() <= 1):
        low, high = mask.min().item(), mask.max().item()
        raise PictureError(f"{name} holds values from {low:g} to {high:g}; a mask has floats in 0..1")
    return mask


def mask_of_picture(name: str, source) -> Tensor:
    try:
        image = load_picture(source)
    except PictureError as error:
        raise PictureError(f"{name}: {error}") from error
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
    return torch.from_numpy(np.array(image.convert("L"))).float() / 255


def overlap(start: float, stop: float, cells: int) -> Tensor:
    """Share of each of `cells` equal cells of [0, 1] that [start, stop] covers: (cells,) float64."""
    edges = torch.arange(cells + 1, dtype=torch.float64) / cells
    return (edges[1:].clamp(max=stop) - edges[:-1].clamp(min=start)).clamp(min=0) * cells


def averaging(pixels: int, cells: int) -> Tensor:
    """The matrix (cells, pixels) that averages pixels over cells, each pixel by the share it lies within."""
    edges = torch.arange(pixels + 1, dtype=torch.float64) / pixels
    low = torch.arange(cells, dtype=torch.float64)[:, None] / cells
    high = (torch.arange(cells, dtype=torch.float64)[:, None] + 1) / cells
    return (edges[1:].minimum(high) - edges[:-1].maximum(low)).clamp(min=0) * cells


def shown_part(image: Image.Image, area: Area | None) -> Image.Image:
    """The picture with everything outside the area transparent, so that it is neither seen nor read.

    image: RGB or RGBA. A mask has the picture's own size; pixels below one half of it are hidden.
    Raises PictureError.
    """
    if area is None:
        return image
    if area.mask is not None and area.mask.shape != (image.height, image.width):
        tall, wide = area.mask.shape
        raise PictureError(
            f"{area.name} is a mask of {wide}×{tall} pixels, its picture has {image.width}×{image.height}; "
            "give a mask of the picture's size, or a box in shares"
        )
    shown = area.covered(image.height, image.width).numpy()
    if not shown.any():
        raise PictureError(f"{area.name} hides all of its picture; show a part, or leave the picture out")
    image = image.convert("RGBA")
    alpha = np.where(shown, np.asarray(image.getchannel("A")), 0).astype(np.uint8)
    image.putalpha(Image.fromarray(alpha))
    return image
