"""Captions to padded ids, a batch at once: what the trainings feed to the text path.

Training captions have no prompt weights, so one tokenizer call per batch gives the ids that the pipeline's own
rules give prompt by prompt (a test holds the two together).
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from snapref.config import NANO, TextConfig


class Captions:
    def __init__(self, folder: Path, config: TextConfig = NANO.text):
        self.config = config
        self.qwen = Tokenizer.from_file(str(folder / "qwen_tokenizer.json"))
        self.t5 = Tokenizer.from_file(str(folder / "t5_tokenizer.json"))

    def qwen_ids(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """ids (b, r) and mask (b, r); an empty caption is one pad token."""
        rows = [e.ids or [self.config.qwen_pad_id] for e in self.qwen.encode_batch(texts)]
        return pad(rows, self.config.qwen_pad_id)

    def t5_ids(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """ids (b, k) and mask (b, k), </s> at each end."""
        rows = [[*e.ids, self.config.t5_eos_id] for e in self.t5.encode_batch(texts)]
        return pad(rows, self.config.t5_pad_id)


def pad(rows: list[list[int]], value: int) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([row + [value] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in rows])
    return ids, mask
