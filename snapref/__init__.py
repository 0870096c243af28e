"""Show Anima a character once: cached reference keys and values, from first principles to a working model.

    import snapref
    pipe = snapref.load("nano")
    pipe("1girl, beach, waving, full body", reference="picture.png").image

Importing this loads nothing heavy: torch comes with the first `load`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapref.sampling.pipeline import Pipeline

__version__ = "0.1.0"

# Names a notebook needs -> where they are defined.
_LAZY = {
    "Pipeline": "snapref.sampling.pipeline",
    "Settings": "snapref.sampling.settings",
    "ReferenceCache": "snapref.reference.cache",
    "NANO": "snapref.config",
    "BASE": "snapref.config",
}

__all__ = ["load", *_LAZY]


def load(
    name: str = "nano",
    *,
    base: str | Path | None = None,
    text_encoder: str | Path | None = None,
    vae: str | Path | None = None,
    tokenizers: tuple[str | Path, str | Path] | None = None,
    adapter: str | Path | bool | None = None,
    folder: str | Path | None = None,
    download: bool = False,
    place: tuple[float, float, float] | None = None,
    captions: Mapping[str, str] | None = None,
    loras: Sequence = (),
    device: str | None = None,
    dtype=None,
    offload: bool = False,
) -> "Pipeline":
    """Returns a pipeline that is ready to draw.

    "nano" comes with the package; `folder` takes its files from elsewhere, `adapter` another adapter:
    "v1a" (None), "v1b", "v2a", or a bundle's path (False: none).
    "anima" needs its published files: base, text_encoder, vae (safetensors) and tokenizers (the Qwen and the
    T5 one, each a tokenizer.json or a folder). What is not given by path is looked for in `folder` (None: where
    downloads go): ComfyUI's, a plain one, or a diffusers repository; `download` first fetches what is missing.
    adapter: a bundle's path, or its name in the folder's `loras`, such as "snapref_v1a"; without one no
    references are read. place, captions: for a bundle that does not state them.
    loras: what to add to the weights, each a path, a name in the folder's `loras`, or (one of these, strength),
    as `Pipeline.add_lora` takes it.
    device: None takes the GPU where there is one. dtype: a torch dtype, None chooses by the device.
    offload: anima's weights stay in host memory and visit the device block by block, for small cards
    (`snapref plan` says what fits).
    Raises WeightsError, KeyMismatch, BundleError or LoraError, each one sentence that names the file.
    """
    from snapref.files.places import find_lora
    from snapref.sampling.opening import open_anima, open_nano

    given = {"base": base, "text_encoder": text_encoder, "vae": vae, "tokenizers": tokenizers}
    if name == "nano":
        if wrong := [option for option, value in given.items() if value is not None]:
            raise ValueError(f"nano has its own files, so {', '.join(wrong)} cannot be given; use folder")
        if download:
            raise ValueError("nano ships with the package, so there is nothing to download; leave download out")
        if offload:
            raise ValueError("nano fits every card, so there is nothing to offload; leave offload out")
        pipe = open_nano(folder, adapter, device, dtype, place, captions)
    elif name == "anima":
        pipe = open_anima(folder, download, adapter, device, dtype, place, captions, offload, **given)
    else:
        raise ValueError(f"there is no model {name!r}; load 'nano' or 'anima'")
    for lora in loras:
        path, *strength = lora if isinstance(lora, (tuple, list)) else (lora,)
        pipe.add_lora(find_lora(path, folder), *strength)
    return pipe


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module 'snapref' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__():
    return sorted([*globals(), *_LAZY])
