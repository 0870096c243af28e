"""Pictures to latents and back, through the published VAE as diffusers has it (specification section 4).

A frame is a picture by itself: the layers that look back in time, made for video, stay unused.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from snapref.anima.offload import dtype_of

# Pictures up to this area (1536 x 1536 and a little more) are worked on whole; beyond it in tiles, so that
# memory stops growing with the picture.
WHOLE_UP_TO = 2_400_000
TILE = 128  # latent pixels a side
# How far a tile looks beyond its edge, in latent pixels. The up path reaches 12.3, the down path 9.4: so many
# 3x3 convolutions at each resolution, added up. With 16 a tile is exactly the picture's own part, and no seam
# can be.
MARGIN = 16


class QwenImageVAE(nn.Module):
    """`encode` and `decode` between pixels in [0, 1] and the latents that the diffusion model works on.

    `vae` is a diffusers AutoencoderKLQwenImage with its weights; its latent statistics come from its config.
    """

    def __init__(self, vae, whole_up_to: int = WHOLE_UP_TO, tile: int = TILE):
        super().__init__()
        self.vae = vae
        self.factor = vae.spatial_compression_ratio
        self.whole_up_to, self.tile = whole_up_to, tile

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Normalised latents (b, 16, 1, h/8, w/8) fp32 of pixels (b, 3, h, w) in [0, 1]: means, no samples.

        Raises ValueError for a side that is no multiple of 16 px: a latent pixel is 8, a patch two of these.
        """
        side = 2 * self.factor
        height, width = pixels.shape[-2:]
        if height % side or width % side:
            raise ValueError(f"picture is {width}x{height} px; both sides must be multiples of {side}")
        pixels = (pixels * 2 - 1).unsqueeze(2).to(dtype_of(self))  # (b, 3, 1, h, w)
        mean = torch.cat([self.encode_one(picture) for picture in pixels.split(1)]).float()
        centre, spread = self.statistics(mean.device)
        return (mean - centre) / spread

    @torch.no_grad()
    def decode(self, latent: Tensor) -> Tensor:
        """Pixels (b, 3, h, w) in [0, 1] fp32 of normalised latents (b, 16, 1, h/8, w/8).

        f > 1 frames give (b, 3, f, h, w), each as if alone.
        """
        centre, spread = self.statistics(latent.device)
        raw = (latent.float() * spread + centre).to(dtype_of(self))
        frames = raw.transpose(1, 2).flatten(0, 1).unsqueeze(2)  # (b·f, 16, 1, h, w)
        decoded = torch.cat([self.decode_one(frame) for frame in frames.split(1)]).squeeze(2)
        pixels = (decoded.float() / 2 + 0.5).clamp(0, 1)  # (b·f, 3, H, W)
        return pixels if latent.shape[2] == 1 else pixels.unflatten(0, latent.shape[:3:2]).transpose(1, 2)

    def statistics(self, device) -> tuple[Tensor, Tensor]:
        """Mean and deviation of raw latents, (16, 1, 1, 1) fp32: as buffers they would turn bfloat16."""
        config = self.vae.config
        return tuple(
            torch.tensor(numbers, device=device)[:, None, None, None]
            for numbers in (config.latents_mean, config.latents_std)
        )

    def encode_one(self, pixels: Tensor) -> Tensor:
        """(1, 3, 1, h, w) → raw mean (1, 16, 1, h/8, w/8). Attention in the middle sees the whole picture."""
        encoder = self.vae.encoder

        def down(x: Tensor) -> Tensor:
            return through(encoder.down_blocks, encoder.conv_in(x))

        x = self.locally(down, pixels, self.factor, 1)
        x = encoder.conv_out(encoder.nonlinearity(encoder.norm_out(encoder.mid_block(x))))
        return self.vae.quant_conv(x).chunk(2, dim=1)[0]

    def decode_one(self, latent: Tensor) -> Tensor:
        """Raw latent (1, 16, 1, h, w) → (1, 3, 1, 8h, 8w), about [-1, 1]."""
        decoder = self.vae.decoder

        def up(x: Tensor) -> Tensor:
            x = through(decoder.up_blocks, x)
            return decoder.conv_out(decoder.nonlinearity(decoder.norm_out(x)))

        x = decoder.mid_block(decoder.conv_in(self.vae.post_quant_conv(latent)))
        return self.locally(up, x, 1, self.factor)

    def locally(self, step: Callable[[Tensor], Tensor], x: Tensor, before: int, after: int) -> Tensor:
        """step(x), in tiles where the picture is large. x: (1, c, 1, h, w).

        `before` and `after` are the pixels per latent pixel that step takes and gives.
        """
        height, width = (side // before for side in x.shape[-2:])
        if height * width * self.factor**2 <= self.whole_up_to:
            return step(x)
        rows = []
        for upper, lower, top, bottom in spans(height, self.tile):
            row = []
            for near, far, left, right in spans(width, self.tile):
                part = step(x[..., upper * before : lower * before, near * before : far * before])
                row.append(part[..., top * after : bottom * after, left * after : right * after])
            rows.append(torch.cat(row, dim=-1))
        return torch.cat(rows, dim=-2)


def through(layers, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def spans(length: int, tile: int) -> list[tuple[int, int, int, int]]:
    """Tiles along one side: (start, end) in the picture, with margin; (start, end) in the tile, without."""
    found = []
    for start in range(0, length, tile):
        end = min(start + tile, length)
        first = max(start - MARGIN, 0)
        found.append((first, min(end + MARGIN, length), start - first, end - first))
    return found
