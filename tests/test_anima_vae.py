"""The published VAE behind our two calls: golden numbers, strict names, tiles without seams."""

import pytest
import torch
from anima_golden import apart, golden

pytest.importorskip("diffusers", reason="the VAE is diffusers' class: pip install diffusers")

from snapref.anima import vae as vae_module  # noqa: E402
from snapref.anima.offload import at_work, send_home  # noqa: E402
from snapref.anima.vae import QwenImageVAE  # noqa: E402
from snapref.files.keys import KeyMismatch, load_vae  # noqa: E402

CLOSE = 1e-5


@pytest.fixture(scope="module")
def vae():
    return load_vae(golden("tiny_vae_state_dict"), "tiny")


def test_golden(vae):
    io = golden("vae_io")
    pixels = io["image"].squeeze(2) / 2 + 0.5
    assert apart(vae.encode(pixels), io["encode_process_in"]) < CLOSE
    decoded = vae.decode(io["latent_model_space"])
    assert decoded.shape == (1, 3, 32, 48)
    assert apart(decoded, (io["decode"].squeeze(2) / 2 + 0.5).clamp(0, 1)) < CLOSE
    assert apart(vae.encode_one(io["image"]), io["encode_mu"]) < CLOSE
    assert apart(vae.decode_one(io["latent_raw"]), io["decode"]) < CLOSE


@pytest.mark.parametrize("size, tile", [((56, 4), 12), ((4, 56), 12), ((12, 10), 6)])
def test_tiles_are_the_whole(vae, size, tile):
    """Seams run both ways, tiles in the middle see neither edge, the last ones are cut short."""
    latent = torch.randn(1, 16, 1, *size, generator=torch.Generator().manual_seed(0))
    tiled = QwenImageVAE(vae.vae, whole_up_to=5_000, tile=tile)
    whole = vae.decode(latent)
    assert whole.std() > 0.05
    assert (tiled.decode(latent) - whole).abs().max() < 1e-6
    even = whole[..., : size[0] // 2 * 16, : size[1] // 2 * 16]
    assert (tiled.encode(even) - vae.encode(even)).abs().max() < 2e-6


def test_tiles_see_no_further_than_they_need(vae, monkeypatch):
    """With a margin below what the layers reach the tiles are no longer the whole: the comparison can fail."""
    latent = torch.randn(1, 16, 1, 32, 4, generator=torch.Generator().manual_seed(0))
    tiled = QwenImageVAE(vae.vae, whole_up_to=5_000, tile=8)
    monkeypatch.setattr(vae_module, "MARGIN", 4)
    assert (tiled.decode(latent) - vae.decode(latent)).abs().max() > 1e-6


@pytest.mark.parametrize("way", ["encode", "decode"])
def test_beyond_the_bound_no_layer_sees_a_larger_picture(vae, way):
    """Where the pixels are, memory stays that of one tile, however large the picture."""
    largest = {}
    for size in ((44, 4), (60, 4)):
        tiled, seen = QwenImageVAE(vae.vae, whole_up_to=5_000, tile=8), []
        inner = vae.vae.decoder.up_blocks if way == "decode" else vae.vae.encoder.down_blocks
        hooks = [
            layer.register_forward_hook(lambda module, inputs, out, seen=seen: seen.append(out.numel()))
            for layer in inner.modules()
            if not list(layer.children())
        ]
        if way == "decode":
            tiled.decode(torch.zeros(1, 16, 1, *size))
        else:
            tiled.encode(torch.zeros(1, 3, *(8 * side for side in size)))
        for hook in hooks:
            hook.remove()
        largest[size] = max(seen)
    assert largest[44, 4] == largest[60, 4]


def test_usual_pictures_are_worked_on_whole(vae):
    """1536 x 1536 is below the bound; a side of 4096 px is above it."""
    assert 1536 * 1536 <= vae.whole_up_to < 4096 * 1024
    calls = []
    vae.locally(lambda x: calls.append(x.shape) or x, torch.zeros(1, 1, 1, 192, 192), 1, 1)
    assert calls == [(1, 1, 1, 192, 192)]


def test_frames_and_rows_are_pictures_by_themselves(vae):
    latent = torch.randn(2, 16, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    together = vae.decode(latent)
    assert together.shape == (2, 3, 3, 32, 48)
    assert torch.equal(together[1, :, 2], vae.decode(latent[1:, :, 2:])[0])
    pixels = together[0].transpose(0, 1)
    assert torch.equal(vae.encode(pixels)[1:2], vae.encode(pixels[1:2]))


def test_half_precision_keeps_the_statistics(vae):
    latent = torch.randn(1, 16, 1, 4, 6, generator=torch.Generator().manual_seed(0))
    half = load_vae(golden("tiny_vae_state_dict"), "tiny").to(torch.bfloat16)
    assert torch.equal(half.statistics("cpu")[0], vae.statistics("cpu")[0])
    decoded = half.decode(latent)
    assert decoded.dtype == torch.float32
    assert (decoded - vae.decode(latent)).abs().mean() < 0.01


def test_strict_names():
    tensors = dict(golden("tiny_vae_state_dict"))
    prefixed = {f"first_stage_model.{name}": t for name, t in tensors.items()} | {"model.x": torch.zeros(1)}
    load_vae(prefixed, "all in one")
    load_vae(load_vae(tensors, "tiny").vae.state_dict(), "diffusers' own names")
    del tensors["decoder.conv1.bias"]
    with pytest.raises(
        KeyMismatch, match="broken.safetensors .*1 missing.*decoder.conv_in.bias.*1 unexpected.*extra"
    ):
        load_vae(tensors | {"extra": torch.zeros(1)}, "broken.safetensors")


def test_sizes(vae):
    with pytest.raises(ValueError, match="picture is 40x32 px; both sides must be multiples of 16"):
        vae.encode(torch.zeros(1, 3, 32, 40))
    assert vae.factor == 8


def test_layer_by_layer_from_a_16_bit_home_is_the_wide_one(vae):
    """Stored in bf16, computed in fp32 where each layer comes for its own call: the bits of the copy in fp32."""
    home = load_vae(golden("tiny_vae_state_dict"), "tiny").to(torch.bfloat16)
    wide = load_vae(golden("tiny_vae_state_dict"), "tiny").to(torch.bfloat16).float()
    send_home(home, torch.device("cpu"), torch.float32, by_layer=True)
    generator = torch.Generator().manual_seed(0)
    pixels, latent = (torch.rand(shape, generator=generator) for shape in ((1, 3, 32, 48), (1, 16, 1, 4, 6)))
    with at_work(home):
        assert torch.equal(home.encode(pixels), wide.encode(pixels))
        assert torch.equal(home.decode(latent), wide.decode(latent))
    assert {p.dtype for p in home.parameters()} == {torch.bfloat16}
