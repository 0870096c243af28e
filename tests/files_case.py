"""Weight files of a tiny model in the layouts that people have, with random weights."""

import json
from pathlib import Path

import torch
from lora_case import random_pairs, write
from pipeline_case import TINY, tiny_adapter, tiny_parts, tiny_tokenizer
from safetensors.torch import load_file, save_file

from snapref.files.keys import split_for_diffusers
from snapref.reference.branches import linear_shapes
from snapref.reference.bundle import save_bundle

GOLDEN = Path(__file__).parent / "golden"
TINY_VAE = GOLDEN / "tiny_vae_state_dict.safetensors"


def prefixed(module, prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor for name, tensor in module.state_dict().items()}


def write_base(path: Path, prefix: str = "net.", **more) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({**prefixed(tiny_parts()[0], prefix), **more}, path)
    return path


def write_text_encoder(path: Path, prefix: str = "model.") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(prefixed(tiny_parts()[1].qwen, prefix), path)
    return path


def write_vae(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(TINY_VAE.read_bytes())
    return path


def write_adapter(path: Path, dtype=None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_bundle(tiny_adapter(), path, dtype)
    return path


def write_lora(path: Path, naming: str = "comfyui") -> Path:
    shapes = {f"blocks.0.{name}": shape for name, shape in linear_shapes(TINY.dit).items()}
    return write(path, random_pairs(shapes, shapes), naming)


def write_tokenizers(folder: Path) -> None:
    """Two folders that carry the marks by which Qwen's and T5's tokenizers are told apart."""
    for name, mark in (("qwen", "<|endoftext|>"), ("t5", "<extra_id_0>")):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        stored = json.loads(tiny_tokenizer().to_str())
        stored["added_tokens"].append({
            "id": 60, "content": mark, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True,
        })  # fmt: skip
        (place / "tokenizer.json").write_text(json.dumps(stored))
        (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def write_comfyui_program(root: Path) -> None:
    """The tokenizers that ComfyUI keeps inside the program, among those of other models."""
    texts = root / "comfy" / "text_encoders"
    write_tokenizers(texts)
    (texts / "qwen").rename(texts / "qwen25_tokenizer")
    (texts / "t5").rename(texts / "t5_tokenizer")
    clip = texts / "a_clip_tokenizer"
    clip.mkdir()
    (clip / "tokenizer.json").write_text("<|startoftext|> <|endoftext|>")
    (clip / "merges.txt").write_text("")


def comfyui_folder(root: Path) -> Path:
    models = root / "models"
    write_base(models / "diffusion_models/anima-base-v1.0.safetensors")
    write_base(models / "diffusion_models/another-merge.safetensors", "model.diffusion_model.")
    write_text_encoder(models / "text_encoders/qwen_3_06b_base.safetensors")
    write_vae(models / "vae/qwen_image_vae.safetensors")
    write_adapter(models / "loras/snapref_v1a.safetensors")
    write_adapter(models / "loras/snapref_v1b_fp8.safetensors")
    write_lora(models / "loras/style.safetensors")
    write_tokenizers(root / "tokenizers")
    return root


def plain_folder(root: Path) -> Path:
    write_base(root / "my-anima.safetensors", "")
    write_text_encoder(root / "qwen.safetensors")
    write_vae(root / "split_files/vae/vae.safetensors")
    write_tokenizers(root / "tokenizers")
    return root


def diffusers_folder(root: Path) -> Path:
    """A repository of folders, the transformer in two shards."""
    transformer, conditioner = split_for_diffusers(prefixed(tiny_parts()[0], ""))
    names = sorted(transformer)
    shards = {
        "transformer/model-00001-of-00002": {n: transformer[n] for n in names[::2]},
        "transformer/model-00002-of-00002": {n: transformer[n] for n in names[1::2]},
        "text_conditioner/diffusion_pytorch_model": conditioner,
        "text_encoder/model": prefixed(tiny_parts()[1].qwen, ""),
        "vae/diffusion_pytorch_model": load_file(TINY_VAE),
    }
    for name, tensors in shards.items():
        path = root / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({n: t.contiguous() for n, t in tensors.items()}, path)
        (path.parent / "config.json").write_text("{}")
    write_tokenizers(root / "tokenizers")
    for name, place in (("qwen", "tokenizer"), ("t5", "t5_tokenizer")):
        (root / "tokenizers" / name).rename(root / place)
    return root
