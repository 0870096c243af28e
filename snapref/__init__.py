"""Show Anima a character once: cached reference keys and values, from first principles to a working model.

    import snapref
    pipe = snapref.load("nano")
    pipe("1girl, beach, waving, full body", reference="picture.png").image

Importing this loads nothing heavy: torch comes with the first `load`.
"""

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
    device: str | None = None,
    dtype=None,
) -> "Pipeline":
    """Returns a pipeline that is ready to draw.

    "nano" comes with the package; `folder` takes its files from elsewhere, `adapter` another adapter
    (False: none).
    "anima" needs the paths of its published files: base, text_encoder, vae (safetensors) and tokenizers
    (the Qwen and the T5 one, each a tokenizer.json or a folder); without `adapter` it reads no references.
    device: None takes the GPU where there is one. dtype: a torch dtype, None chooses by the device.
    Raises WeightsError, KeyMismatch or BundleError, each one sentence that names the file.
    """
    from snapref.sampling.opening import open_anima, open_nano

    if name == "nano":
        given = {"base": base, "text_encoder": text_encoder, "vae": vae, "tokenizers": tokenizers}
        if wrong := [option for option, value in given.items() if value is not None]:
            raise ValueError(f"nano has its own files, so {', '.join(wrong)} cannot be given; use folder")
        return open_nano(folder, adapter, device, dtype)
    if name == "anima":
        return open_anima(base, text_encoder, vae, tokenizers, adapter, device, dtype)
    raise ValueError(f"there is no model {name!r}; load 'nano' or 'anima'")


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module 'snapref' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__():
    return sorted([*globals(), *_LAZY])
