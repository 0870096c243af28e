"""Any picture a person may hand over → the pixels that the codec reads.

`load_picture` gives the colours a viewer shows; `to_pixels` brings the whole figure to a size the model
can take; `visible_tokens` says which tokens of that size show anything at all. What cannot be read is
refused with one sentence (`PictureError`): the value, the limit, the next step.
"""

import io
import math
import os
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError
from torch import Tensor

MIN_SIDE = 16  # one token of the published model
MAX_PIXELS = 64_000_000  # decoded, 256 MB; a file of a few kB can claim far more
ROUNDED_AWAY = 1 / 512  # beyond 0..1, less than half a step of 8 bits: what arithmetic leaves
MAX_ASPECT = 16  # longer strips are no pictures of anybody, and a side would shrink to a single token

_SHORT_INTEGER_MODES = {"I;16", "I;16L", "I;16B", "I;16N", "I"}


class PictureError(ValueError):
    """A picture that cannot be used, in one sentence that ends with what to do."""


def load_picture(source) -> Image.Image:
    """The picture as a viewer shows it: upright, sRGB, 8 bits; "RGB", or "RGBA" if any pixel is not opaque.

    source: a path, an open file or its bytes, a PIL image (its current frame), or a numpy array or tensor:
    (h, w), (h, w, c) or (c, h, w), with or without a leading 1, as uint8 in 0..255 or floats in 0..1.
    EXIF orientation, palettes, grey, 16 bits, CMYK and colour profiles are resolved; of an animation the
    first frame counts. Raises PictureError.
    """
    if isinstance(source, (np.ndarray, Tensor)):
        name, image = "the array", _from_array(source)
    elif isinstance(source, Image.Image):
        name, image = "the picture", source
    else:
        name, image = _open(source)
    _check_size(name, *image.size)
    try:
        image.load()
        return _screen_colours(upright(image))
    except PictureError:
        raise
    except Exception as error:  # a damaged file may fail inside any decoder, each with errors of its own
        raise PictureError(f"{name} is damaged ({error}); save it again or fetch it again") from error


