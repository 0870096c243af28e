"""nano's two tokenizers, trained on captions: byte-level BPE as Qwen's, word pieces as T5's."""

import string
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from snapref.config import TextConfig


def train_qwen_tokenizer(captions: Iterable[str], config: TextConfig) -> Tokenizer:
    """BPE over bytes, so that no text is unknown; id 0 is <|endoftext|>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.qwen_vocab,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(captions, trainer)
    return tokenizer


def train_t5_tokenizer(captions: Iterable[str], config: TextConfig) -> Tokenizer:
    """Pieces that carry their leading space, as sentencepiece writes them; <pad> 0, </s> 1, <unk> 2.

    The pieces are merged (BPE), not a unigram model: on a language of some 150 words unigram training prunes
    most words back to letters.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=config.t5_vocab,
        special_tokens=["<pad>", "</s>", "<unk>"],
        initial_alphabet=list(string.ascii_lowercase + string.digits + string.punctuation),
        show_progress=False,
    )
    tokenizer.train_from_iterator(captions, trainer)
    return tokenizer


def train_tokenizers(captions: list[str], config: TextConfig, folder: Path) -> None:
    """Both tokenizers, as qwen_tokenizer.json and t5_tokenizer.json in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    train_qwen_tokenizer(captions, config).save(str(folder / "qwen_tokenizer.json"))
    train_t5_tokenizer(captions, config).save(str(folder / "t5_tokenizer.json"))
