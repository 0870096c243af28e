"""Files into a pipeline: nano's own, or the published ones of Anima."""

from pathlib import Path

import torch

from snapref.anima.offload import send_home
from snapref.anima.text import TextEncoder
from snapref.config import BASE, NANO, ModelConfig
from snapref.files.download import download_anima
from snapref.files.loader import load_codec, load_model, load_qwen, load_tokenizer, read_tensors
from snapref.files.nano import nano_adapter, nano_file
from snapref.files.places import check_slot, check_tokenizers, find_adapter, find_anima, folder_or_default
from snapref.reference.bundle import load_bundle
from snapref.sampling.pipeline import Pipeline


def open_nano(folder=None, adapter=None, device=None, dtype=None, place=None, captions=None) -> Pipeline:
    """Returns nano from its files (None: the shipped ones). Raises WeightsError for a missing one.

    adapter: a path, or v1a (None), v1b, v2a by name; False for none.
    """

    def file(name: str) -> Path:
        return nano_file(name, folder)

    return open_files(
        NANO,
        base=file("base.safetensors"),
        text_encoder=file("text.safetensors"),
        codec=file("codec.safetensors"),
        tokenizers=(file("qwen_tokenizer.json"), file("t5_tokenizer.json")),
        adapter=None if adapter is False else nano_adapter(adapter, folder),
        device=pick_device(device),
        dtype=dtype or torch.float32,  # too small a model to gain anything from less
        place=place,
        captions=captions,
    )


def open_anima(
    folder=None,
    download: bool = False,
    adapter=None,
    device=None,
    dtype=None,
    place=None,
    captions=None,
    offload: bool = False,
    **files,
) -> Pipeline:
    """Returns Anima from its published files: those given in `files`, the rest found in `folder`.

    files: base, text_encoder, vae, tokenizers; None for what is to be found. download: fetch what is missing.
    adapter: a path, or a name in the folder's `loras`. place, captions: what the adapter's file does not state.
    Raises WeightsError, naming the argument to give, for a part that is not found.
    """
    places = download_anima(folder, **files) if download else find_anima(folder, **files)
    check_tokenizers(*places.tokenizers)
    device = pick_device(device)
    return open_files(
        BASE,
        base=places.base,
        text_encoder=places.text_encoder,
        codec=places.vae,
        tokenizers=places.tokenizers,
        adapter=find_adapter(adapter, folder_or_default(folder)) if adapter else None,
        device=device,
        dtype=dtype or pick_dtype(device),
        place=place,
        captions=captions,
        offload=offload,
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
    place=None,
    captions=None,
    offload: bool = False,
) -> Pipeline:
    """Returns the pipeline of a config and its files; adapter None for none.

    place, captions: for an adapter whose file does not state them.
    offload: blocks, language model, LLM adapter and codec stay in host memory, as the file has them, and visit the
    device: a block, or a layer of the others, at a time.
    Raises WeightsError for a file in the wrong slot, before anything is loaded.
    """
    for slot, source in {"base": base, "text_encoder": text_encoder, "vae": codec, "adapter": adapter}.items():
        check_slot(source, slot)
    model = load_model(base, config, dtype, device, offload)
    config = model.config  # its number of blocks is the file's
    # The language model and the codec are small, and half precision would show in them.
    qwen = guest(load_qwen, text_encoder, config.text, device, offload or device.type == "cuda", offload)
    text = TextEncoder(qwen, *map(load_tokenizer, tokenizers), model.llm_adapter, config.text)
    pictures = guest(load_codec, codec, config.codec, device, offload, offload)
    branches = None
    if adapter is not None:
        stored = stored_dtype(adapter) if offload else torch.float32  # the same numbers, in half the room
        branches = load_bundle(adapter, config, stored, place=place, captions=captions)
        branches = branches.to(device).requires_grad_(False)
    return Pipeline(model, text, pictures, config, branches)


def guest(load, path, config, device: torch.device, away: bool, by_layer: bool):
    """Returns a module that computes in fp32 on the device; `away` lets it live in its file between uses, and
    `by_layer` while it is in use, too."""
    if not away:
        return load(path, config, torch.float32, device)
    return send_home(load(path, config, None), device, torch.float32, by_layer)


def stored_dtype(path) -> torch.dtype:
    """Returns what the matrices of a bundle are stored in; fp32 unless all are in one 16-bit format."""
    dtypes = {tensor.dtype for name, tensor in read_tensors(path).items() if tensor.ndim == 2}
    return dtypes.pop() if len(dtypes) == 1 and dtypes <= {torch.float16, torch.bfloat16} else torch.float32


def pick_device(device: str | torch.device | None) -> torch.device:
    """Returns the device asked for, else the GPU where there is one."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def pick_dtype(device: torch.device) -> torch.dtype:
    """Returns fp32 on a CPU, bf16 on a GPU that has it, fp16 on an older one, which would emulate bf16."""
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