def to_pixels(picture, size_step: int, megapixels: float | None = None) -> Tensor:
    """Pixels (1, 3, h, w), fp32 in [0, 1]: the whole picture on white, resized, never cropped.

    h and w are multiples of `size_step`, as near to the picture's own size and aspect as those allow, with
    h·w at most `megapixels` million (None: no cap). `picture` is anything that `load_picture` takes.
    """
    image = load_picture(picture)
    height, width = fitted_size(image.height, image.width, size_step, megapixels)
    if image.mode == "RGBA":
        # Before resizing: the colours hidden under full transparency must not bleed into the edges.
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image).convert("RGB")
    image = image.resize((width, height), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255


def visible_tokens(picture, size_step: int, megapixels: float | None = None) -> Tensor | None:
    """Which tokens show anything: bool (h / size_step · w / size_step,) in token order, None when all do.

    Sizes are those of `to_pixels` with the same arguments. A token counts as empty when every pixel under it
    is fully transparent; a picture without a single visible pixel is refused.
    """
    image = load_picture(picture)
    if image.mode != "RGBA":
        return None
    height, width = fitted_size(image.height, image.width, size_step, megapixels)
    visible = np.asarray(image.getchannel("A")) > 0
    if not visible.any():
        raise PictureError("the picture is transparent everywhere; use one that shows something")
    # Cells of the token grid as fractions of the picture: a token is kept if any source pixel in it shows.
    grid = torch.nn.functional.adaptive_max_pool2d(
        torch.from_numpy(visible)[None].float(), (height // size_step, width // size_step)
    )
    kept = grid.flatten() > 0
    return None if bool(kept.all()) else kept


def fitted_size(height: int, width: int, step: int, megapixels: float | None = None) -> tuple[int, int]:
    """(height, width) in multiples of `step`, nearest to the given size scaled into the cap.

    Nearest in aspect first and in area second, both as log ratios. Where not even the smallest neighbour fits
    under the cap (a side of one token), that one is given.
    """
    if megapixels is not None and not 0 < megapixels < math.inf:
        raise PictureError(f"ref_megapixels is {megapixels}; give a positive number or leave it out")
    cap = math.inf if megapixels is None else megapixels * 1e6
    scale = min(1.0, math.sqrt(cap / (height * width)))

    def neighbours(side: float) -> set[int]:
        below = max(1, math.floor(side / step + 1e-9))
        return {below * step, max(below, math.ceil(side / step - 1e-9)) * step}

    def distance(size: tuple[int, int]) -> float:
        taller, wider = math.log(size[0] / (height * scale)), math.log(size[1] / (width * scale))
        return 2 * abs(taller - wider) + abs(taller + wider)

    sizes = [(h, w) for h in neighbours(height * scale) for w in neighbours(width * scale)]
    fitting = [size for size in sizes if math.prod(size) <= cap * (1 + 1e-9)]
    return min(fitting, key=distance) if fitting else min(sizes, key=math.prod)


def _open(source) -> tuple[str, Image.Image]:
    """A name for messages and the still undecoded image of a path or of a file's bytes."""
    if hasattr(source, "read"):
        name, file = "the open file", io.BytesIO(_bytes_of(source))
    elif isinstance(source, (bytes, bytearray, memoryview)):
        name, file = f"the data of {len(source):,} bytes", io.BytesIO(source)
    elif isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not os.fspath(source):
            raise PictureError("the path of the picture is empty; give the path of a picture file")
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            raise PictureError(f"{str(source)!r} {what}; give the path of a picture file")
        name, file = repr(path.name), path
    else:
        raise PictureError(
            f"a {type(source).__name__} is no picture; give a path, bytes, a PIL image, an array or a tensor"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # _check_size is stricter
            return name, Image.open(file)
    except UnidentifiedImageError:
        raise PictureError(f"{name} is not a picture; give a PNG, JPEG, WebP, GIF or TIFF file") from None
    except Image.DecompressionBombError as error:
        raise PictureError(
            f"{name} has far more than the {MAX_PIXELS:,} pixels that are read ({error}); scale it down first"
        ) from None
    except Exception as error:  # see load_picture
        raise PictureError(f"{name} cannot be opened ({error}); save it again or fetch it again") from error


def _bytes_of(file) -> bytes:
    """All of an open file. Raises PictureError for one of text, and for one that is closed."""
    try:
        data = file.read()
    except (OSError, ValueError) as error:
        raise PictureError(f"the open file cannot be read ({error}); open it anew, in binary mode") from error
    if not isinstance(data, bytes):
        raise PictureError(f"the open file holds {type(data).__name__}, not bytes; open it in binary mode")
    return data


def upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF data say. Data that nobody can read turn nothing, as in a viewer."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Corrupt EXIF data")
            return ImageOps.exif_transpose(image)
    except Exception:  # the block may be cut anywhere; the pixels are decoded and fine
        return image


def _check_size(name: str, width: int, height: int) -> None:
    if min(height, width) < MIN_SIDE:
        raise PictureError(
            f"{name} is {width} px wide and {height} px high; at least {MIN_SIDE} each: use a larger picture"
        )
    if width * height > MAX_PIXELS:
        raise PictureError(
            f"{name} has {width * height:,} pixels ({width}×{height}); at most {MAX_PIXELS:,}: scale it down"
        )
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise PictureError(
            f"{name} is {width}×{height} pixels; a side may be at most {MAX_ASPECT} times the other: crop it"
        )


def _screen_colours(image: Image.Image) -> Image.Image:
    """Any PIL mode → "RGB", or "RGBA" when at least one pixel is not opaque."""
    if image.mode in _SHORT_INTEGER_MODES or image.mode == "F":
        image = _from_deep_grey(image)
    if image.mode in ("La", "RGBa"):  # premultiplied; only PIL itself makes these
        image = image.convert(image.mode.upper())
    image = _to_srgb(image)
    # convert() resolves palettes and the colour key ("transparency") that PNG and GIF may carry.
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if image.getextrema()[3][0] == 255:
            image = image.convert("RGB")
    if image.mode in ("RGB", "RGBA"):
        return image
    if image.mode == "LAB":
        raise PictureError("the picture is in LAB colours; save it as an RGB picture")
    return image.convert("RGB")


def _from_deep_grey(image: Image.Image) -> Image.Image:
    """16-bit or float grey → 8 bits. PIL's own convert() clips at 255 instead of scaling."""
    grey = np.asarray(image)
    limit, kind = (1.0, "float") if image.mode == "F" else (65_535, "16-bit")
    if not (np.isfinite(grey).all() and grey.min() >= 0 and grey.max() <= limit):
        raise PictureError(
            f"the {kind} grey picture holds values {grey.min()} to {grey.max()}; "
            f"at most 0 to {limit}: save it with 8 bits per channel"
        )
    small = Image.fromarray(np.round(grey.astype(np.float64) * (255 / limit)).astype(np.uint8))
    key = image.info.get("transparency")
    if isinstance(key, int):  # a PNG may name one grey value as transparent
        small.putalpha(Image.fromarray(np.where(grey == key, 0, 255).astype(np.uint8)))
    return small


def _to_srgb(image: Image.Image) -> Image.Image:
    """Through the embedded colour profile; one that does not fit is ignored. Viewers do both."""
    profile = image.info.get("icc_profile")
    if not profile or image.mode not in ("RGB", "CMYK", "L", "RGBA"):
        return image
    alpha = image.getchannel("A") if image.mode == "RGBA" else None
    key = image.info.get("transparency")
    if key is not None:  # a colour key names a colour before the profile: resolve it first
        alpha = image.convert("RGBA").getchannel("A")
    colours = image.convert("RGB") if image.mode == "RGBA" else image
    try:
        colours = ImageCms.profileToProfile(
            colours, io.BytesIO(profile), ImageCms.createProfile("sRGB"), outputMode="RGB"
        )
    except (ImageCms.PyCMSError, OSError, ValueError):
        return image
    if alpha is not None:
        colours.info.pop("transparency", None)
        colours.putalpha(alpha)
    return colours


def _from_array(array) -> Image.Image:
    """numpy or tensor → PIL. Sides have at least 16 pixels, so an axis of 1 to 4 can only be the channels."""
    if isinstance(array, Tensor):
        array = array.detach().cpu()
        array = array.to_dense() if array.layout != torch.strided else array
        array = (array.float() if array.is_floating_point() else array).numpy()
    shape = array.shape
    if array.ndim == 4 and shape[0] == 1:
        array = array[0]
    if array.ndim == 4:
        raise PictureError(f"an array of shape {shape} holds {shape[0]} pictures; give a list of single ones")
    if array.ndim == 3 and array.shape[-1] > 4 and array.shape[0] <= 4:
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or not 1 <= array.shape[-1] <= 4 or 0 in array.shape:
        raise PictureError(
            f"an array of shape {shape} is no picture; give (h, w), (h, w, c) or (c, h, w) with c from 1 to 4"
        )
    if array.dtype != np.uint8:
        array = _bytes_from_floats(array)
    return Image.fromarray(array[..., 0] if array.shape[-1] == 1 else np.ascontiguousarray(array))


def _bytes_from_floats(array: np.ndarray) -> np.ndarray:
    if not np.issubdtype(array.dtype, np.floating):
        raise PictureError(f"an array of {array.dtype} is ambiguous; give uint8 in 0..255 or floats in 0..1")
    if not np.isfinite(array).all():
        raise PictureError("the array holds NaN or infinite values; give floats in 0..1")
    if array.min() < -ROUNDED_AWAY or array.max() > 1 + ROUNDED_AWAY:
        raise PictureError(
            f"the array holds floats from {array.min():.4g} to {array.max():.4g}; "
            "bring them to 0..1 (divide by 255, or (x + 1) / 2), or give uint8"
        )
    return np.round(array.clip(0, 1) * 255).astype(np.uint8)
