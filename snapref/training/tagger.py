"""A small classifier that reads a drawn picture's tags back, so that samples can be scored.

It was trained on rendered pictures and on what nano's codec makes of them with noise on the latents, never on
samples; its accuracy on rendered held-out characters is the ceiling of every score.
"""

from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snapref.anima.codec import ResBlock
from snapref.files.loader import build, read_tensors
from snapref.files.nano import nano_file
from snapref.world import IDENTITY, SCENE

WHITE_FLOOR = ("floor drawn", "white floor")


class Tagger(nn.Module):
    """One head per attribute over one small convolutional trunk. Portrait pictures (128 x 96) only."""

    ATTRIBUTES = (*IDENTITY, "background", "pose", "expression", "framing", "white_floor")
    CHOICES = {
        **IDENTITY,
        **{name: SCENE[name] for name in ("background", "pose", "expression", "framing")},
        "white_floor": WHITE_FLOOR,
    }

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.PixelUnshuffle(4),  # (b, 48, 32, 24)
            nn.Conv2d(48, 40, 3, padding=1),
            ResBlock(40),
            nn.Conv2d(40, 80, 3, stride=2, padding=1),  # (b, 80, 16, 12)
            ResBlock(80),
            nn.Conv2d(80, 128, 3, stride=2, padding=1),  # (b, 128, 8, 6)
            ResBlock(128),
            nn.SiLU(),
            nn.Conv2d(128, 48, 1),
            nn.Flatten(),
            nn.Linear(48 * 8 * 6, 256),
            nn.SiLU(),
            nn.Dropout(0.2),
        )
        self.heads = nn.ModuleDict({name: nn.Linear(256, len(self.CHOICES[name])) for name in self.ATTRIBUTES})
        self.to(memory_format=torch.channels_last)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """Logits (b, choices) per attribute of pixels (b, 3, 128, 96) in [0, 1]."""
        if pixels.shape[-2:] != (128, 96):
            raise ValueError(f"picture is {pixels.shape[-1]}x{pixels.shape[-2]} px; the tagger reads 96x128")
        features = self.trunk((pixels * 2 - 1).contiguous(memory_format=torch.channels_last))
        return {name: head(features) for name, head in self.heads.items()}

    @torch.no_grad()
    def confidence(self, pixels: Tensor) -> Tensor:
        """(b,) how sure the tagger is of what it reads: the mean over attributes of the likeliest value's share."""
        return torch.stack([logits.softmax(1).amax(1) for logits in self(pixels).values()]).mean(0)

    @torch.no_grad()
    def read(self, pixels: Tensor) -> list[dict[str, str | None]]:
        """The likeliest value of every attribute, per picture; None is the value of an absent accessory or detail."""
        best = {name: logits.argmax(1).tolist() for name, logits in self(pixels).items()}
        return [{name: self.CHOICES[name][best[name][i]] for name in best} for i in range(len(pixels))]


@lru_cache(maxsize=2)
def load_tagger(folder: str | Path | None = None) -> Tagger:
    """The shipped tagger, in evaluation mode. Raises WeightsError where its file is missing."""
    path = nano_file("tagger.safetensors", folder)
    return build(Tagger, read_tensors(path), path, torch.float32)


def labels_of(person, where) -> dict[str, int]:
    """Index of the true value per attribute; -1 where the picture does not show it."""
    truth = {name: getattr(person, name) for name in IDENTITY}
    truth |= {name: getattr(where, name) for name in ("background", "pose", "expression", "framing")}
    truth["white_floor"] = WHITE_FLOOR[where.white_floor]
    labels = {name: Tagger.CHOICES[name].index(value) for name, value in truth.items()}
    if where.expression == "closed eyes" or where.blink:
        labels["eye_colour"] = -1
    if where.framing != "full body":
        labels["white_floor"] = -1
    return labels


def tagging_loss(logits: dict[str, Tensor], labels: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(mean cross-entropy, share right) over attributes; labels of -1 are left out."""
    losses, right = [], []
    for name, scores in logits.items():
        shown = labels[name] >= 0
        if shown.any():
            losses.append(F.cross_entropy(scores[shown], labels[name][shown]))
            right.append((scores[shown].argmax(1) == labels[name][shown]).float().mean())
    return torch.stack(losses).mean(), torch.stack(right).mean()
