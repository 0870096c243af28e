"""Anima's transformer: noisy latent, sigma and context in, velocity out (specification section 2)."""

import math
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snapref.anima.attention import KeyGroup
from snapref.anima.block import NO_BRANCH, Block, modulated_norm, modulation
from snapref.anima.lowrank import Branch
from snapref.anima.offload import Visits
from snapref.anima.rope import Place, rope_angles
from snapref.anima.text import LLMAdapter
from snapref.config import DiTConfig, ModelConfig


class Patches(nn.Module):
    """(b, c, f, h, w) → (b, f·h/p·w/p, c·p·p): channel slowest, then row and column inside the patch."""

    def __init__(self, side: int):
        super().__init__()
        self.side = side

    def forward(self, latent: Tensor) -> Tensor:
        x = latent.unflatten(-1, (-1, self.side)).unflatten(-3, (-1, self.side))  # (b, c, f, h, p, w, p)
        return x.permute(0, 2, 3, 5, 1, 4, 6).flatten(4).flatten(1, 3)


class PatchEmbedding(nn.Module):
    def __init__(self, config: DiTConfig):
        super().__init__()
        features = (config.latent_channels + 1) * config.patch**2
        self.proj = nn.Sequential(Patches(config.patch), nn.Linear(features, config.width, bias=False))

    def forward(self, latent: Tensor) -> Tensor:
        # The last channel is the padding mask of the training code: always zero when pictures are made.
        return self.proj(F.pad(latent, (0, 0, 0, 0, 0, 0, 0, 1)))


