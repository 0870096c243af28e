"""LoRA files as the trainers write them, made from random matrices by official module names."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from snapref.files.keys import to_diffusers

Pairs = Mapping[str, tuple[Tensor, Tensor]]  # module -> (A, B)
HALVES = {"kohya": ("lora_down", "lora_up"), "comfyui": ("lora_A", "lora_B"), "diffusers": ("lora_A", "lora_B")}


def random_pairs(
    shapes: Mapping[str, tuple[int, int]], modules: Iterable[str], rank: int = 3, seed: int = 0
) -> dict[str, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return {
        module: (
            torch.randn(rank, shapes[module][1], generator=generator) * shapes[module][1] ** -0.5,
            torch.randn(shapes[module][0], rank, generator=generator) * 0.3,
        )
        for module in modules
    }


def stem(module: str, naming: str) -> str:
    """A module's name in a file; written from the published table's rules, not from the reader's."""
    if naming == "kohya":
        if module.startswith("text_encoder."):
            return "lora_te_" + module.removeprefix("text_encoder.").replace(".", "_")
        return "lora_unet_" + module.replace(".", "_")
    if module.startswith("text_encoder."):
        own = module.removeprefix("text_encoder.")
        return module if naming == "diffusers" else f"text_encoders.qwen3_06b.transformer.model.{own}"
    if naming == "comfyui":
        return "diffusion_model." + module
    if module.startswith("llm_adapter."):
        return "text_conditioner." + module.removeprefix("llm_adapter.")
    return "transformer." + to_diffusers(module)


def tensors_of(pairs: Pairs, naming: str, alpha: float | None = None) -> dict[str, Tensor]:
    """The tensors of a file; alpha as a tensor of every module, or none."""
    down, up = HALVES[naming]
    found = {}
    for module, (a, b) in pairs.items():
        name = stem(module, naming)
        found |= {f"{name}.{down}.weight": a, f"{name}.{up}.weight": b}
        if alpha is not None:
            found[f"{name}.alpha"] = torch.tensor(alpha)
    return found


def write(path: Path, pairs: Pairs, naming: str = "comfyui", alpha: float | None = None, **metadata) -> Path:
    save_file(tensors_of(pairs, naming, alpha), path, metadata=metadata or None)
    return path
