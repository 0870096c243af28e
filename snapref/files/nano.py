"""The files of nano, the small model that ships inside the package."""

from pathlib import Path

from snapref.files.loader import WeightsError

FOLDER = Path(__file__).parents[1] / "weights" / "nano"

# File -> the command that makes it.
MADE_BY = {
    "base.safetensors": "snapref train run base",
    "text.safetensors": "snapref train run text",
    "qwen_tokenizer.json": "snapref train tokenizers",
    "t5_tokenizer.json": "snapref train tokenizers",
    "codec.safetensors": "snapref train run codec",
    "tagger.safetensors": "snapref train run tagger",
    **{
        f"adapter_{name}.safetensors": f"snapref train family FOLDER --only nano-{name}"
        for name in ("v1a", "v1b", "v2a")
    },
}


def nano_adapter(adapter: str | Path | None, folder: str | Path | None = None) -> Path:
    """Returns the file of an adapter given by path, by name (v1a, v1b, v2a), or None for v1a. Raises WeightsError."""
    if adapter is None or (f"adapter_{adapter}.safetensors" in MADE_BY and not Path(adapter).is_file()):
        return nano_file(f"adapter_{adapter or 'v1a'}.safetensors", folder)
    return Path(adapter)


def nano_file(name: str, folder: str | Path | None = None) -> Path:
    """Returns the path of one of nano's files. Raises WeightsError, saying what makes a missing one."""
    path = Path(folder or FOLDER) / name
    if not path.is_file():
        raise WeightsError(f"{path} is missing; `{MADE_BY[name]}` makes it")
    return path
