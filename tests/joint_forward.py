"""The oracle for the cache: target and references in ONE sequence, an explicit mask, nothing remembered.

Written over the raw tensors of a state dict from the model specification, without any code of the package:
each segment of the sequence has its own sigma, its own place, its own low-rank matrices and its own context.

                      reads →   target   picture 1   picture 2
        target                    yes       yes         yes         (+ log weight)
        picture 1                  –        yes          –
        picture 2                  –         –          yes
"""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Segment:
    """A picture's tokens in the joint sequence; the first segment is the target."""

    latent: Tensor  # (16, h, w), even sides
    sigma: float
    context: Tensor  # (k, c)
    place: tuple[float, float, float] = (0.0, 0.0, 0.0)
    lora: dict = field(default_factory=dict)  # "blocks.0.mlp.layer1" → (A (rank, in), B (out, rank), scale)
    weight: float = 1.0  # how often its keys count for the target; 0: invisible
    visible: Tensor | None = None  # bool per token: which of them the target may read
    readers: Tensor | None = None  # bool per token of the target: which of them may read it
    block_weights: tuple[float, ...] | None = None  # on top of `weight`, one per block

    @property
    def tokens(self) -> int:
        return self.latent.shape[1] // 2 * (self.latent.shape[2] // 2)


def joint_forward(weights: dict[str, Tensor], segments: list[Segment], heads: int) -> Tensor:
    """Velocity of the first segment: (16, h, w). `weights`: names without prefix."""
    bounds = [0]
    for segment in segments:
        bounds.append(bounds[-1] + segment.tokens)
    spans = [slice(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    owner = torch.cat([torch.full((s.tokens,), i) for i, s in enumerate(segments)])
    context = torch.cat([s.context for s in segments])
    context_owner = torch.cat([torch.full((len(s.context),), i) for i, s in enumerate(segments)])

    same = owner[:, None] == owner

    def bias_in(block: int) -> Tensor:
        bias = torch.where(same | (owner[:, None] == 0), 0.0, -math.inf)
        for i, segment in enumerate(segments[1:], start=1):
            weight = segment.weight * (segment.block_weights[block] if segment.block_weights else 1.0)
            bias[spans[0], spans[i]] += math.log(weight) if weight else -math.inf
            if segment.visible is not None:
                bias[spans[0], spans[i]] += torch.where(segment.visible, 0.0, -math.inf)
            if segment.readers is not None:
                bias[spans[0], spans[i]] += torch.where(segment.readers, 0.0, -math.inf)[:, None]
        return bias

    cross_bias = torch.where(owner[:, None] == context_owner, 0.0, -math.inf)

    def linear(name: str, x: Tensor, owner_of_rows: Tensor = owner) -> Tensor:
        y = x @ weights[f"{name}.weight"].T
        for i, segment in enumerate(segments):
            if name in segment.lora:
                a, b, scale = segment.lora[name]
                rows = owner_of_rows == i
                y[rows] = y[rows] + scale * (x[rows] @ a.T) @ b.T
        return y

    def norm_per_head(x: Tensor, name: str) -> Tensor:  # (t, c) → (n, t, d)
        x = x.unflatten(-1, (heads, -1)).transpose(0, 1)
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weights[f"{name}.weight"]

    def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
        return (logits.softmax(-1) @ v).transpose(0, 1).flatten(1)

    x = torch.cat([patches(s.latent) for s in segments]) @ weights["x_embedder.proj.1.weight"].T
    angles = torch.cat([positions(s, x.shape[-1] // heads) for s in segments])
    sigma = torch.cat([torch.full((s.tokens,), s.sigma) for s in segments])
    wave = sinusoid(sigma, x.shape[-1])
    hidden = F.silu(wave @ weights["t_embedder.1.linear_1.weight"].T)
    shared = hidden @ weights["t_embedder.1.linear_2.weight"].T
    emb = wave * (wave.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weights["t_embedding_norm.weight"]

    def modulation(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        down, up = weights[f"{name}.1.weight"], weights[f"{name}.2.weight"]
        m = F.silu(emb) @ down.T @ up.T
        shift, scale, *gate = (m + shared[:, : m.shape[1]]).chunk(m.shape[1] // x.shape[1], dim=-1)
        normed = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        return normed * (1 + scale) + shift, *gate

    block = 0
    while f"blocks.{block}.mlp.layer1.weight" in weights:
        at = f"blocks.{block}"
        y, gate = modulation(f"{at}.adaln_modulation_self_attn", x)
        q = turned(norm_per_head(linear(f"{at}.self_attn.q_proj", y), f"{at}.self_attn.q_norm"), angles)
        k = turned(norm_per_head(linear(f"{at}.self_attn.k_proj", y), f"{at}.self_attn.k_norm"), angles)
        v = linear(f"{at}.self_attn.v_proj", y).unflatten(-1, (heads, -1)).transpose(0, 1)
        x = x + gate * linear(f"{at}.self_attn.output_proj", masked_attention(q, k, v, bias_in(block)))

        y, gate = modulation(f"{at}.adaln_modulation_cross_attn", x)
        q = norm_per_head(linear(f"{at}.cross_attn.q_proj", y), f"{at}.cross_attn.q_norm")
        k = linear(f"{at}.cross_attn.k_proj", context, context_owner)
        v = linear(f"{at}.cross_attn.v_proj", context, context_owner)
        k, v = norm_per_head(k, f"{at}.cross_attn.k_norm"), v.unflatten(-1, (heads, -1)).transpose(0, 1)
        text = masked_attention(q, k, v, cross_bias)
        x = x + gate * linear(f"{at}.cross_attn.output_proj", text)

        y, gate = modulation(f"{at}.adaln_modulation_mlp", x)
        x = x + gate * linear(f"{at}.mlp.layer2", F.gelu(linear(f"{at}.mlp.layer1", y)))
        block += 1

    features = modulation("final_layer.adaln_modulation", x)[0] @ weights["final_layer.linear.weight"].T
    return picture(features[spans[0]], segments[0].latent.shape)


def patches(latent: Tensor) -> Tensor:
    """(16, h, w) → (tokens, 68), a zero channel appended; channel slowest, then row and column in a patch."""
    c, h, w = latent.shape
    padded = torch.cat([latent, torch.zeros(1, h, w)])
    return padded.reshape(c + 1, h // 2, 2, w // 2, 2).permute(1, 3, 0, 2, 4).reshape(h // 2 * (w // 2), -1)


def picture(features: Tensor, shape) -> Tensor:
    """(tokens, 64) → (16, h, w): channel fastest."""
    c, h, w = shape
    return features.reshape(h // 2, w // 2, 2, 2, c).permute(4, 0, 2, 1, 3).reshape(c, h, w)


def sinusoid(sigma: Tensor, width: int) -> Tensor:
    half = width // 2
    angle = sigma[:, None] * torch.exp(-math.log(10_000.0) * torch.arange(half) / half)
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


def positions(segment: Segment, head_dim: int) -> Tensor:
    """Angles (tokens, d/2), features [time | row | column], from the position of every single token."""
    side = head_dim // 6 * 2
    axes = ((head_dim - 2 * side, 1.0), (side, 4.0), (side, 4.0))
    _, h, w = segment.latent.shape
    rows = []
    for row in range(h // 2):
        for column in range(w // 2):
            at = (segment.place[0], segment.place[1] + row, segment.place[2] + column)
            rows.append(
                [
                    position * (10_000.0 * ratio ** (d / (d - 2))) ** (-2 * i / d)
                    for position, (d, ratio) in zip(at, axes, strict=True)
                    for i in range(d // 2)
                ]
            )
    return torch.tensor(rows, dtype=torch.float64).float()


def turned(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)
