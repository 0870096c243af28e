"""Safetensors files into modules: strictly, and without a second copy of the weights in memory."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from snapref.anima.codec import NanoCodec
from snapref.anima.linear import FLOAT8
from snapref.anima.model import AnimaDiT
from snapref.anima.offload import Visits, send_home
from snapref.anima.qwen import new_qwen
from snapref.config import CodecConfig, ModelConfig, TextConfig
from snapref.files.broken import WeightsError, opened, refuse_not_finite
from snapref.files.keys import block_count, check_keys, join_from_diffusers, load_strict, load_vae, official, shapes
from snapref.files.quant import is_scale, one_layout, prepare

HOME = ("blocks.", "llm_adapter.")  # what stays in host memory with offload


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Returns the tensors of a file, or of all files of a folder, memory-mapped. Raises WeightsError."""
    path = Path(path)
    if path.is_dir():
        return {name: t for file in sorted(path.glob("*.safetensors")) for name, t in read_tensors(file).items()}
    with opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def read_model(source: str | Path | tuple[Path, Path]) -> dict[str, Tensor]:
    """Returns the diffusion model's tensors by official name.

    source: a file, or (transformer, text_conditioner), the folders of a diffusers repository.
    """
    if isinstance(source, tuple):
        return join_from_diffusers(*map(read_tensors, source))
    return official(read_tensors(source))


def read_metadata(path: str | Path) -> dict[str, str]:
    """Returns the texts in the header of a safetensors file. Raises WeightsError."""
    with opened(path) as file:
        return file.metadata() or {}


def load_model(
    path: str | Path | tuple[Path, Path], config: ModelConfig, dtype: torch.dtype, device="cpu", offload: bool = False
) -> AnimaDiT:
    """Returns the diffusion model of a file, LLM adapter included, with as many blocks as the file has.

    dtype: what is computed in. Linears that are fp8 in the file stay fp8 in memory (`anima.linear`).
    offload: blocks and LLM adapter stay in host memory, in the file's dtype, and visit the device (`anima.offload`).
    Raises WeightsError, or KeyMismatch listing all names that do not fit.
    """
    metadata = {} if isinstance(path, tuple) or Path(path).is_dir() else read_metadata(path)
    tensors = one_layout(read_model(path), metadata, path)
    dit = dataclasses.replace(config.dit, blocks=block_count(tensors) or config.dit.blocks)
    config = dataclasses.replace(config, dit=dit)
    model = build(lambda: AnimaDiT(config), tensors, path, dtype, device, home=HOME if offload else ())
    if offload:
        model.visits = Visits(torch.device(device), dtype)
        if hasattr(model, "llm_adapter"):
            send_home(model.llm_adapter, torch.device(device), dtype, by_layer=True)
    return model


def load_qwen(path: str | Path, config: TextConfig, dtype: torch.dtype | None, device="cpu") -> nn.Module:
    """Returns the language model of a file or folder, whatever its names' prefix.

    dtype None keeps the file's: on the CPU then nothing is copied. Raises WeightsError, KeyMismatch.
    """
    metadata = {} if Path(path).is_dir() else read_metadata(path)
    tensors = one_layout(read_tensors(path), metadata, path)
    first, last = "embed_tokens.weight", "lm_head.weight"  # the head is for writing text, which nobody does here
    prefix = next((name.removesuffix(first) for name in tensors if name.endswith(first)), "model.")
    tensors = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix) or n != last}
    qwen = build(lambda: new_qwen(config), tensors, path, dtype, device)
    # RoPE's speeds are no weights: they are in no file and were made without memory.
    qwen.rotary_emb = type(qwen.rotary_emb)(qwen.config).to(device)
    return qwen


def load_codec(path: str | Path, config: CodecConfig, dtype: torch.dtype | None, device="cpu") -> nn.Module:
    """Returns what turns pixels into latents and back. dtype as in `load_qwen`. Raises WeightsError, KeyMismatch."""
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
    make: Callable[[], nn.Module],
    tensors: Mapping[str, Tensor],
    source,
    dtype: torch.dtype | None,
    device="cpu",
    home: tuple[str, ...] = (),
) -> nn.Module:
    """Returns make() with the tensors as its weights, for evaluation, without gradient.

    The module is made without memory and takes over the tensors, which go to the device one by one and are cast
    there: the host never holds more than the mapped file. dtype None keeps each tensor's own; fp8 weights of
    linears, and their scales, always keep theirs.
    home: names that begin with one of these stay on the host and keep their dtypes.
    """
    with torch.device("meta"):
        module = make()
    tensors = prepare(module, tensors)
    check_keys(shapes(module.state_dict()), shapes(tensors), str(source))  # before anything is moved
    own = module.state_dict()
    moved = {}
    for name, tensor in tensors.items():
        if name.startswith(home):
            # A GPU fetches from page-locked memory while it computes; from any other it would have to wait.
            moved[name] = tensor.pin_memory() if torch.device(device).type == "cuda" else tensor
            continue
        kept = dtype is None or not tensor.is_floating_point() or own[name].dtype in FLOAT8 or is_scale(name)
        there = tensor.to(device)
        moved[name] = there if kept else there.to(dtype)
    load_strict(module, moved, str(source), assign=True)
    refuse_not_finite(moved.items(), source)
    return module.eval().requires_grad_(False)