class Sinusoid(nn.Module):
    """sigma: (b, s) in [0, 1] → (b, s, c) fp32: cosines first, then sines. Not multiplied by 1000."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, sigma: Tensor) -> Tensor:
        half = self.width // 2
        exponent = torch.arange(half, device=sigma.device, dtype=torch.float32) / half
        angle = sigma.float()[..., None] * torch.exp(-math.log(10_000) * exponent)
        return torch.cat((angle.cos(), angle.sin()), dim=-1)


class SharedModulation(nn.Module):
    """The sinusoid → the one modulation vector that all blocks add to their own: (b, s, 3c)."""

    def __init__(self, width: int):
        super().__init__()
        self.linear_1 = nn.Linear(width, width, bias=False)
        self.linear_2 = nn.Linear(width, 3 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class FinalLayer(nn.Module):
    def __init__(self, config: DiTConfig):
        super().__init__()
        self.linear = nn.Linear(config.width, config.latent_channels * config.patch**2, bias=False)
        self.adaln_modulation = modulation(config, 2)

    def forward(self, x: Tensor, emb: Tensor, lora: Tensor) -> Tensor:
        both = self.adaln_modulation(emb)
        shift, scale = (both + lora[..., : both.shape[-1]]).chunk(2, dim=-1)
        return self.linear(modulated_norm(x, shift, scale))


class AnimaDiT(nn.Module):
    """State dict names are the official ones without their prefix, `llm_adapter` included."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        dit = config.dit
        self.x_embedder = PatchEmbedding(dit)
        self.t_embedder = nn.Sequential(Sinusoid(dit.width), SharedModulation(dit.width))
        self.t_embedding_norm = nn.RMSNorm(dit.width, eps=1e-6)
        self.blocks = nn.ModuleList(Block(dit) for _ in range(dit.blocks))
        self.final_layer = FinalLayer(dit)
        if config.text is not None:
            self.llm_adapter = LLMAdapter(config.text, dit.context_width)
        self.visits: Visits | None = None  # set where the blocks live away from the device (`anima.offload`)

    @property
    def dtype(self) -> torch.dtype:
        """What the sublayers compute in. The norm's dtype: linears may be stored in 8 bits."""
        return self.t_embedding_norm.weight.dtype

    def forward(
        self,
        latent: Tensor,
        sigma: Tensor,
        context: Tensor,
        *,
        place: Place = (0.0, 0.0, 0.0),
        memory: Sequence[Sequence[KeyGroup]] | None = None,
        branch: Branch | None = None,
    ) -> Tensor:
        """Velocity noise − x0: (b, 16, f, h, w), in the latent's dtype.

        latent: (b, 16, f, h, w), any h and w; sigma: (b,), or (b, f) for a sigma per frame; context: (b, k,
        c) with its zero rows; place: position of the first token; memory, branch: one entry per block. Raises
        ValueError where memory or branch do not have one entry per block.
        """
        self.check_per_block("memory", memory)
        self.check_per_block("branch", branch)
        x, emb, lora, angles = self.enter(latent, sigma, place)
        context = context.to(self.dtype)
        for i, block in enumerate(self.ready_blocks()):
            groups, low_rank = memory[i] if memory else (), branch[i] if branch else NO_BRANCH
            x = block(x, emb, lora, context, angles, groups, low_rank)
        features = self.final_layer(x.to(self.dtype), emb, lora)
        return self.picture(features, latent.shape).to(latent.dtype)

    def keys_values(
        self,
        latent: Tensor,
        sigma: Tensor,
        context: Tensor,
        *,
        place: Place = (0.0, 0.0, 0.0),
        branch: Branch | None = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """Per block what its self-attention offers: [(k, v)], each (b, n, r, d). Arguments as in `forward`.

        Nothing after the last block's k and v is computed, for nobody would read it.
        """
        self.check_per_block("branch", branch)
        x, emb, lora, angles = self.enter(latent, sigma, place)
        context = context.to(self.dtype)
        branch = branch or [NO_BRANCH] * len(self.blocks)
        offered = []
        for i, block in enumerate(self.ready_blocks()):
            if i + 1 < len(self.blocks):
                x, pair = block.forward_and_offer(x, emb, lora, context, angles, branch=branch[i])
            else:
                pair = block.keys_values(x, emb, lora, angles, branch[i])
            offered.append(pair)
        return offered

    def ready_blocks(self) -> Iterable[Block]:
        """The blocks in turn, each where it computes: on the device, if only for the time of its call."""
        return self.blocks if self.visits is None else self.visits(self.blocks)

    def enter(self, latent: Tensor, sigma: Tensor, place: Place) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(tokens x (b, t, c), emb (b, s, c), lora (b, s, 3c), angles (t, d/2))."""
        dit, dtype = self.config.dit, self.dtype
        b, channels, frames = latent.shape[:3]
        if channels != dit.latent_channels:
            raise ValueError(f"latent has {channels} channels, the model takes {dit.latent_channels}")
        if sigma.shape not in ((b,), (b, frames)):
            raise ValueError(
                f"sigma has shape {tuple(sigma.shape)}: give ({b},), or ({b}, {frames}) for a sigma per frame"
            )
        padded = pad_to_patches(latent, dit.patch)
        x = self.x_embedder(padded.to(dtype))
        if dtype == torch.float16:
            x = x.float()  # the residual stream outgrows 65504 in deep blocks

        sinusoid, shared = self.t_embedder
        waves = sinusoid(sigma.reshape(b, -1)).to(dtype)
        # The norm takes the sinusoid itself; the MLP feeds only the shared modulation.
        emb, lora = self.t_embedding_norm(waves), shared(waves)
        h, w = (side // dit.patch for side in padded.shape[-2:])
        return x, emb, lora, rope_angles(dit, frames, h, w, place, latent.device)

    def picture(self, features: Tensor, shape: torch.Size) -> Tensor:
        """Token features back on the grid, cropped to `shape`. Channel is fastest, unlike on the way in."""
        p, (frames, height, width) = self.config.dit.patch, shape[2:]
        grid = (frames, -(-height // p), -(-width // p))
        x = features.unflatten(-1, (p, p, -1)).unflatten(1, grid)  # (b, f, h, w, p, p, c)
        x = x.permute(0, 6, 1, 2, 4, 3, 5).flatten(5).flatten(3, 4)
        return x[..., :height, :width]

    def check_per_block(self, name: str, given: Sequence | None) -> None:
        if given is not None and len(given) != len(self.blocks):
            raise ValueError(
                f"{name} has entries for {len(given)} blocks, the model has {len(self.blocks)} blocks"
            )


def pad_to_patches(latent: Tensor, patch: int) -> Tensor:
    """Rows and columns up to a multiple of `patch`, repeated from the opposite side (as ComfyUI does)."""
    height, width = latent.shape[-2:]
    if height % patch:
        latent = torch.cat((latent, latent[..., : -height % patch, :]), dim=-2)
    if width % patch:
        latent = torch.cat((latent, latent[..., : -width % patch]), dim=-1)
    return latent
