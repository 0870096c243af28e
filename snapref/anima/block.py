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
        y = y.unflatten(-1, (self.heads, -1))  # (b, t, n, d)
        if norm is None:
            return y.transpose(1, 2)
        if torch.is_grad_enabled():  # token by token, as it came: the fastest backward
            by_token = turn and tuple(side[:, None] for side in turn)
            return rms_norm(y, norm, by_token).transpose(1, 2)
        return rms_norm(y.transpose(1, 2), norm, turn)

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
        hidden = project(self.layer1, x, branch.get("mlp.layer1"))
        # The widest tensor of the model is there once, not twice, unless a backward pass will ask for it.
        hidden = F.gelu(hidden) if hidden.requires_grad else torch.ops.aten.gelu_(hidden)
        return project(self.layer2, hidden, branch.get("mlp.layer2"))


def modulation(config: DiTConfig, chunks: int) -> nn.Sequential:
    """AdaLN through a narrow waist: SiLU once before the pair, nothing between."""
    return nn.Sequential(
        nn.SiLU(),
        nn.Linear(config.width, config.adaln_rank, bias=False),
        nn.Linear(config.adaln_rank, chunks * config.width, bias=False),
    )


# What follows works in place where it can: on a CPU a new tensor of this size costs more than the arithmetic.


def scaled(x: Tensor, factor: Tensor) -> Tensor:
    """x · factor, in x's own memory unless a backward pass will ask for x."""
    return x * factor if x.requires_grad or factor.requires_grad else x.mul_(factor)


def rms_norm(x: Tensor, norm: nn.RMSNorm, turn: tuple[Tensor, Tensor] | None) -> Tensor:
    """RMSNorm over the last axis and, with `turn` = (cos, sin), RoPE. x: (…, d), may be written over.

    One fp32 operation, rounded once at the end (specification section 2, dtypes). The weight joins the cosines and
    sines, which are smaller.
    """
    wide, weight = x.float(), norm.weight.float()
    mean_square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square() / x.shape[-1]
    normed = scaled(wide, (mean_square + norm.eps).rsqrt())
    if turn is None:
        return normed.mul_(weight).to(x.dtype)
    return rotate(normed, turn[0] * weight, turn[1] * weight.roll(x.shape[-1] // 2)).to(x.dtype)


def per_token(x: Tensor, tokens: int) -> Tensor:
    """A modulation (b, s, c) as it meets (b, t, c): one row for all tokens, or each frame's for its own."""
    return x if x.shape[1] == 1 else x.repeat_interleave(tokens // x.shape[1], dim=1)


def modulated_norm(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """LayerNorm(x) · (1 + scale) + shift. x: (b, t, c); shift, scale: (b, s, c), one row per sigma."""
    # Two steps, each rounded, as ComfyUI has them; 1 + scale still in the weights' dtype, the stream may be
    # wider.
    normed = F.layer_norm(x, x.shape[-1:], eps=1e-6)
    return normed.mul_(per_token(1 + scale, x.shape[1])).add_(per_token(shift, x.shape[1]))


def gated_sum(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    """x + gate · y in x's dtype. x, y: (b, t, c); gate: (b, s, c)."""
    y, gate = y.to(x.dtype), per_token(gate.to(x.dtype), x.shape[1])
    # addcmul rounds once, which fp32 need not pay for.
    return (y * gate).add_(x) if x.dtype == torch.float32 else torch.addcmul(x, gate, y)


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
        return gated_sum(*self.unsummed(x, emb, lora, context, angles, memory, branch))

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
        parts, offered = self.unsummed_and_offer(x, emb, lora, context, angles, branch)
        return gated_sum(*parts), offered

    # The last sum apart, so that a training step that computes a block anew can end before the last product.

    def unsummed(self, x, emb, lora, context, angles, memory=(), branch=NO_BRANCH) -> tuple[Tensor, Tensor, Tensor]:
        """What `gated_sum` makes into `forward`."""
        x = self.attend_to_picture(x, emb, lora, cos_sin(angles), memory, branch)[0]
        return self.think(self.attend_to_text(x, emb, lora, context, branch), emb, lora, branch)

    def unsummed_and_offer(self, x, emb, lora, context, angles, branch=NO_BRANCH):
        """What `gated_sum` makes into the first of `forward_and_offer`, and its second."""
        x, offered = self.attend_to_picture(x, emb, lora, cos_sin(angles), (), branch, offer=True)
        return self.think(self.attend_to_text(x, emb, lora, context, branch), emb, lora, branch), offered

    def attend_to_picture(self, x, emb, lora, turn, memory, branch, offer=False):
        """x after self-attention, and the (k, v) that it made, with `offer` in memory of their own."""
        shift, scale, gate = (self.adaln_modulation_self_attn(emb) + lora).chunk(3, dim=-1)
        y = modulated_norm(x, shift, scale).to(emb.dtype)
        q, (k, v) = self.self_attn.query(y, turn, branch), self.self_attn.key_value(y, turn, branch)
        if offer and not (k.requires_grad or v.requires_grad):
            # A cache needs this copy in any case. Made before they are read here, it makes that reading faster too.
            k, v = k.contiguous(), v.contiguous()
        return gated_sum(x, gate, self.self_attn.output(attend(q, k, v, memory), branch)), (k, v)

    def attend_to_text(self, x, emb, lora, context, branch) -> Tensor:
        """x after cross-attention. No mask: the context's zero rows take their share of the softmax too."""
        shift, scale, gate = (self.adaln_modulation_cross_attn(emb) + lora).chunk(3, dim=-1)
        y = modulated_norm(x, shift, scale).to(emb.dtype)
        q, (k, v) = self.cross_attn.query(y, None, branch), self.cross_attn.key_value(context, None, branch)
        return gated_sum(x, gate, self.cross_attn.output(attend(q, k, v), branch))

    def think(self, x, emb, lora, branch) -> tuple[Tensor, Tensor, Tensor]:
        """x, and the gate and output of the MLP."""
        shift, scale, gate = (self.adaln_modulation_mlp(emb) + lora).chunk(3, dim=-1)
        y = modulated_norm(x, shift, scale).to(emb.dtype)
        return x, gate, self.mlp(y, branch)

    def keys_values(
        self, x: Tensor, emb: Tensor, lora: Tensor, angles: Tensor, branch: Mapping[str, LowRank] = NO_BRANCH
    ) -> tuple[Tensor, Tensor]:
        """What self-attention offers others to read: k after norm and RoPE, and v; both (b, n, t, d)."""
        shift, scale, _ = (self.adaln_modulation_self_attn(emb) + lora).chunk(3, dim=-1)
        y = modulated_norm(x, shift, scale).to(emb.dtype)
        return self.self_attn.key_value(y, cos_sin(angles), branch)
