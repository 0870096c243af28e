"""Pictures in: the colours a viewer shows, the whole figure, or one clear sentence."""

import io
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from snapref.reference.picture import (
    MAX_PIXELS,
    PictureError,
    fitted_size,
    load_picture,
    to_pixels,
    visible_tokens,
)

RED, GREEN = (200, 30, 40), (20, 180, 60)


def two_tone(height=32, width=48) -> Image.Image:
    """Left half red, right half green: shows at once a mirrored, turned or cropped picture."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(GREEN, (width // 2, 0, width, height))
    return image


def saved(image, format, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def colours(image) -> tuple:
    """The colours left and right of the middle."""
    array = np.asarray(image.convert("RGB")).astype(int)
    middle = array.shape[0] // 2
    return tuple(array[middle, array.shape[1] // 4]), tuple(array[middle, -array.shape[1] // 4])


def close(found, wanted, tolerance=2):
    return np.abs(np.subtract(found, wanted)).max() <= tolerance


@pytest.mark.parametrize(
    "format, options, tolerance",
    [
        ("PNG", {}, 0),
        ("BMP", {}, 0),
        ("TIFF", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("JPEG", {"quality": 98}, 6),
    ],
)
def test_ordinary_files(tmp_path, format, options, tolerance):
    data = saved(two_tone(), format, **options)
    path = tmp_path / "picture.txt"  # a wrong extension does not matter
    path.write_bytes(data)
    for source in (data, bytearray(data), memoryview(data), path, str(path), Image.open(path)):
        image = load_picture(source)
        assert (image.mode, image.size) == ("RGB", (48, 32))
        assert close(colours(image), (RED, GREEN), tolerance)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_comes_upright(orientation):
    """Store the picture turned the way a camera would, and get the upright one back."""
    undo = {  # the transposition that a viewer applies is the inverse of the one stored
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    upright = two_tone()
    upright.paste((0, 0, 0), (0, 0, 24, 8))  # a black bar top left makes all eight distinct
    stored = upright.transpose(undo[orientation]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(load_picture(saved(stored, "PNG", exif=exif)), upright)
    photograph = load_picture(saved(stored, "JPEG", exif=exif, quality=98))
    assert photograph.size == upright.size
    assert np.abs(np.asarray(photograph).astype(int) - np.asarray(upright)).mean() < 6


@pytest.mark.parametrize("block", [
    b"Exif\x00\x00garbage", b"Exif\x00\x00XX*\x00\x08\x00\x00\x00", b"\x00",
    b"Exif\x00\x00II*\x00\x08\x00\x00\x00\xff\xff" + b"\x12\x01\xff\xff" * 4,
])  # fmt: skip
def test_a_damaged_exif_block_turns_nothing_and_hides_nothing(block):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert close(colours(load_picture(saved(two_tone(), "PNG", exif=block))), (RED, GREEN), 0)


def test_open_files_and_their_bytes_are_the_picture(tmp_path):
    data = saved(two_tone(), "PNG")
    (tmp_path / "a.png").write_bytes(data)
    with open(tmp_path / "a.png", "rb") as file:
        for source in (io.BytesIO(data), file, data):
            assert close(colours(load_picture(source)), (RED, GREEN), 0)
    with pytest.raises(PictureError, match="the open file cannot be read .*; open it anew, in binary mode"):
        load_picture(file)  # closed


def test_what_arithmetic_leaves_beyond_the_range_is_rounded_away():
    exact = np.linspace(0, 1, 16 * 16 * 3, dtype=np.float32).reshape(16, 16, 3)
    for off in (1e-7, 1e-3):
        found = np.asarray(load_picture(exact * (1 + 2 * off) - off)).astype(int)
        assert (found.min(), found.max()) == (0, 255) and np.abs(found - 255 * exact).max() < 1
    with pytest.raises(PictureError, match="the array holds floats from -0.01 to 1"):
        load_picture(np.where(exact == 0, np.float32(-0.01), exact))


def test_a_sparse_tensor_is_its_picture():
    dense = torch.zeros(3, 16, 16)
    dense[0, 4] = 1
    assert load_picture(dense.to_sparse()).tobytes() == load_picture(dense).tobytes()


def test_alpha_goes_onto_white_and_hidden_colours_stay_hidden():
    image = two_tone().convert("RGBA")
    image.putalpha(Image.new("L", image.size, 255))
    assert load_picture(image).mode == "RGB"  # an opaque alpha channel is none
    alpha = Image.new("L", image.size, 255)
    alpha.paste(0, (0, 0, 16, 32))  # red, but invisible
    alpha.paste(128, (16, 0, 24, 32))
    image.putalpha(alpha)
    pixels = to_pixels(image, 16)
    assert pixels.shape == (1, 3, 32, 48)
    assert torch.equal(pixels[0, :, :, :16], torch.ones(3, 32, 16))
    half = 1 - (1 - torch.tensor(RED) / 255) * 128 / 255
    assert (pixels[0, :, 8, 20] - half).abs().max() < 0.01
    assert visible_tokens(image, 16).tolist() == [False, True, True] * 2
    assert visible_tokens(two_tone(), 16) is None


def test_one_visible_pixel_keeps_its_token():
    image = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    with pytest.raises(PictureError, match="transparent everywhere"):
        visible_tokens(image, 16)
    image.putpixel((40, 20), (9, 9, 9, 1))
    kept = visible_tokens(image, 16, megapixels=32 * 32 / 1e6)  # a 2×2 grid
    assert kept.tolist() == [False, True, False, False]


def test_palettes_with_and_without_transparency():
    palette = two_tone().quantize(4)
    assert close(colours(load_picture(saved(palette, "PNG"))), (RED, GREEN))
    assert close(colours(load_picture(saved(palette, "GIF"))), (RED, GREEN))
    hidden = palette.getpixel((0, 0))
    image = load_picture(saved(palette, "PNG", transparency=hidden))
    assert image.mode == "RGBA"
    assert visible_tokens(image, 16).tolist() == [False, True, True] * 2  # the middle token is half green
    keyed = load_picture(saved(two_tone(), "PNG", transparency=RED))  # an RGB colour key
    assert close(
        colours(Image.fromarray((to_pixels(keyed, 16)[0] * 255).byte().permute(1, 2, 0).numpy())),
        ((255,) * 3, GREEN),
    )


def test_grey_in_every_depth():
    ramp = np.tile(np.linspace(0, 65_535, 48).astype(np.uint16), (32, 1))
    wanted = ramp / 65_535
    for data in (saved(Image.fromarray(ramp), "PNG"), saved(Image.fromarray(ramp), "TIFF")):
        assert np.abs(to_pixels(data, 16)[0, 1].numpy() - wanted).max() < 0.003
    for image in (Image.fromarray(ramp.astype(np.int32)), Image.fromarray(wanted.astype(np.float32))):
        assert np.abs(to_pixels(image, 16)[0, 2].numpy() - wanted).max() < 0.003
    grey = Image.fromarray((wanted * 255).round().astype(np.uint8))
    assert np.abs(to_pixels(saved(grey, "PNG"), 16)[0, 0].numpy() - wanted).max() < 0.003
    pale = grey.copy()
    pale.putalpha(0)
    assert load_picture(saved(pale, "PNG")).mode == "RGBA"
    assert set(np.unique(load_picture(grey.convert("1")))) == {0, 255}
    key = int(ramp[0, 0])
    assert load_picture(saved(Image.fromarray(ramp), "PNG", transparency=key)).getpixel((0, 0))[3] == 0
    with pytest.raises(PictureError, match="16-bit grey picture holds values .*70000.* save it with 8 bits"):
        load_picture(Image.fromarray(np.full((20, 20), 70_000, np.int32)))


def test_grey_with_alpha_shows_its_grey_on_white():
    grey = Image.new("LA", (32, 32), (80, 255))
    grey.paste((80, 0), (0, 0, 16, 32))
    for data in (saved(grey, "PNG"), grey, grey.convert("La")):
        pixels = to_pixels(data, 16)[0, :, 8]
        assert torch.equal(pixels[:, 4], torch.ones(3)) and (pixels[:, 28] * 255 - 80).abs().max() < 1.5
        assert visible_tokens(data, 16).tolist() == [False, True] * 2


def test_colours_hidden_under_alpha_change_nothing():
    """Not at the edge either, where resizing mixes neighbours."""
    images = []
    for hidden in ((255, 0, 255, 0), (0, 0, 0, 0)):
        image = two_tone(80, 80).convert("RGBA")
        image.paste(hidden, (20, 10, 70, 75))
        images.append(saved(image, "PNG"))
    one, other = (to_pixels(image, 16, 0.0011) for image in images)
    assert one.shape == (1, 3, 32, 32) and torch.equal(one, other)


def test_cmyk_and_a_colour_profile():
    for format, tolerance in (("TIFF", 0), ("JPEG", 6)):
        data = saved(two_tone().convert("CMYK"), format)
        assert Image.open(io.BytesIO(data)).mode == "CMYK"
        assert close(colours(load_picture(data)), (RED, GREEN), tolerance + 2)
    # In a profile equal to sRGB nothing changes; a profile that does not fit is ignored.
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert close(colours(load_picture(saved(two_tone(), "PNG", icc_profile=srgb))), (RED, GREEN))
    assert close(colours(load_picture(saved(two_tone(), "PNG", icc_profile=b"no profile"))), (RED, GREEN))
    swapped = two_tone().convert("RGBA")
    swapped.putalpha(90)
    assert load_picture(saved(swapped, "PNG", icc_profile=srgb)).getpixel((0, 0))[3] == 90


def test_the_first_frame_of_an_animation():
    other = Image.new("RGB", (48, 32), "blue")
    for format in ("GIF", "WEBP", "PNG"):
        options = {"lossless": True} if format == "WEBP" else {}
        data = saved(two_tone(), format, save_all=True, append_images=[other], **options)
        assert close(colours(load_picture(data)), (RED, GREEN))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.float64, torch.bfloat16])
def test_arrays_and_tensors_in_every_layout(dtype):
    wanted = np.asarray(two_tone())
    pixels = torch.from_numpy(wanted.copy())
    values = pixels if dtype is torch.uint8 else (pixels / 255).to(dtype)
    layouts = [values, values[None], values.permute(2, 0, 1), values.permute(2, 0, 1)[None]]
    if dtype is not torch.bfloat16:
        layouts += [layout.numpy() for layout in layouts]
    for layout in layouts:
        assert close(load_picture(layout), wanted, 1)
    grey = load_picture(values[..., 0])
    assert close(colours(grey), ((200,) * 3, (20,) * 3), 1)
    with_alpha = torch.cat([values, torch.zeros_like(values[..., :1])], -1)
    assert load_picture(with_alpha).mode == "RGBA"
    assert torch.equal(to_pixels(with_alpha, 16), torch.ones(1, 3, 32, 48))


@pytest.mark.parametrize(
    "array, message",
    [
        (np.full((20, 20, 3), 128.0), r"floats from 128 to 128.*divide by 255"),
        (np.full((20, 20, 3), -1.0), r"\(x \+ 1\) / 2"),
        (np.full((20, 20, 3), np.nan), "NaN"),
        (np.full((20, 20, 3), 3, np.int64), "int64 is ambiguous"),
        (np.full((20, 20, 3), 3, np.uint16), "uint16 is ambiguous"),
        (np.zeros((2, 20, 20, 3)), "holds 2 pictures"),
        (np.zeros((20, 20, 20)), r"shape \(20, 20, 20\) is no picture"),
        (np.zeros(20), r"shape \(20,\) is no picture"),
        (np.zeros((0, 20, 3)), "is no picture"),
        (np.zeros((7, 7, 3)), "7 px wide and 7 px high; at least 16"),
        (torch.full((1, 3, 20, 20), 2.0), "floats from 2 to 2"),
    ],
)
def test_arrays_that_are_refused(array, message):
    with pytest.raises(PictureError, match=message):
        load_picture(array)


def test_files_that_are_refused(tmp_path):
    png = saved(Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)), "PNG")
    jpeg = saved(two_tone(512, 512), "JPEG")
    cases = [
        (png[:2000], "is damaged .*fetch it again"),
        (jpeg[:300], "is damaged|cannot be opened"),
        (png[:20], "cannot be opened|is not a picture|is damaged"),
        (b"", "is not a picture"),
        (b"<html>not here</html>", "is not a picture; give a PNG"),
        (tmp_path, "is a folder"),
        (tmp_path / "none.png", "does not exist; give the path"),
        (7, "a int is no picture; give a path"),
        (None, "a NoneType is no picture"),
        (saved(Image.new("RGB", (7, 7)), "PNG"), "7 px wide and 7 px high; at least 16"),
        (saved(Image.new("RGB", (20_000, 10)), "PNG"), "20000 px wide and 10 px high"),
        (saved(Image.new("RGB", (20_000, 16)), "PNG"), "20000×16 pixels; a side may be at most 16"),
        (saved(Image.new("1", (9_000, 9_000)), "PNG"), f"81,000,000 pixels .* at most {MAX_PIXELS:,}"),
        (saved(Image.new("1", (20_000, 20_000)), "PNG"), "scale it down first"),
    ]
    for source, message in cases:
        with pytest.raises(PictureError, match=message) as caught:
            load_picture(source)
        assert "\n" not in str(caught.value)


@given(
    st.integers(16, 4000),
    st.integers(16, 4000),
    st.sampled_from([8, 16]),
    st.one_of(st.none(), st.floats(0.0005, 4)),
)
@settings(max_examples=200, deadline=None)
def test_sizes_are_multiples_under_the_cap_and_near(height, width, step, megapixels):
    h, w = fitted_size(height, width, step, megapixels)
    assert h % step == 0 and w % step == 0 and min(h, w) >= step
    if megapixels is not None and min(h, w) > step:
        assert h * w <= megapixels * 1e6 * (1 + 1e-9)
    scale = min(1.0, ((megapixels or 1e9) * 1e6 / (height * width)) ** 0.5)
    if min(height, width) * scale >= step:
        assert abs(h - height * scale) < step + 1e-6 and abs(w - width * scale) < step + 1e-6


def test_sizes_a_reader_can_check():
    assert fitted_size(1216, 832, 16) == (1216, 832)
    assert fitted_size(1216, 832, 16, 0.012288) == (128, 96)  # nano's own size
    assert fitted_size(128, 96, 16, 0.012288) == (128, 96)
    assert fitted_size(2000, 2000, 16, 1.0) == (992, 992)
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(PictureError, match="ref_megapixels is"):
            fitted_size(64, 64, 16, wrong)


def test_the_whole_figure_stays():
    """Corner marks survive the resize: nothing was cropped."""
    image = Image.new("RGB", (500, 300), "white")
    for x in (0, 460):
        for y in (0, 260):
            image.paste((0, 0, 0), (x, y, x + 40, y + 40))
    pixels = to_pixels(image, 16, 0.012288)[0, 0]
    assert max(pixels[y, x] for y in (1, -2) for x in (1, -2)) < 0.2
    assert pixels.min() >= 0 and pixels.max() <= 1
