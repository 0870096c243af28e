"""Our forward against diffusers', on the same weights: how long each takes, and that they agree."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from snapref.anima.init import initialise
from snapref.anima.model import AnimaDiT
from snapref.config import NANO, DiTConfig, ModelConfig
from snapref.files.keys import load_strict, split_for_diffusers

# Large enough that matrix products count as they do in the real model, small enough for a minute on two cores.
MEDIUM = ModelConfig(
    name="bench",
    dit=DiTConfig(width=768, heads=6, blocks=4, context_width=512, adaln_rank=96),
    text=None,
    codec=NANO.codec,
    default_size=(384, 384),
    default_steps=1,
    default_guidance=1.0,
)


@dataclass(frozen=True)
class ForwardBench:
    """Milliseconds are medians; ratio = ours / diffusers', round by round, with its quartiles."""

    ours_ms: float
    diffusers_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int
    largest_difference: float  # between the two outputs, relative to the largest value
    width: int
    blocks: int
    tokens: int
    threads: int

    def __str__(self) -> str:
        return (
            f"{self.blocks} blocks of width {self.width}, {self.tokens} tokens, {self.threads} threads: "
            f"ours {self.ours_ms:.1f} ms, diffusers {self.diffusers_ms:.1f} ms, "
            f"ratio {self.ratio:.3f} (quartiles {self.ratio_low:.3f} to {self.ratio_high:.3f}, "
            f"{self.rounds} rounds), outputs differ by {self.largest_difference:.1e}"
        )


def diffusers_twin(model: AnimaDiT) -> nn.Module:
    """diffusers' CosmosTransformer3DModel with the same weights, not copied (specification section 8)."""
    from diffusers.models.transformers import transformer_cosmos

    if not hasattr(transformer_cosmos, "transforms"):
        # The module calls torchvision's resize for the padding mask, and nothing else of it.
        resize = SimpleNamespace(resize=lambda mask, size, interpolation: F.interpolate(mask, size))
        mode = SimpleNamespace(NEAREST="nearest")
        transformer_cosmos.transforms = SimpleNamespace(functional=resize, InterpolationMode=mode)

    dit = model.config.dit
    with torch.device("meta"):
        twin = transformer_cosmos.CosmosTransformer3DModel(
            in_channels=dit.latent_channels,
            out_channels=dit.latent_channels,
            num_attention_heads=dit.heads,
            attention_head_dim=dit.head_dim,
            num_layers=dit.blocks,
            mlp_ratio=float(dit.mlp_ratio),
            text_embed_dim=dit.context_width,
            adaln_lora_dim=dit.adaln_rank,
            max_size=(128, 240, 240),
            patch_size=(1, dit.patch, dit.patch),
            rope_scale=dit.rope_scale,
            concat_padding_mask=True,
            extra_pos_embed_type=None,
        )
    transformer, _ = split_for_diffusers(model.state_dict())
    load_strict(twin, transformer, "our model", assign=True)
    return twin.eval()


def run_twin(twin: nn.Module, latent: torch.Tensor, sigma: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """The twin's velocity. latent: (b, 16, f, h, w), even h and w; sigma: (b,) or (b, f)."""
    mask = latent.new_zeros(1, 1, *latent.shape[-2:])
    timestep = sigma if sigma.ndim == 1 else sigma[:, None, :, None, None]
    return twin(latent, timestep, context, padding_mask=mask, return_dict=False)[0]


@torch.no_grad()
def bench_forward(
    config: ModelConfig = MEDIUM, size: tuple[int, int] = (48, 48), context_rows: int = 128, rounds: int = 15
) -> ForwardBench:
    """Both forwards in turn, `rounds` times, the first of each pair alternating. `size` in latent pixels."""
    generator = torch.Generator().manual_seed(0)
    model = randomised(initialise(AnimaDiT(config)), generator).eval()
    twin = diffusers_twin(model)
    dit = config.dit
    latent = torch.randn(1, dit.latent_channels, 1, *size, generator=generator)
    context = torch.randn(1, context_rows, dit.context_width, generator=generator)
    sigma = torch.tensor([0.7])

    calls = [lambda: model(latent, sigma, context), lambda: run_twin(twin, latent, sigma, context)]
    ours, theirs = (call() for call in calls)  # also the warm-up
    times: list[list[float]] = [[], []]
    for round_ in range(rounds):
        for which in (0, 1) if round_ % 2 else (1, 0):
            times[which].append(seconds(calls[which]))
    ratios = [a / b for a, b in zip(*times, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return ForwardBench(
        ours_ms=1000 * statistics.median(times[0]),
        diffusers_ms=1000 * statistics.median(times[1]),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        rounds=rounds,
        largest_difference=((ours - theirs).abs().max() / theirs.abs().max()).item(),
        width=dit.width,
        blocks=dit.blocks,
        tokens=size[0] * size[1] // dit.patch**2,
        threads=torch.get_num_threads(),
    )


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@torch.no_grad()
def randomised(model: AnimaDiT, generator: torch.Generator) -> AnimaDiT:
    """The model with its zero matrices filled, so that no part of it is switched off."""
    for parameter in model.parameters():
        if not parameter.any():
            parameter.normal_(std=0.02, generator=generator)
    return model


def bench_both() -> list[ForwardBench]:
    """nano at its own size, where overhead counts, and MEDIUM, where hardly anything but matrix products does."""
    nano = bench_forward(replace(NANO, text=None), size=(16, 12), context_rows=64, rounds=60)
    return [nano, bench_forward()]


if __name__ == "__main__":
    for result in bench_both():
        print(result)
