"""An adapter's file in another number format: fp8 for half the bytes, or 16 bits."""

from pathlib import Path

import torch
from torch import Tensor

from snapref.anima.linear import FLOAT8
from snapref.files.broken import WeightsError, finite
from snapref.files.inspect import inspect
from snapref.files.loader import read_metadata, read_tensors
from snapref.files.weights import save_weights

FORMATS = {"fp8": torch.float8_e4m3fn, "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def by_row(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(e4m3 (rows, columns), scales (rows, 1) fp32): matrix ≈ e4m3 · scales. A row of zeros has scale 1."""
    matrix = matrix.detach().float()
    largest = matrix.abs().amax(dim=1, keepdim=True)
    scale = torch.where(largest > 0, largest / torch.finfo(torch.float8_e4m3fn).max, torch.ones(()))
    return (matrix / scale).to(torch.float8_e4m3fn), scale


def scaled(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file with the fp8 ones multiplied out, fp32; a scale is one number or one per row."""
    ends = {".weight_scale": ".weight", ".scale_weight": ".weight"}
    scales = {
        name.removesuffix(end) + own: tensor.float()
        for name, tensor in tensors.items()
        for end, own in ends.items()
        if name.endswith(end)
    }
    found = {}
    for name, tensor in tensors.items():
        if name.endswith(tuple(ends)):
            continue
        if tensor.dtype in FLOAT8:
            tensor = tensor.float() * scales.get(name, torch.ones(()))
        found[name] = tensor
    return found


def convert_adapter(source: str | Path, out: str | Path, format_: str = "fp8") -> tuple[int, int]:
    """Writes an adapter's matrices in `format_`, the header as it is; returns bytes before and after.

    fp8 has a scale for each row, fp32, beside the matrix, and names that end in ".weight". Raises WeightsError for a
    file that is no adapter, a format that is not known, numbers too large for it, or an `out` that is the source.
    """
    source, out = Path(source), Path(out)
    if format_ not in FORMATS:
        raise WeightsError(f"format is {format_!r}; it must be one of {', '.join(FORMATS)}")
    if (found := inspect(source)).kind != "adapter":
        raise WeightsError(f"{source} is {found.words}, no adapter; give an adapter's file")
    if out.exists() and out.samefile(source):
        raise WeightsError(f"{out} is the file that is read; give another name")
    tensors: dict[str, Tensor] = {}
    for name, tensor in scaled(read_tensors(source)).items():
        if tensor.ndim != 2:
            tensors[name] = tensor
        elif format_ == "fp8":
            stem = name.removesuffix(".weight")
            tensors[f"{stem}.weight"], tensors[f"{stem}.weight_scale"] = by_row(tensor)
        else:
            tensors[name] = tensor.to(FORMATS[format_])
    if lost := [name for name, tensor in tensors.items() if not finite(tensor)]:
        raise WeightsError(f"{lost[0]} of {source} has numbers that are not finite in {format_}; take bf16 or fp32")
    save_weights(tensors, out, dtype=None, metadata=read_metadata(source) or None)
    return source.stat().st_size, out.stat().st_size
