"""The published VAE behind our two calls: golden numbers, strict names, tiles without seams."""

import pytest
import torch
from anima_golden import apart, golden

pytest.importorskip("diffusers", reason="the VAE is diffusers' class: pip install diffusers")

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


def test_tiles_are_the_whole(vae):
    generator = torch.Generator().manual_seed(0)
    latent = torch.randn(1, 16, 1, 40, 8, generator=generator)
    tiled = QwenImageVAE(vae.vae, whole_up_to=10_000, tile=8)
    whole = vae.decode(latent)
    assert (tiled.decode(latent) - whole).abs().max() < 1e-6
    assert (tiled.encode(whole) - vae.encode(whole)).abs().max() < 1e-6


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
