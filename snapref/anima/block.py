"""One block of the transformer: self-attention, cross-attention, MLP, each modulated by sigma."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snapref.anima.attention import KeyGroup, attend
from snapref.anima.lowrank import LowRank, project
from snapref.anima.rope import cos_sin, rotate
from snapref.config import DiTConfig

NO_BRANCH: Mapping[str, LowRank] = {}


class Attention(nn.Module):
    """Projections and per-head norms. By `name`, its name in the block, a branch finds its linears."""

    def __init__(self, name: str, config: DiTConfig, source_width: int):
        super().__init__()
        self.name, self.heads = name, config.heads
        self.q_proj = nn.Linear(config.width, config.width, bias=False)
        self.k_proj = nn.Linear(source_width, config.width, bias=False)
        self.v_proj = nn.Linear(source_width, config.width, bias=False)
        self.output_proj = nn.Linear(config.width, config.width, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=1e-6)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=1e-6)

    def query(self, x: Tensor, turn: tuple[Tensor, Tensor] | None, branch: Mapping[str, LowRank]) -> Tensor:
        """x: (b, t, c) → (b, n, t, d), after norm and, with `turn` = (cos, sin), RoPE."""
        return self.heads_of("q_proj", x, self.q_norm, turn, branch)

    def key_value(
        self, x: Tensor, turn: tuple[Tensor, Tensor] | None, branch: Mapping[str, LowRank]
    ) -> tuple[Tensor, Tensor]:
        """x: (b, t, c) → key after norm and RoPE, value as it is; both (b, n, t, d)."""
        key = self.heads_of("k_proj", x, self.k_norm, turn, branch)
        return key, self.heads_of("v_proj", x, None, None, branch)

    def heads_of(self, projection: str, x: Tensor, norm, turn, branch: Mapping[str, LowRank]) -> Tensor:
        y = project(getattr(self, projection), x, branch.get(f"{self.name}.{projection}"))
        y = y.unflatten(-1, (self.heads, -1))  # (b, t, n, d): contiguous, the fastest for what follows
        if norm is None:
            return y.transpose(1, 2)
        # Norm and rotation are one fp32 operation, rounded once at the end (specification section 2, dtypes).
        normed = F.rms_norm(y.float(), norm.normalized_shape, norm.weight.float(), norm.eps)
        return (normed if turn is None else rotate(normed, *turn)).to(y.dtype).transpose(1, 2)

    def output(self, heads: Tensor, branch: Mapping[str, LowRank]) -> Tensor:
        """heads: (b, n, t, d) → (b, t, c)."""
        merged = heads.transpose(1, 2).flatten(2)
        return project(self.output_proj, merged, branch.get(f"{self.name}.output_proj"))


class MLP(nn.Module):
    def __init__(self, config: DiTConfig):
        super().__init__()
        self.layer1 = nn.Linear(config.width, config.mlp_ratio * config.width, bias=False)
        self.layer2 = nn.Linear(config.mlp_ratio * config.width, config.width, bias=False)

    def forward(self, x: Tensor, branch: Mapping[str, LowRank] = NO_BRANCH) -> Tensor:
        hidden = F.gelu(project(self.layer1, x, branch.get("mlp.layer1")))
        return project(self.layer2, hidden, branch.get("mlp.layer2"))


def modulation(config: DiTConfig, chunks: int) -> nn.Sequential:
    """AdaLN through a narrow waist: SiLU once before the pair, nothing between."""
    return nn.Sequential(
        nn.SiLU(),
        nn.Linear(config.width, config.adaln_rank, bias=False),
        nn.Linear(config.adaln_rank, chunks * config.width, bias=False),
    )


def turn_of(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines that fit (b, t, n, d). angles: (t, d/2)."""
    return cos_sin(angles[:, None])


def per_frame(x: Tensor, sigmas: int) -> Tensor:
    """x: (b, t, c) → (b, s, t/s, c): the tokens of each sigma, ready to meet a (b, s, 1, c) modulation."""
    return x.unflatten(1, (sigmas, -1))


