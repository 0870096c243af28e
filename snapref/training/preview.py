"""The panel of a checkpoint: what it draws for a few held-out characters, always the same ones from the same noise."""

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from snapref.anima.model import AnimaDiT
from snapref.reference.branches import Adapter
from snapref.reference.encode import encode_reference
from snapref.sampling.denoiser import Denoiser
from snapref.sampling.samplers import sample
from snapref.sampling.schedule import sigmas
from snapref.sampling.settings import Settings
from snapref.training.unseen import Unseen

COLUMNS = ("reference", "right reference", "another's reference", "no reference", "true picture")
TITLE = 14  # pixels above the pictures
LEAST = 192  # pixels of a column's width: small pictures are enlarged


@torch.no_grad()
def draw_panel(
    dit: AnimaDiT, adapter: Adapter, codec, unseen: Unseen, rows: int = 3, steps: int | None = None, seed: int = 0
) -> Image.Image:
    """One row a character. steps: None for the model's default. Model and random state are left as they were."""
    unseen = Unseen(*(None if value is None else value[:rows] for value in vars(unseen).values()))
    unseen = unseen.to(next(dit.parameters()).device)
    drawn = {
        "right reference": draw(dit, adapter, unseen, unseen.reference, steps, seed),
        "another's reference": draw(dit, adapter, unseen, unseen.wrong, steps, seed),
        "no reference": draw(dit, adapter, unseen, None, steps, seed),
    }
    latents = {"reference": unseen.reference, **drawn, "true picture": unseen.latent}
    return panel([decoded(codec, latents[name]) for name in COLUMNS])


def draw(
    dit: AnimaDiT, adapter: Adapter, unseen: Unseen, references: Tensor | None, steps: int | None, seed: int
) -> Tensor:
    """Latents (n, 16, 1, h, w) by the sampler of `snapref generate`, at the model's own settings."""
    config, count = dit.config, len(unseen)
    guidance = config.default_guidance if unseen.empty is not None else 1.0
    settings = Settings(steps=steps, guidance=guidance, seed=seed).resolved(config)
    levels = sigmas(settings.schedule, settings.steps, config.shift)
    noise = torch.randn(unseen.latent.shape, generator=torch.Generator().manual_seed(seed)).to(unseen.latent.device)
    negative = unseen.context if unseen.empty is None else unseen.empty.expand(count, -1, -1)
    caches = [] if references is None else [
        encode_reference(dit, adapter, [references[i : i + 1]], unseen.reference_context[i : i + 1])
        for i in range(count)
    ]
    denoiser = Denoiser(
        dit, unseen.context.split(1), negative.split(1), settings, settings.steps, caches,
        adapter.target if caches else None,
    )
    with denoiser:
        return sample(denoiser, noise, levels, settings.sampler, seed=seed)


def decoded(codec, latents: Tensor) -> list[np.ndarray]:
    """uint8 pictures (H, W, 3)."""
    device = next(codec.parameters()).device
    pictures = torch.cat([codec.decode(latent[None].to(device).float()) for latent in latents])
    return list((pictures.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy())


def panel(columns: list[list[np.ndarray]]) -> Image.Image:
    """Columns of pictures side by side under their titles."""
    tiles = [[Image.fromarray(picture) for picture in column] for column in columns]
    zoom = max(1, round(LEAST / max(tile.width for column in tiles for tile in column)))
    tiles = [[tile.resize((tile.width * zoom, tile.height * zoom), Image.NEAREST) for tile in c] for c in tiles]
    width, height = (max(getattr(t, side) for column in tiles for t in column) for side in ("width", "height"))
    board = Image.new("RGB", (len(columns) * (width + 4) - 4, len(tiles[0]) * (height + 4) - 4 + TITLE), "white")
    pen = ImageDraw.Draw(board)
    for x, (title, column) in enumerate(zip(COLUMNS, tiles, strict=True)):
        pen.text((x * (width + 4) + 2, 1), title, fill="black")
        for y, tile in enumerate(column):
            board.paste(tile, (x * (width + 4), TITLE + y * (height + 4)))
    return board
