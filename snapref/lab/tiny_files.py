"""Weight files small enough to be written in a notebook, for what large ones do: a LoRA, an fp8 copy, broken ones."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from snapref.config import NANO, ModelConfig
from snapref.files.keys import prefix_of
from snapref.files.nano import FOLDER
from snapref.reference.branches import linear_shapes


def write_lora(path: Path, config: ModelConfig = NANO, rank: int = 4, size: float = 0.3, seed: int = 0) -> Path:
    """Writes a LoRA of random numbers for every value projection and second MLP layer, in ComfyUI's naming."""
    shapes, tensors = linear_shapes(config.dit), {}
    generator = torch.Generator().manual_seed(seed)
    for block in range(config.dit.blocks):
        for module in ("self_attn.v_proj", "mlp.layer2"):
            outputs, inputs = shapes[module]
            stem = f"diffusion_model.blocks.{block}.{module}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * inputs**-0.5
            tensors[f"{stem}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * size
    save_file(tensors, path)
    return path


def write_fp8_nano(folder: Path) -> Path:
    """Writes nano's files with the linears of attention and MLP in fp8, the rest as it is; returns the folder."""
    shutil.copytree(FOLDER, folder)
    base = load_file(FOLDER / "base.safetensors")
    prefix = prefix_of(base)
    narrow = {f"{prefix}blocks.{i}.{name}.weight" for i in range(NANO.dit.blocks) for name in linear_shapes(NANO.dit)}
    tensors = {name: t.to(torch.float8_e4m3fn) if name in narrow else t for name, t in base.items()}
    save_file(tensors, folder / "base.safetensors")
    return folder


def write_without_header(path: Path) -> Path:
    """Writes nano's adapter without the header that states its place and captions."""
    save_file(load_file(FOLDER / "adapter_v1a.safetensors"), path)
    return path
