"""Two tokenizers and a language model like the published ones, small enough to be made in a test."""

from functools import cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

PROMPTS = ["1girl, beach, waving, full body", "1girl, (smile:1.2), solo", "", "night, rain"]
QWEN_PAD = 399  # its <|endoftext|>
QWEN_WIDTH = 40


@cache
def tokenizers() -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """A byte-level BPE like Qwen's and a model with "▁" like T5's."""
    qwen = Tokenizer(models.BPE())
    qwen.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    qwen.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    qwen.train_from_iterator(PROMPTS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet))

    t5 = Tokenizer(models.Unigram())
    t5.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    t5.train_from_iterator(
        PROMPTS, trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token="<unk>")
    )
    # Like the published one it would close every text by itself; the encoder has to do without.
    t5.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return (
        PreTrainedTokenizerFast(tokenizer_object=qwen),
        PreTrainedTokenizerFast(tokenizer_object=t5, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"),
    )


def language_model() -> Qwen3Model:
    torch.manual_seed(0)
    size = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = Qwen3Config(vocab_size=QWEN_PAD + 1, hidden_size=QWEN_WIDTH, intermediate_size=48, **size)
    return Qwen3Model(config).eval().requires_grad_(False)
