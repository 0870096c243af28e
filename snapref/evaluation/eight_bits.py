"""The same pipeline with its adapter, or its base too, stored in eight bits: what half the file costs in identity."""

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from snapref.anima.model import AnimaDiT
from snapref.anima.text import TextEncoder
from snapref.files.loader import build
from snapref.reference.branches import linear_shapes
from snapref.reference.bundle import FP8, load_bundle, save_bundle
from snapref.sampling.pipeline import Pipeline


def in_eight_bits(pipe: Pipeline, base: bool = False) -> Pipeline:
    """Another pipeline of the same parts whose adapter went through an FP8 bundle. base: linears of blocks are fp8."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "adapter.safetensors"
        save_bundle(pipe.adapter, path, FP8)
        adapter = load_bundle(path, pipe.config).to(pipe.device).requires_grad_(False)
    if not base:
        return Pipeline(pipe.model, pipe.text, pipe.codec, pipe.config, adapter)
    dit = pipe.config.dit
    narrow = {f"blocks.{i}.{linear}.weight" for i in range(dit.blocks) for linear in linear_shapes(dit)}
    tensors: dict[str, Tensor] = {}
    for name, weight in pipe.model.state_dict().items():
        if name in narrow:  # one scale per tensor, as the published fp8 files have it
            scale = weight.abs().max().float().clamp(min=1e-12).reshape(1, 1) / torch.finfo(FP8).max
            tensors[name], tensors[f"{name}_scale"] = (weight / scale).to(FP8), scale
        else:
            tensors[name] = weight
    model = build(lambda: AnimaDiT(pipe.config), tensors, "the base in eight bits", pipe.model.dtype, pipe.device)
    words = pipe.text
    text = TextEncoder(words.qwen, words.qwen_tokenizer, words.t5_tokenizer, model.llm_adapter, words.config)
    return Pipeline(model, text, pipe.codec, pipe.config, adapter)
