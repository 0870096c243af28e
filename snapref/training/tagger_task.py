"""Training of the tagger that scores samples: rendered pictures, half of them through the codec with noise."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from snapref.files.weights import save_weights
from snapref.training.config import RunConfig
from snapref.training.draws import specimen
from snapref.training.frozen import FrozenParts
from snapref.training.loop import my_rows
from snapref.training.options import check_options
from snapref.training.tagger import Tagger, labels_of, tagging_loss


class TaggerStep(nn.Module):
    def __init__(self, tagger: Tagger):
        super().__init__()
        self.tagger = tagger

    def forward(self, pixels: Tensor, labels: dict[str, Tensor]) -> dict[str, Tensor]:
        loss, right = tagging_loss(self.tagger(pixels), labels)
        return {"loss": loss, "right": right.detach()}


class TaggerTask:
    """The codec's blur is in half the pictures, or the tagger would mark it as a wrong attribute."""

    def __init__(self, config: RunConfig):
        check_options(config)
        torch.manual_seed(config.seed)
        self.config = config
        self.codec = FrozenParts(config.options["weights"]).codec
        self.model = TaggerStep(Tagger())

    def batch(self, step: int, rank: int, world: int) -> dict[str, Tensor]:
        config = self.config
        rows = my_rows(config.batch, rank, world)
        found = [specimen("portrait", config.seed, step * config.batch + i, "any") for i in range(config.batch)[rows]]
        frames = np.stack([f.pictures()[0] for f in found])
        pixels = torch.from_numpy(frames).permute(0, 3, 1, 2).float() / 255
        labels = [labels_of(f.people[0], f.scene) for f in found]

        generator = torch.Generator().manual_seed((config.seed * 1_000_003 + step) * 64 + rank)
        half = len(found) // 2
        with torch.no_grad():
            latent = self.codec.encode(pixels[:half])
            amount = torch.rand(half, 1, 1, 1, 1, generator=generator) * config.options["noise"]
            pixels[:half] = self.codec.decode(latent + amount * torch.randn(latent.shape, generator=generator))
        return {"pixels": pixels, "labels": {k: torch.tensor([row[k] for row in labels]) for k in labels[0]}}

    def export(self, model: TaggerStep, path: Path) -> None:
        save_weights(model.tagger.state_dict(), path)
