"""A whole pipeline of random weights that draws in milliseconds: what the tests of sampling share."""

from functools import cache

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from snapref.anima.codec import NanoCodec
from snapref.anima.model import AnimaDiT
from snapref.anima.qwen import new_qwen
from snapref.anima.text import TextEncoder
from snapref.config import AdapterConfig, CodecConfig, DiTConfig, ModelConfig, TextConfig
from snapref.reference.branches import Adapter
from snapref.sampling.pipeline import Pipeline

TINY = ModelConfig(
    name="tiny",
    dit=DiTConfig(width=48, heads=2, blocks=3, context_width=32, adaln_rank=8),
    text=TextConfig(
        context_rows=12, adapter_blocks=1, adapter_heads=2, t5_vocab=64, qwen_vocab=64, qwen_width=32,
        qwen_layers=1, qwen_heads=2, qwen_kv_heads=1, qwen_head_dim=16, qwen_mlp=48, qwen_pad_id=0,
    ),
    codec=CodecConfig(kind="nano", factor=8),
    default_size=(64, 48),
    default_steps=4,
    default_guidance=3.0,
)  # fmt: skip
TINY_ADAPTER = AdapterConfig("tiny-v1", 6, 4, 12.0, 4.0, place=(0.0, 20.0, 0.0))
WORDS = "1girl, red hair, blue eyes, beach, waving, full body, night, smile, character and style reference"


def tiny_tokenizer() -> Tokenizer:
    """Words and commas; anything else is the unknown token."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=64, special_tokens=["<pad>", "</s>", "<unk>"])
    tokenizer.train_from_iterator([WORDS], trainer)
    return tokenizer


@cache
def tiny_parts() -> tuple[AnimaDiT, TextEncoder, NanoCodec]:
    torch.manual_seed(0)
    model = AnimaDiT(TINY)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)  # so that attention is far from uniform
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer())
    qwen = new_qwen(TINY.text).eval().requires_grad_(False)
    text = TextEncoder(qwen, tokenizer, tokenizer, model.llm_adapter, TINY.text)
    return model.eval().requires_grad_(False), text, NanoCodec(TINY.codec).eval().requires_grad_(False)


@cache
def tiny_adapter(seed: int = 1) -> Adapter:
    """Both branches with random B: trained ones are not zero either."""
    torch.manual_seed(seed)
    adapter = Adapter(TINY_ADAPTER, TINY).requires_grad_(False)
    for name, weight in adapter.named_parameters():
        if "lora_B" in name:
            weight.normal_(std=0.1)
    return adapter


def tiny_pipeline(adapter: bool = True) -> Pipeline:
    """The parts are shared between tests: put back what you change."""
    return Pipeline(*tiny_parts(), TINY, tiny_adapter() if adapter else None)


def picture(seed: int = 0, size: tuple[int, int] = (48, 32)) -> Image.Image:
    """A random picture, (height, width)."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def originals(pipe: Pipeline) -> list[tuple[str, int, torch.Tensor]]:
    """Names, identities and copies of the model's weights, to see whether a run left a trace."""
    return [(name, id(weight), weight.clone()) for name, weight in pipe.model.named_parameters()]


def untouched(pipe: Pipeline, before: list[tuple[str, int, torch.Tensor]]) -> bool:
    return all(
        now[:2] == then[:2] and torch.equal(now[2], then[2])
        for now, then in zip(originals(pipe), before, strict=True)
    )
