"""Which parameter learns by which optimizer: Muon for the inner matrices and AdamW for the rest, or AdamW alone."""

import importlib

import torch
from torch import nn

from snapref.training.config import RunConfig

# Matrices at the rim, whose rows are not directions of one hidden space: Muon's orthogonal step does not suit them.
RIM = ("embed", "x_embedder", "final_layer", "t_embedder", "heads", "lm_head")


def learns_by_muon(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and not any(part in name for part in RIM)


def make_optimizers(model: nn.Module, config: RunConfig) -> list[torch.optim.Optimizer]:
    """[Muon, AdamW], without an empty one, or one AdamW; only parameters that require a gradient.

    Raises ValueError where the 8-bit AdamW is asked for and bitsandbytes is not installed.
    """
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    adamw = {"lr": config.adamw_lr, "betas": (0.9, 0.95), "weight_decay": config.adamw_weight_decay}
    if config.optimizer == "adamw8bit":
        return [eight_bit()([p for _, p in named], **adamw)]
    matrices = [p for n, p in named if config.optimizer == "muon" and learns_by_muon(n, p)]
    others = [p for n, p in named if config.optimizer != "muon" or not learns_by_muon(n, p)]
    optimizers = []
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, lr=config.muon_lr, weight_decay=config.muon_weight_decay))
    if others:
        optimizers.append(torch.optim.AdamW(others, **adamw))
    return optimizers


def eight_bit() -> type[torch.optim.Optimizer]:
    """bitsandbytes' AdamW, whose two moments take one byte each."""
    try:
        return importlib.import_module("bitsandbytes").optim.AdamW8bit
    except ImportError:
        raise ValueError(
            "optimizer adamw8bit needs bitsandbytes, which is not installed; pip install bitsandbytes, or take adamw"
        ) from None
