"""Safetensors files into modules: strictly, and without a second copy of the weights in memory."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from snapref.anima.codec import NanoCodec
from snapref.anima.model import AnimaDiT
from snapref.anima.qwen import new_qwen
from snapref.config import CodecConfig, ModelConfig, TextConfig
from snapref.files.keys import block_count, load_strict, load_vae, official


class WeightsError(ValueError):
    """A weight file that cannot be used, in one sentence that ends with what to do."""


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Returns the tensors of a file, memory-mapped. Raises WeightsError."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def read_metadata(path: str | Path) -> dict[str, str]:
    """Returns the texts in the header of a safetensors file. Raises WeightsError."""
    with _opened(path) as file:
        return file.metadata() or {}


def load_model(path: str | Path, config: ModelConfig, dtype: torch.dtype, device="cpu") -> AnimaDiT:
    """Returns the diffusion model of a file, LLM adapter included, with as many blocks as the file has.

    Raises WeightsError, or KeyMismatch listing all names that do not fit.
    """
    tensors = official(read_tensors(path))
    dit = dataclasses.replace(config.dit, blocks=block_count(tensors) or config.dit.blocks)
    config = dataclasses.replace(config, dit=dit)
    return build(lambda: AnimaDiT(config), tensors, path, dtype, device)


def load_qwen(path: str | Path, config: TextConfig, dtype: torch.dtype, device="cpu") -> nn.Module:
    """Returns the language model of a file with keys `model.*`. Raises WeightsError, KeyMismatch."""
    tensors = {name.removeprefix("model."): t for name, t in read_tensors(path).items()}
    qwen = build(lambda: new_qwen(config), tensors, path, dtype, device)
    # RoPE's speeds are no weights: they are in no file and were made without memory.
    qwen.rotary_emb = type(qwen.rotary_emb)(qwen.config).to(device)
    return qwen


def load_codec(path: str | Path, config: CodecConfig, dtype: torch.dtype, device="cpu") -> nn.Module:
    """Returns what turns pixels into latents and back. Raises WeightsError, KeyMismatch."""
    tensors = read_tensors(path)
    if config.kind == "nano":
        return build(lambda: NanoCodec(config), tensors, path, dtype, device)
    return load_vae(tensors, str(path)).to(device, dtype)


def load_tokenizer(path: str | Path):
    """Returns a fast tokenizer from its one JSON file or from a folder. Raises WeightsError."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = Path(path)
    if path.is_file():
        return PreTrainedTokenizerFast(tokenizer_file=str(path))
    if not path.is_dir():
        raise WeightsError(f"{path} does not exist; give a tokenizer.json or the folder of a tokenizer")
    return AutoTokenizer.from_pretrained(path, local_files_only=True)


def build(
    make: Callable[[], nn.Module], tensors: Mapping[str, Tensor], source, dtype: torch.dtype, device="cpu"
) -> nn.Module:
    """Returns make() with the tensors as its weights, for evaluation, without gradient.

    The module is made without memory and takes over the tensors, moved one by one.
    """
    with torch.device("meta"):
        module = make()
    moved = {name: t.to(device, dtype if t.is_floating_point() else None) for name, t in tensors.items()}
    load_strict(module, moved, str(source), assign=True)
    return module.eval().requires_grad_(False)


def _opened(path: str | Path):
    """Returns the open file. Raises WeightsError."""
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"{path} does not exist; check the path")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        size = path.stat().st_size
        raise WeightsError(f"{path} ({size:,} bytes) is {_what_is(path)}; fetch it again") from error


def _what_is(path: Path) -> str:
    """Returns in words what a file that is no safetensors file seems to be."""
    with path.open("rb") as file:
        start = file.read(256)
    if not start:
        return "empty"
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the weights themselves"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "a web page, not weights"
    if start.startswith((b"PK", b"\x80")):
        return "a pickle, which could run any program and is never opened"
    if start[8:9] == b"{":  # eight bytes of length, then the header's JSON
        return "a safetensors file cut short"
    return "no safetensors file"
