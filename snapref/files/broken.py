"""Opening a safetensors file, and saying in one sentence what is wrong with one that cannot be opened or used."""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

SHOWN = 4  # names of broken tensors in a sentence


class WeightsError(ValueError):
    """A weight file that cannot be used, in one sentence that ends with what to do."""


def opened(path: str | Path, device: str = "cpu"):
    """Returns the open file, memory-mapped; tensors come to `device`. Raises WeightsError."""
    path = Path(path)
    if path.is_dir():
        raise WeightsError(f"{path} is a folder; give the safetensors file in it")
    if not path.is_file():
        raise WeightsError(f"{path} does not exist; check the path")
    try:
        return safe_open(path, framework="pt", device=device)
    except SafetensorError as error:
        size = path.stat().st_size
        raise WeightsError(f"{path} ({size:,} bytes) is {what_is(path)}") from error


def what_is(path: Path) -> str:
    """Returns in words what a file that is no safetensors file seems to be, and what to do."""
    with path.open("rb") as file:
        start = file.read(256)
    again = "fetch it again"
    if not start:
        return f"empty; {again}"
    if start.startswith(b"version https://git-lfs"):
        promised = promised_by_pointer(start)
        return f"a Git LFS pointer, not the weights themselves{promised}; fetch it with `git lfs pull`"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return f"a web page, not weights; {again}, from its download link"
    if start.startswith((b"PK", b"\x80")):
        return "a pickle, which could run any program and is never opened; take the safetensors file of the model"
    if start.startswith(b"GGUF"):
        return "a GGUF file, whose number formats are not read; take the safetensors file of the model"
    if start[8:9] == b"{":  # eight bytes of length, then the header's JSON
        return f"a safetensors file cut short{promised_by_header(path)}; {again}"
    return f"no safetensors file; {again}"


def promised_by_pointer(start: bytes) -> str:
    """How many bytes a Git LFS pointer stands for, if it says so."""
    sizes = [line[5:] for line in start.decode("ascii", "replace").splitlines() if line.startswith("size ")]
    return f" ({int(sizes[0]):,} bytes were expected)" if sizes and sizes[0].isdigit() else ""


def promised_by_header(path: Path) -> str:
    """How many bytes the header of a safetensors file promises, if the header itself is whole."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= path.stat().st_size else b""
    try:
        ends = [entry["data_offsets"][1] for name, entry in json.loads(text).items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    return f" ({8 + length + max(ends, default=0):,} bytes were expected)"


def refuse_not_finite(tensors: Iterable[tuple[str, Tensor]], source: str | Path) -> None:
    """Raises WeightsError, naming them, for weights that hold NaN or infinity."""
    broken = [name for name, t in tensors if t.is_floating_point() and not finite(t)]
    if broken:
        more = f" and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
        raise WeightsError(
            f"{source} holds numbers that are not finite in {', '.join(broken[:SHOWN])}{more}; fetch it again, or take "
            "another file"
        )


def finite(tensor: Tensor) -> bool:
    """Whether all numbers are; a sum of absolute values is one pass, and only a bad one is looked at again."""
    if tensor.dtype.itemsize == 1:  # fp8 has no arithmetic of its own; e4m3fn has NaN and no infinity
        return not bool(torch.isnan(tensor.float()).any())
    return bool(torch.isfinite(tensor).all())
