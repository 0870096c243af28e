"""Weights in eight bits: the three fp8 layouts of public files in one, and every other number format refused.

    plain       <m>.weight fp8
    current     <m>.weight fp8, <m>.weight_scale, <m>.comfy_quant (JSON bytes) or `_quantization_metadata`
    older       <m>.weight fp8, <m>.scale_weight, one scaled_fp8 marker per file

W = weight · scale in all of them (specification section 7). Scales for activations, which some programs use on
cards that multiply in fp8, are left out: here weights are widened, so W is what is multiplied by.
"""

import json
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from snapref.anima.linear import FLOAT8, Float8Linear
from snapref.files.broken import WeightsError
from snapref.files.keys import PREFIXES

SCALES = (".weight_scale", ".scale_weight")
FOR_ACTIVATIONS = (".input_scale", ".scale_input")
MARKER = "scaled_fp8"
READ = ("float8_e4m3fn", "float8_e5m2")
# What a tensor's dtype gives away where nothing else names the format.
FOREIGN = {torch.int8: "int8", torch.uint8: "4-bit (nvfp4 or another packed format)"}
for name, what in (("float4_e2m1fn_x2", "nvfp4"), ("float8_e8m0fnu", "mxfp8")):
    if hasattr(torch, name):  # newer than the oldest torch that is supported
        FOREIGN[getattr(torch, name)] = what


def one_layout(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], source) -> dict[str, Tensor]:
    """Returns the tensors with every scale as `<m>.weight_scale`, fp32 and shaped as `Float8Linear` has it.

    Names may carry the file's prefix or not. What belongs to the format alone is left out.
    Raises WeightsError, naming the format, for one that is not read.
    """
    for module, format_ in stated_formats(tensors, metadata, source).items():
        if format_ not in READ:
            refuse(source, module, format_)
    kept, scales = {}, {}
    for name, tensor in tensors.items():
        module = next((name.removesuffix(suffix) for suffix in SCALES if name.endswith(suffix)), None)
        if name.endswith(".comfy_quant") or name.rpartition(".")[2] == MARKER or name.endswith(FOR_ACTIVATIONS):
            continue
        if name.endswith(".weight_scale_2"):
            refuse(source, name.removesuffix(".weight_scale_2"), "nvfp4")
        if tensor.dtype in FOREIGN:
            weight = tensors.get(f"{module}.weight")
            # A block format's scales are bytes too; its weights may look like plain fp8.
            blocks_of_8_bits = weight is not None and weight.dtype in FLOAT8
            refuse(source, name, "mxfp8" if blocks_of_8_bits else FOREIGN[tensor.dtype])
        if module is None:
            kept[name] = tensor
        else:
            scales[module] = tensor
    for module, scale in scales.items():
        weight = kept.get(f"{module}.weight")
        if weight is None or weight.dtype not in FLOAT8:
            what = "no weight" if weight is None else f"a weight in {str(weight.dtype).removeprefix('torch.')}"
            raise WeightsError(f"{source} has a scale for {module} but {what}; fetch it again, or take another file")
        kept[f"{module}.weight_scale"] = shaped_scale(scale, weight, f"{source}: {module}")
    return kept


def stated_formats(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], source) -> dict[str, str]:
    """Returns module -> format, as the file itself says, in its header or in `comfy_quant` tensors."""
    texts = {}
    try:
        stated = json.loads(metadata.get("_quantization_metadata", "{}")).get("layers", {})
        for name, tensor in tensors.items():
            if name.endswith(".comfy_quant"):
                texts[name.removesuffix(".comfy_quant")] = json.loads(bytes(tensor.tolist()))
        found = {}
        for module, entry in (stated | texts).items():
            for prefix in PREFIXES:
                module = module.removeprefix(prefix)
            # Rotated weights need their inputs rotated too: their numbers alone are another layer.
            found[module] = "convrot" if entry.get("convrot") else str(entry.get("format"))
        return found
    except (ValueError, AttributeError, TypeError) as error:
        raise WeightsError(f"{source} says in damaged words how it is quantised ({error}); fetch it again") from error


def refuse(source, module: str, format_: str) -> None:
    raise WeightsError(
        f"{source} holds {module} in the format {format_}, which is not read; take the bf16 file, or an fp8 one (e4m3)"
    )


def shaped_scale(scale: Tensor, weight: Tensor, where: str) -> Tensor:
    """Returns the scale in fp32: (1, 1) for one number, (out, 1) for one per row, (out, k, 1) for k per row."""
    rows, columns = weight.shape if weight.ndim == 2 else (len(weight), 0)
    scale = scale.to(torch.float32)
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    if scale.shape in ((rows,), (rows, 1)):
        return scale.reshape(rows, 1)
    if scale.ndim == 3 and scale.shape[::2] == (rows, 1) and columns % scale.shape[1] == 0:
        return scale
    raise WeightsError(
        f"{where} has a weight {tuple(weight.shape)} and a scale {tuple(scale.shape)}; a scale is one number, one per "
        "row, or some per row: take another file"
    )


def prepare(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gives a module a `Float8Linear` wherever a linear's weight is fp8, and returns the tensors to load.

    module: made without memory. What is fp8 but no linear (a norm, an embedding) is widened, for it is small
    or read by row.
    """
    tensors = dict(tensors)
    linears = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    for name, tensor in list(tensors.items()):
        if tensor.dtype not in FLOAT8:
            continue
        stem = name.removesuffix(".weight")
        scale = tensors.get(f"{stem}.weight_scale")
        if linear := linears.get(stem):
            shape = None if scale is None else tuple(scale.shape)
            narrow = Float8Linear(
                linear.in_features, linear.out_features, linear.bias is not None, tensor.dtype, shape
            )
            parent, _, last = stem.rpartition(".")
            module.get_submodule(parent)._modules[last] = narrow
        else:
            tensors[name] = tensor.float() if scale is None else tensor.float() * scale
            tensors.pop(f"{stem}.weight_scale", None)
    return tensors


def is_scale(name: str) -> bool:
    """Whether a tensor of `one_layout` is a scale, which stays fp32 whatever is computed in."""
    return name.endswith(SCALES[0])
