"""Files into a pipeline: nano's own, or the published ones of Anima."""

from pathlib import Path

import torch

from snapref.anima.text import TextEncoder
from snapref.config import BASE, NANO, ModelConfig
from snapref.files.loader import WeightsError, load_codec, load_model, load_qwen, load_tokenizer
from snapref.files.nano import nano_file
from snapref.reference.bundle import load_bundle
from snapref.sampling.pipeline import Pipeline


def open_nano(folder=None, adapter=None, device=None, dtype=None) -> Pipeline:
    """Returns nano from its files (None: the shipped ones). Raises WeightsError for a missing one."""

    def file(name: str) -> Path:
        return nano_file(name, folder)

    return open_files(
        NANO,
        base=file("base.safetensors"),
        text_encoder=file("text.safetensors"),
        codec=file("codec.safetensors"),
        tokenizers=(file("qwen_tokenizer.json"), file("t5_tokenizer.json")),
        adapter=None if adapter is False else adapter or file("adapter_v1a.safetensors"),
        device=pick_device(device),
        dtype=dtype or torch.float32,  # too small a model to gain anything from less
    )


def open_anima(base, text_encoder, vae, tokenizers, adapter=None, device=None, dtype=None) -> Pipeline:
    """Returns Anima from the paths of its published files. Raises WeightsError where one is not given."""
    needed = {"base": base, "text_encoder": text_encoder, "vae": vae, "tokenizers": tokenizers}
    if missing := [name for name, value in needed.items() if value is None]:
        raise WeightsError(f"anima needs the paths of its files: {', '.join(missing)} not given")
    device = pick_device(device)
    return open_files(
        BASE,
        base=base,
        text_encoder=text_encoder,
        codec=vae,
        tokenizers=tokenizers,
        adapter=adapter or None,
        device=device,
        dtype=dtype or pick_dtype(device),
    )


def open_files(
    config: ModelConfig,
    *,
    base,
    text_encoder,
    codec,
    tokenizers,
    adapter,
    device: torch.device,
    dtype: torch.dtype,
) -> Pipeline:
    """Returns the pipeline of a config and its files; adapter None for none."""
    model = load_model(base, config, dtype, device)
    config = model.config  # its number of blocks is the file's
    # The language model and the codec are small, and half precision would show in them.
    qwen = load_qwen(text_encoder, config.text, torch.float32, device)
    text = TextEncoder(qwen, *map(load_tokenizer, tokenizers), model.llm_adapter, config.text)
    pictures = load_codec(codec, config.codec, torch.float32, device)
    branches = None if adapter is None else load_bundle(adapter, config).to(device).requires_grad_(False)
    return Pipeline(model, text, pictures, config, branches)


def pick_device(device: str | torch.device | None) -> torch.device:
    """Returns the device asked for, else the GPU where there is one."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def pick_dtype(device: torch.device) -> torch.dtype:
    """Returns fp32 on a CPU, bf16 on a GPU that has it, fp16 on an older one, which would emulate bf16."""
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
