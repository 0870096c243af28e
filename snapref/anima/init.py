"""First weights of a model that is trained from scratch."""

import torch
from torch import nn

from snapref.anima.model import AnimaDiT


@torch.no_grad()
def initialise(model: AnimaDiT, generator: torch.Generator | None = None) -> AnimaDiT:
    """The same model with fresh weights, in place.

    Matrices are Xavier uniform, embeddings and the sigma MLP normal 0.02, norms 1, biases 0. The last matrix
    of every modulation and the last one of all are zero (AdaLN-zero, arXiv 2212.09748): at the start each
    block is the identity and the velocity is 0. The shared modulation enters every gate, so its last matrix
    is zero too.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02, generator=generator)
        elif isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)
    shared = model.t_embedder[1]
    nn.init.normal_(shared.linear_1.weight, std=0.02, generator=generator)

    lasts = [shared.linear_2, model.final_layer.linear, model.final_layer.adaln_modulation[2]]
    for b in model.blocks:
        pairs = (b.adaln_modulation_self_attn, b.adaln_modulation_cross_attn, b.adaln_modulation_mlp)
        lasts += [pair[2] for pair in pairs]
    for last in lasts:
        nn.init.zeros_(last.weight)
    return model
