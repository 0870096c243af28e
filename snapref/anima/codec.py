"""nano's picture codec: 8 times smaller each way, 16 channels, behind the same two calls as the published VAE.

The published VAE spends most of its time at full resolution. This one folds 4x4 pixels into channels first and
works at a quarter and an eighth of the size, so that a CPU decodes a picture in milliseconds. Its decoder was
trained on latents with noise added: what a small diffusion model leaves undecided at the end of sampling is
then drawn as a plain shape, not as speckle.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snapref.config import CodecConfig


class ResBlock(nn.Module):
    """x + conv(silu(conv(silu(x)))), all at one resolution."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.silu(self.conv1(F.silu(x))))


class Encoder(nn.Sequential):
    def __init__(self, channels: int):
        super().__init__(
            nn.PixelUnshuffle(4),  # (b, 48, h/4, w/4)
            nn.Conv2d(48, 64, 3, padding=1),
            ResBlock(64),
            nn.Conv2d(64, 128, 3, stride=2, padding=1),  # (b, 128, h/8, w/8)
            ResBlock(128),
            nn.SiLU(),
            nn.Conv2d(128, channels, 1),
        )


class Decoder(nn.Sequential):
    def __init__(self, channels: int, width: int = 192):
        super().__init__(
            nn.Conv2d(channels, width, 3, padding=1),  # (b, 192, h/8, w/8)
            *(ResBlock(width) for _ in range(3)),
            nn.Conv2d(width, 4 * 64, 1),
            nn.PixelShuffle(2),  # (b, 64, h/4, w/4)
            ResBlock(64),
            ResBlock(64),
            nn.Conv2d(64, 4 * 32, 1),
            nn.PixelShuffle(2),  # (b, 32, h/2, w/2)
            ResBlock(32),
            nn.SiLU(),
            nn.Conv2d(32, 4 * 3, 3, padding=1),
            nn.PixelShuffle(2),  # (b, 3, h, w)
        )


class NanoCodec(nn.Module):
    """`encode` and `decode` with the shapes and ranges of `snapref.anima.vae`."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.factor = config.factor
        if config.factor != 8:
            raise ValueError(f"the nano codec shrinks by 8, not by {config.factor}")
        self.encoder = Encoder(config.latent_channels)
        self.decoder = Decoder(config.latent_channels)
        # Statistics of the encoder's output: the diffusion model and the decoder see zero mean, unit variance.
        self.register_buffer("mean", torch.zeros(config.latent_channels))
        self.register_buffer("std", torch.ones(config.latent_channels))
        self.to(memory_format=torch.channels_last)

    def encode(self, pixels: Tensor) -> Tensor:
        """Latents (b, 16, 1, h/8, w/8), normalised, of pixels (b, 3, h, w) in [0, 1]."""
        side = 2 * self.factor
        if pixels.shape[-2] % side or pixels.shape[-1] % side:
            size = f"{pixels.shape[-1]}x{pixels.shape[-2]}"
            raise ValueError(f"picture is {size} px; both sides must be multiples of {side}")
        return self.normalise(self.encoder(pixels * 2 - 1)).unsqueeze(2)

    def decode(self, latent: Tensor) -> Tensor:
        """Pixels (b, 3, h, w) in [0, 1] of latents (b, 16, 1, h/8, w/8); (b, 3, f, h, w) for f > 1 frames."""
        frames = latent.shape[2]
        flat = latent.transpose(1, 2).flatten(0, 1)  # (b*f, c, h, w)
        pixels = (self.decode_raw(flat) / 2 + 0.5).clamp(0, 1)
        if frames == 1:
            return pixels
        return pixels.unflatten(0, (-1, frames)).transpose(1, 2)

    def normalise(self, raw: Tensor) -> Tensor:
        return (raw - self.mean[:, None, None]) / self.std[:, None, None]

    def decode_raw(self, latent: Tensor) -> Tensor:
        """Decoder output, about [-1, 1] and not clamped, of normalised latents (b, 16, h, w)."""
        return self.decoder(latent.contiguous(memory_format=torch.channels_last))
