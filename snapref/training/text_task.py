"""Training of nano's language model: a tiny Qwen3 that predicts the next token of captions, then stays frozen."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snapref.anima.qwen import new_qwen
from snapref.config import NANO
from snapref.files.weights import save_weights
from snapref.training.captions import Captions
from snapref.training.config import RunConfig
from snapref.training.draws import caption_of
from snapref.training.loop import my_rows
from snapref.training.options import check_options


class TextStep(nn.Module):
    """Next-token loss; the embedding is also the output layer."""

    def __init__(self, qwen: nn.Module):
        super().__init__()
        self.qwen = qwen

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        hidden = self.qwen(input_ids=ids).last_hidden_state  # causal and padded on the right: no mask needed
        logits = hidden[:, :-1] @ self.qwen.embed_tokens.weight.T
        losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        real = mask[:, 1:].flatten()
        return {"loss": (losses * real).sum() / real.sum()}


class TextTask:
    def __init__(self, config: RunConfig):
        check_options(config)
        torch.manual_seed(config.seed)
        self.config = config
        self.captions = Captions(Path(config.options["weights"]))
        self.model = TextStep(new_qwen(NANO.text))

    def batch(self, step: int, rank: int, world: int) -> dict[str, Tensor]:
        rows = my_rows(self.config.batch, rank, world)
        first = step * self.config.batch
        texts = [caption_of(self.config.seed, first + i) for i in range(self.config.batch)[rows]]
        ids, mask = self.captions.qwen_ids(texts)
        return {"ids": ids, "mask": mask}

    def export(self, model: TextStep, path: Path) -> None:
        save_weights({f"model.{k}": v for k, v in model.qwen.state_dict().items()}, path)
