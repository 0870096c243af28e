"""The reference as one more frame of a clip: the road of Cosmos-style in-context references.

    frame 0: the target, at the step's sigma      ┐  one sequence, everybody attends to everybody,
    frame 1: the reference, clean, at sigma 0     ┘  anew at every step

The reference's tokens see the noisy target, so what they say changes at every step: nothing can be kept.
"""

from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from snapref.anima.model import AnimaDiT


@dataclass(frozen=True)
class ExtraFrame:
    model: AnimaDiT
    reference: Tensor  # clean latent (1, 16, 1, h, w), of the target's size
    frame: int = 1  # where the reference stands in the clip: 1 after the target, 0 before it

    def clip(self, noisy: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the clip (b, 16, 2, h, w) and its sigmas (b, 2). Raises ValueError where sizes differ."""
        if self.reference.shape[-2:] != noisy.shape[-2:]:
            ours, theirs = ("×".join(map(str, x.shape[-2:])) for x in (self.reference, noisy))
            raise ValueError(
                f"the reference is {ours}, the target {theirs} latent pixels; frames of a clip are of one "
                "size: letterbox the picture to the target's"
            )
        frames = [noisy, self.reference.to(noisy).expand_as(noisy)]
        levels = [sigma, torch.zeros_like(sigma)]
        order = slice(None, None, 1 if self.frame else -1)
        return torch.cat(frames[order], dim=2), torch.stack(levels[order], dim=1)

    def velocity(self, noisy: Tensor, sigma: Tensor, context: Tensor, reads: bool = True) -> Tensor:
        """The target's frame of the clip's velocity; see `rivals.Route`."""
        if not reads:
            return self.model(noisy, sigma, context)
        both = self.model(*self.clip(noisy, sigma), context)
        target = 1 - self.frame
        return both[:, :, target : target + 1]


def letterboxed(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The whole picture at `size` = (height, width), scaled to fit, on white."""
    height, width = size
    scale = min(height / picture.height, width / picture.width)
    inside = picture.convert("RGB").resize(
        (round(picture.width * scale), round(picture.height * scale)), Image.Resampling.LANCZOS
    )
    sheet = Image.new("RGB", (width, height), "white")
    sheet.paste(inside, ((width - inside.width) // 2, (height - inside.height) // 2))
    return sheet
