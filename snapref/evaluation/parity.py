"""One prompt, one noise, the same weights, once through our classes and once through diffusers': how far apart?"""

import importlib.metadata
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from snapref.evaluation.bench_forward import diffusers_twin, run_twin
from snapref.files.keys import load_strict, split_for_diffusers

NEEDED = ("CosmosTransformer3DModel", "AnimaTextConditioner")


@dataclass(frozen=True)
class Parity:
    """Differences are relative to the largest value; None, with the reason in `why_not`, where nothing was compared."""

    latent: Tensor  # (1, 16, 1, h, w), noise
    sigma: float
    ours: Tensor  # velocity, shaped like the latent
    theirs: Tensor | None = None
    context: float | None = None
    velocity: float | None = None
    why_not: str = ""

    def __str__(self) -> str:
        if self.why_not:
            return self.why_not
        return f"context differs by {self.context:.1e}, velocity by {self.velocity:.1e} of the largest value"


def absent() -> str:
    """Returns why diffusers cannot be asked here, or ""."""
    try:
        import diffusers
    except ImportError:
        return "diffusers is not installed, so nothing was compared: pip install diffusers"
    missing = [name for name in NEEDED if not hasattr(diffusers, name)]
    if not missing:
        return ""
    version = importlib.metadata.version("diffusers")
    names = " and ".join(missing)
    return f"diffusers {version} does not know {names} yet, so nothing was compared: take 0.42 or newer"


def conditioner_twin(model) -> nn.Module:
    """diffusers' AnimaTextConditioner with the weights of the model's LLM adapter."""
    from diffusers import AnimaTextConditioner

    text, width = model.config.text, model.config.dit.context_width
    twin = AnimaTextConditioner(
        source_dim=text.qwen_width,
        target_dim=width,
        model_dim=width,
        num_layers=text.adapter_blocks,
        num_attention_heads=text.adapter_heads,
        target_vocab_size=text.t5_vocab,
        min_sequence_length=1,
    ).eval()
    load_strict(twin, split_for_diffusers(model.state_dict())[1], "our model")
    return twin.to(model.t_embedding_norm.weight)


@torch.no_grad()
def parity(pipe, prompt: str, sigma: float = 0.8, seed: int = 0) -> Parity:
    """LLM adapter and transformer of both, each fed by its own: prompt → context → velocity of one noise."""
    height, width = (side // pipe.codec.factor for side in pipe.config.default_size)
    shape = (1, pipe.config.dit.latent_channels, 1, height, width)
    latent = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(pipe.device)
    level = torch.tensor([sigma], device=pipe.device)
    context = pipe.contexts([prompt])[0]
    ours = pipe.model(latent, level, context)
    if why_not := absent():
        return Parity(latent, sigma, ours, why_not=why_not)

    ids = pipe.text.tokenize(prompt)
    if any(weight != 1 for weight in ids.t5_weights):
        raise ValueError(f"prompt {prompt!r} has weights, which diffusers does not know; leave the parentheses out")
    source = pipe.text.qwen(input_ids=torch.tensor([ids.qwen_ids], device=pipe.device)).last_hidden_state
    answer = conditioner_twin(pipe.model)(source, torch.tensor([ids.t5_ids], device=pipe.device))
    their_context = torch.zeros_like(context)
    their_context[:, : answer.shape[1]] = answer
    theirs = run_twin(diffusers_twin(pipe.model), latent, level, their_context)
    return Parity(latent, sigma, ours, theirs, apart(their_context, context), apart(theirs, ours))


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())
