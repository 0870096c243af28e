"""Training of nano's codec: encoder and decoder together, with noise on the latents in between.

The noise does two things. The encoder learns to put what matters (shapes, colours) where noise cannot reach it,
so a small diffusion model has less to get exactly right; the decoder learns to draw a clean picture from a
latent that is a little wrong.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snapref.anima.codec import NanoCodec
from snapref.config import NANO
from snapref.files.loader import load_codec
from snapref.files.weights import save_weights
from snapref.training.config import RunConfig
from snapref.training.draws import draw, kind_of
from snapref.training.loop import my_rows
from snapref.training.options import check_options


class CodecStep(nn.Module):
    """Reconstruction loss of a batch of crops (b, 3, h, w) in [0, 1]."""

    def __init__(self, codec: NanoCodec, freeze_encoder: bool):
        super().__init__()
        self.codec = codec
        self.freeze_encoder = freeze_encoder
        codec.encoder.requires_grad_(not freeze_encoder)

    def forward(self, pixels: Tensor, noise: Tensor, amount: Tensor) -> dict[str, Tensor]:
        codec, target = self.codec, pixels * 2 - 1
        with torch.set_grad_enabled(not self.freeze_encoder):
            raw = codec.encoder(target)
        if not self.freeze_encoder:
            self._follow(raw.detach())
        # Running statistics, not the batch's own: those would shift with the batch and blur every flat colour.
        latent = codec.normalise(raw)
        drawn = codec.decode_raw(latent + amount[:, None, None, None] * noise)
        flat = F.l1_loss(drawn, target)
        edges = sum(F.l1_loss(drawn.diff(dim=d), target.diff(dim=d)) for d in (2, 3))  # outlines stay crisp
        spread = (latent.square().mean(dim=(0, 2, 3)) - 1).square().mean()  # keeps the statistics from running away
        clean = amount == 0
        error = (drawn[clean].clamp(-1, 1) - target[clean]).square().mean() / 4  # in [0, 1] units
        return {"loss": flat + 0.5 * edges + 0.01 * spread, "psnr": -10 * torch.log10(error.detach() + 1e-9)}

    @torch.no_grad()
    def _follow(self, raw: Tensor) -> None:
        """Running statistics of the encoder's output, which encode() uses afterwards."""
        std, mean = torch.std_mean(raw, dim=(0, 2, 3))
        self.codec.mean.lerp_(mean, 0.01)
        self.codec.std.lerp_(std, 0.01)


class CodecTask:
    """Crops of drawn pictures; half of them pass clean, half with up to `options.noise` of noise."""

    def __init__(self, config: RunConfig):
        check_options(config)
        torch.manual_seed(config.seed)
        if start := config.options.get("init"):
            codec = load_codec(start, NANO.codec, torch.float32).train().requires_grad_(True)
        else:
            codec = NanoCodec(NANO.codec)
        self.model = CodecStep(codec, config.options.get("freeze_encoder", False))
        self.config = config

    def batch(self, step: int, rank: int, world: int) -> dict[str, Tensor]:
        config, crop, rows = self.config, self.config.options.get("crop", 64), my_rows(self.config.batch, rank, world)
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        noise = torch.randn(config.batch, NANO.codec.latent_channels, crop // 8, crop // 8, generator=generator)
        amount = torch.rand(config.batch, generator=generator) * config.options.get("noise", 0.5)
        amount[::2] = 0
        corner = torch.rand(config.batch, 2, generator=generator)
        crops = []
        for i in range(config.batch)[rows]:
            if i % 2 == 0 or not crops:  # two crops of each picture
                index = step * config.batch + i - i % 2
                image = torch.from_numpy(draw(kind_of(index), config.seed, index).frames[0]).permute(2, 0, 1)
            y, x = (int(c * (side - crop + 1)) for c, side in zip(corner[i].tolist(), image.shape[1:], strict=True))
            crops.append(image[:, y : y + crop, x : x + crop])
        pixels = torch.stack(crops).float() / 255
        return {"pixels": pixels, "noise": noise[rows], "amount": amount[rows]}

    def export(self, model: CodecStep, path: Path) -> None:
        save_weights(model.codec.state_dict(), path)
