"""From prompt to context: a Qwen3 language model reads, T5-style ids ask, the LLM adapter answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snapref.anima.offload import at_work, device_of
from snapref.anima.prompt import weighted_segments
from snapref.anima.rope import apply_rope, sequence_angles
from snapref.config import TextConfig


class AdapterAttention(nn.Module):
    """Attention with per-head norms, and RoPE on queries and keys, each along its own sequence."""

    def __init__(self, width: int, source_width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(source_width, width, bias=False)
        self.v_proj = nn.Linear(source_width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.q_norm = nn.RMSNorm(width // heads, eps=1e-6)
        self.k_norm = nn.RMSNorm(width // heads, eps=1e-6)

    def forward(self, x: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
        """x: (b, t, c); source: (b, r, c'); mask: (b, 1, 1, r) bool, True at keys to read → (b, t, c)."""
        q, k, v = (
            projection(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (b, n, t or r, d)
            for projection, y in ((self.q_proj, x), (self.k_proj, source), (self.v_proj, source))
        )
        head_dim = q.shape[-1]
        q = apply_rope(self.q_norm(q), sequence_angles(x.shape[1], head_dim, device=x.device))
        k = apply_rope(self.k_norm(k), sequence_angles(source.shape[1], head_dim, device=x.device))
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(heads.transpose(1, 2).flatten(2))


class AdapterBlock(nn.Module):
    def __init__(self, width: int, source_width: int, heads: int):
        super().__init__()
        self.norm_self_attn = nn.RMSNorm(width, eps=1e-6)
        self.self_attn = AdapterAttention(width, width, heads)
        self.norm_cross_attn = nn.RMSNorm(width, eps=1e-6)
        self.cross_attn = AdapterAttention(width, source_width, heads)
        self.norm_mlp = nn.RMSNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, source: Tensor, mask: Tensor | None, source_mask: Tensor | None) -> Tensor:
        y = self.norm_self_attn(x)
        x = x + self.self_attn(y, y, mask)
        x = x + self.cross_attn(self.norm_cross_attn(x), source, source_mask)
        return x + self.mlp(self.norm_mlp(x))


class LLMAdapter(nn.Module):
    """T5 ids look up what the language model understood (specification section 3). Not causal."""

    def __init__(self, config: TextConfig, width: int):
        super().__init__()
        self.embed = nn.Embedding(config.t5_vocab, width)
        self.blocks = nn.ModuleList(
            AdapterBlock(width, config.qwen_width, config.adapter_heads) for _ in range(config.adapter_blocks)
        )
        self.out_proj = nn.Linear(width, width)
        self.norm = nn.RMSNorm(width, eps=1e-6)

    def forward(
        self, ids: Tensor, source: Tensor, ids_mask: Tensor | None = None, source_mask: Tensor | None = None
    ) -> Tensor:
        """Context rows, one per id, not yet padded: (b, k, c).

        ids: (b, k); source: (b, r, c') hidden states; masks: (b, k) and (b, r), True at real tokens, which
        come first in each row. A source that is masked throughout adds nothing.
        """
        x = self.embed(ids)
        source = source.to(x.dtype)
        mask, source_mask = (m if m is None else m.bool()[:, None, None, :] for m in (ids_mask, source_mask))
        for block in self.blocks:
            x = block(x, source, mask, source_mask)
        return self.norm(self.out_proj(x))


def contexts(
    adapter: LLMAdapter, ids: Tensor, ids_mask: Tensor, source: Tensor, source_mask: Tensor, rows: int
) -> Tensor:
    """Contexts of a batch of padded prompts, with gradient: (b, rows or k if longer, c).

    Arguments as in `LLMAdapter.forward`. Padded rows are zero and zero rows are added up to `rows`, so each
    prompt gets what it gets alone.
    """
    answer = adapter(ids, source, ids_mask, source_mask) * ids_mask[..., None]
    return pad_rows(answer, rows)


def pad_rows(context: Tensor, rows: int) -> Tensor:
    """Zero rows added up to `rows`; a longer context stays as it is. (b, k, c) → (b, max(k, rows), c)."""
    return F.pad(context, (0, 0, 0, max(0, rows - context.shape[1])))


@dataclass(frozen=True)
class Tokens:
    """A prompt as both models see it."""

    qwen_ids: list[int]
    t5_ids: list[int]
    t5_weights: list[float]  # one per T5 id; the language model knows no weights


def plain_ids(tokenizer, text: str) -> list[int]:
    """The ids of a text, nothing added and nothing cut off."""
    # verbose would warn of T5's 512 tokens, which are a limit of its encoder: only its ids are used here.
    return tokenizer(text, add_special_tokens=False, verbose=False).input_ids


class TextEncoder:
    """Prompts → contexts, by ComfyUI's rules (specification section 3).

    `qwen` is a transformers Qwen3Model, `adapter` the diffusion model's own LLMAdapter, each on its device.
    The tokenizers are transformers' fast ones.
    """

    def __init__(self, qwen, qwen_tokenizer, t5_tokenizer, adapter: LLMAdapter, config: TextConfig):
        self.qwen, self.adapter, self.config = qwen, adapter, config
        self.qwen_tokenizer, self.t5_tokenizer = qwen_tokenizer, t5_tokenizer

    def tokenize(self, prompt: str) -> Tokens:
        """Both tokenizers read each weighted segment by itself; nothing is cut off, however long.

        T5 ends with one end token of weight 1. A prompt without any Qwen token is one padding token.
        """
        qwen_ids, t5_ids, t5_weights = [], [], []
        for text, weight in weighted_segments(prompt):
            qwen_ids += plain_ids(self.qwen_tokenizer, text)
            ids = plain_ids(self.t5_tokenizer, text)
            t5_ids += ids
            t5_weights += [weight] * len(ids)
        return Tokens(
            qwen_ids or [self.config.qwen_pad_id], [*t5_ids, self.config.t5_eos_id], [*t5_weights, 1.0]
        )

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str]) -> Tensor:
        """Contexts (b, context_rows, c), or longer where one prompt is.

        Every prompt is encoded by itself, its rows times their weights, then zero rows. Raises ValueError
        where contexts of different length meet: to fill one up would change its picture, for zero rows take
        part.
        """
        encoded = [self.encode(prompt) for prompt in prompts]
        lengths = [context.shape[1] for context in encoded]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"prompts of {lengths} context rows do not fit one batch: encode and run the longest alone"
            )
        return torch.cat(encoded)

    @torch.no_grad()
    def encode(self, prompt: str) -> Tensor:
        """The context of one prompt: (1, context_rows or longer, c)."""
        tokens = self.tokenize(prompt)
        with at_work(self.qwen):
            qwen_ids = torch.tensor([tokens.qwen_ids], device=device_of(self.qwen))
            source = self.qwen(input_ids=qwen_ids, use_cache=False).last_hidden_state  # (1, r, c')
        device = device_of(self.adapter)
        with at_work(self.adapter):
            answer = self.adapter(torch.tensor([tokens.t5_ids], device=device), source.to(device))
        answer = answer * torch.tensor(tokens.t5_weights, device=device, dtype=answer.dtype)[:, None]
        return pad_rows(answer, self.config.context_rows)
