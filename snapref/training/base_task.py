"""Training of nano's base model, DiT and LLM adapter together, on the drawn world."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from snapref.anima.init import initialise
from snapref.anima.model import AnimaDiT
from snapref.anima.text import contexts
from snapref.config import NANO
from snapref.files.loader import load_model
from snapref.files.weights import save_weights
from snapref.training.chunks import Chunks
from snapref.training.config import RunConfig
from snapref.training.flow import add_noise, draw_sigmas, velocity_loss
from snapref.training.frozen import FrozenParts
from snapref.training.loop import my_rows
from snapref.training.options import check_options

EMPTY_SHARE = 0.1  # of captions replaced by the empty prompt, which guidance needs
CLEAN_FIRST_SHARE = 0.5  # of clips whose first frame is given clean, as a video model's conditioning frame

# At 48 tokens the plain attention kernel is faster backwards than the fused one on a CPU.
KERNELS = {
    "cpu": [SDPBackend.MATH],
    "cuda": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
}


class FlowStep(nn.Module):
    """The flow-matching loss of a batch, with its means at low, middle and high sigma."""

    def __init__(self, dit: AnimaDiT):
        super().__init__()
        self.dit = dit

    def forward(self, latent, noise, sigma, learn, ids, ids_mask, source, source_mask) -> dict[str, Tensor]:
        rows = self.dit.config.text.context_rows
        with sdpa_kernel(KERNELS[latent.device.type]):
            context = contexts(self.dit.llm_adapter, ids, ids_mask, source, source_mask, rows)
            velocity = self.dit(add_noise(latent, noise, sigma), sigma, context)
        losses = velocity_loss(velocity.float(), latent, noise, learn)
        return {"loss": losses.mean(), **by_sigma(losses.detach(), sigma.amax(1))}


def by_sigma(losses: Tensor, sigma: Tensor) -> dict[str, Tensor]:
    """Mean loss below 0.3, up to 0.7, and above: a mean over all sigmas hides speckle."""
    bounds = {"low": (0.0, 0.3), "mid": (0.3, 0.7), "high": (0.7, 1.01)}
    inside = {name: ((sigma >= a) & (sigma < b)).float() for name, (a, b) in bounds.items()}
    return {name: (losses * m).sum() / m.sum().clamp(min=1) for name, m in inside.items()}


class BaseTask:
    def __init__(self, config: RunConfig):
        check_options(config)
        self.config, options = config, config.options
        self.parts = FrozenParts(options["weights"])
        self.chunks = Chunks(self.parts, options["kinds"], config.batch, options["passes"], config.seed, "train")
        self.empty = self.parts.text([""])
        if start := options.get("init"):
            dit = load_model(start, NANO, torch.float32).train().requires_grad_(True)
        else:
            dit = initialise(AnimaDiT(NANO), torch.Generator().manual_seed(config.seed))
        self.model = FlowStep(dit)

    def batch(self, step: int, rank: int, world: int) -> dict[str, Tensor]:
        kind, column = self.chunks.column(step, rank, world)
        count = self.chunks.rows_of(kind)
        rows = my_rows(count, rank, world)
        frames = column["latent"].shape[2]
        generator = torch.Generator().manual_seed((self.config.seed + 1) * 1_000_003 + step)
        shape = (count, *column["latent"].shape[1:])
        noise = torch.randn(shape, generator=generator)[rows]
        sigma = draw_sigmas(count, self.config.options["shift"], generator, self.config.options["spread"])
        sigma = sigma[:, None].repeat(1, frames)
        if frames > 1:
            sigma[torch.rand(count, generator=generator) < CLEAN_FIRST_SHARE, 0] = 0.0
        sigma = sigma[rows]
        text = {k: column[k] for k in ("ids", "ids_mask", "source", "source_mask")}
        dropped = torch.rand(count, generator=generator)[rows] < EMPTY_SHARE
        return {"latent": column["latent"], "noise": noise, "sigma": sigma, "learn": (sigma > 0).float(),
                **self.without_text(text, dropped)}

    def without_text(self, text: dict[str, Tensor], dropped: Tensor) -> dict[str, Tensor]:
        """The text of a batch with the `dropped` rows (b,) made the empty prompt."""
        text = {k: v.clone() for k, v in text.items()}
        for name, value in text.items():
            if name.endswith("_mask"):
                value[dropped] = False
            value[dropped, :1] = self.empty[name][:, :1]
        return text

    def export(self, model: FlowStep, path: Path) -> None:
        save_weights({f"net.{k}": v for k, v in model.dit.state_dict().items()}, path)