def modulated_norm(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """LayerNorm(x) · (1 + scale) + shift. x: (b, t, c); shift, scale: (b, s, c), one row per sigma."""
    normed = per_frame(F.layer_norm(x, x.shape[-1:], eps=1e-6), shift.shape[1])
    # Two steps, each rounded, as ComfyUI has them; 1 + scale still in the weights' dtype, the stream may be
    # wider.
    return (normed * (1 + scale)[:, :, None]).add_(shift[:, :, None]).flatten(1, 2)


def gated_sum(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    """x + gate · y in x's dtype. x, y: (b, t, c); gate: (b, s, c)."""
    s = gate.shape[1]
    y, gate = y.to(x.dtype), gate.to(x.dtype)
    return torch.addcmul(per_frame(x, s), gate[:, :, None], per_frame(y, s)).flatten(1, 2)


class Block(nn.Module):
    """Submodules carry the official names. x is the residual stream, fp32 when the weights are fp16."""

    def __init__(self, config: DiTConfig):
        super().__init__()
        self.self_attn = Attention("self_attn", config, config.width)
        self.cross_attn = Attention("cross_attn", config, config.context_width)
        self.mlp = MLP(config)
        self.adaln_modulation_self_attn = modulation(config, 3)
        self.adaln_modulation_cross_attn = modulation(config, 3)
        self.adaln_modulation_mlp = modulation(config, 3)

    def forward(
        self,
        x: Tensor,
        emb: Tensor,
        lora: Tensor,
        context: Tensor,
        angles: Tensor,
        memory: Sequence[KeyGroup] = (),
        branch: Mapping[str, LowRank] = NO_BRANCH,
    ) -> Tensor:
        """x after this block: (b, t, c).

        x: (b, t, c); emb: (b, s, c) and lora: (b, s, 3c), one row per sigma, s = 1 or the number of frames;
        context: (b, k, c); angles: (t, d/2); memory: what self-attention reads besides its own keys.
        """
        turn = turn_of(angles)
        x = self.attend_to_picture(x, emb, lora, turn, memory, branch)[0]
        x = self.attend_to_text(x, emb, lora, context, branch)
        return self.think(x, emb, lora, branch)

    def forward_and_offer(
        self,
        x: Tensor,
        emb: Tensor,
        lora: Tensor,
        context: Tensor,
        angles: Tensor,
        branch: Mapping[str, LowRank] = NO_BRANCH,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """`forward` without memory, together with `keys_values`, for the price of one."""
        x, offered = self.attend_to_picture(x, emb, lora, turn_of(angles), (), branch)
        x = self.attend_to_text(x, emb, lora, context, branch)
        return self.think(x, emb, lora, branch), offered

    def attend_to_picture(self, x, emb, lora, turn, memory, branch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x after self-attention, and the (k, v) that it made."""
        shift, scale, gate = (self.adaln_modulation_self_attn(emb) + lora).chunk(3, dim=-1)
        y = modulated_norm(x, shift, scale).to(emb.dtype)
        q, (k, v) = self.self_attn.query(y, turn, branch), self.self_attn.key_value(y, turn, branch)
        return gated_sum(x, gate, self.self_attn.output(attend(q, k, v, memory), branch)), (k, v)

    def attend_to_text(self, x, emb, lora, context, branch) -> Tensor:
        """x after cross-attention. No mask: the context's zero rows take their share of the softmax too."""
        shift, scale, gate = (self.adaln_modulation_cross_attn(emb) + lora).chunk(3, dim=-1)
        y = modulated_norm(x, shift, scale).to(emb.dtype)
        q, (k, v) = self.cross_attn.query(y, None, branch), self.cross_attn.key_value(context, None, branch)
        return gated_sum(x, gate, self.cross_attn.output(attend(q, k, v), branch))

    def think(self, x, emb, lora, branch) -> Tensor:
        """x after the MLP."""
        shift, scale, gate = (self.adaln_modulation_mlp(emb) + lora).chunk(3, dim=-1)
        y = modulated_norm(x, shift, scale).to(emb.dtype)
        return gated_sum(x, gate, self.mlp(y, branch))

    def keys_values(
        self, x: Tensor, emb: Tensor, lora: Tensor, angles: Tensor, branch: Mapping[str, LowRank] = NO_BRANCH
    ) -> tuple[Tensor, Tensor]:
        """What self-attention offers others to read: k after norm and RoPE, and v; both (b, n, t, d)."""
        shift, scale, _ = (self.adaln_modulation_self_attn(emb) + lora).chunk(3, dim=-1)
        y = modulated_norm(x, shift, scale).to(emb.dtype)
        return self.self_attn.key_value(y, turn_of(angles), branch)
