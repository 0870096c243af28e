"""Which parameter learns by which optimizer: Muon for the matrices inside, AdamW for everything else."""

import torch
from torch import nn

from snapref.training.config import RunConfig

# Matrices at the rim, whose rows are not directions of one hidden space: Muon's orthogonal step does not suit them.
RIM = ("embed", "x_embedder", "final_layer", "t_embedder", "heads", "lm_head")


def learns_by_muon(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and not any(part in name for part in RIM)


def make_optimizers(model: nn.Module, config: RunConfig) -> list[torch.optim.Optimizer]:
    """[Muon, AdamW], without an empty one; only parameters that require a gradient."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    matrices = [p for n, p in named if learns_by_muon(n, p)]
    others = [p for n, p in named if not learns_by_muon(n, p)]
    optimizers = []
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, lr=config.muon_lr, weight_decay=config.muon_weight_decay))
    if others:
        optimizers.append(torch.optim.AdamW(others, lr=config.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0))
    return optimizers
