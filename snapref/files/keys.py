"""Tensor names on disk and in our modules: prefixes, leftovers, a strict comparison, diffusers' names."""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch

import torch
from torch import Tensor, nn

from snapref.anima.vae import QwenImageVAE
from snapref.files.broken import refuse_not_finite

# Specification section 1: base files carry the first, aesthetic and turbo files the second; some carry none.
PREFIXES = ("net.", "model.diffusion_model.", "diffusion_model.")
# All-in-one checkpoints hold the other models under these.
OTHER_MODELS = ("first_stage_model.", "vae.", "text_encoders.")
# Left over from training or from another program; nothing of the model.
IGNORABLE = ("pos_embedder.*", "*_extra_state", "accum_*", "*.accum_*", "model_sampling.sigmas")

SHOWN = 8  # names listed per kind of mismatch; the exception's attributes hold all of them

# Modules of one block, official → diffusers' CosmosTransformer3DModel.
DIFFUSERS_BLOCK = {
    "self_attn.q_proj": "attn1.to_q",
    "self_attn.k_proj": "attn1.to_k",
    "self_attn.v_proj": "attn1.to_v",
    "self_attn.output_proj": "attn1.to_out.0",
    "self_attn.q_norm": "attn1.norm_q",
    "self_attn.k_norm": "attn1.norm_k",
    "cross_attn.q_proj": "attn2.to_q",
    "cross_attn.k_proj": "attn2.to_k",
    "cross_attn.v_proj": "attn2.to_v",
    "cross_attn.output_proj": "attn2.to_out.0",
    "cross_attn.q_norm": "attn2.norm_q",
    "cross_attn.k_norm": "attn2.norm_k",
    "mlp.layer1": "ff.net.0.proj",
    "mlp.layer2": "ff.net.2",
    "adaln_modulation_self_attn.1": "norm1.linear_1",
    "adaln_modulation_self_attn.2": "norm1.linear_2",
    "adaln_modulation_cross_attn.1": "norm2.linear_1",
    "adaln_modulation_cross_attn.2": "norm2.linear_2",
    "adaln_modulation_mlp.1": "norm3.linear_1",
    "adaln_modulation_mlp.2": "norm3.linear_2",
}
DIFFUSERS_OUTSIDE = {
    "x_embedder.proj.1": "patch_embed.proj",
    "t_embedder.1.linear_1": "time_embed.t_embedder.linear_1",
    "t_embedder.1.linear_2": "time_embed.t_embedder.linear_2",
    "t_embedding_norm": "time_embed.norm",
    "final_layer.linear": "proj_out",
    "final_layer.adaln_modulation.1": "norm_out.linear_1",
    "final_layer.adaln_modulation.2": "norm_out.linear_2",
}
OFFICIAL_BLOCK = {theirs: ours for ours, theirs in DIFFUSERS_BLOCK.items()}
OFFICIAL_OUTSIDE = {theirs: ours for ours, theirs in DIFFUSERS_OUTSIDE.items()}


class KeyMismatch(ValueError):
    """Names or shapes that do not fit: `missing`, `unexpected` (names) and `misshaped` (sentences)."""

    def __init__(self, source: str, missing: list[str], unexpected: list[str], misshaped: list[str]):
        self.missing, self.unexpected, self.misshaped = missing, unexpected, misshaped
        kinds = (("missing", missing), ("unexpected", unexpected), ("of another shape", misshaped))
        listed = "; ".join(f"{len(names)} {kind}: {shortened(names)}" for kind, names in kinds if names)
        super().__init__(f"{source} does not fit the model: {listed}. Give the file made for this model.")


def shortened(names: list[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def prefix_of(names: Iterable[str]) -> str:
    """The prefix that the diffusion model's names carry in a file; "" for none."""
    names = list(names)
    return next((p for p in PREFIXES if any(name.startswith(p) for name in names)), "")


def is_ignorable(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in IGNORABLE)


def official(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The diffusion model's tensors of a file, by official name: prefix off, other models and leftovers out.

    Whatever else the file holds stays, for `check_keys` to list.
    """
    prefix = prefix_of(tensors)
    named = {name.removeprefix(prefix): t for name, t in tensors.items() if not name.startswith(OTHER_MODELS)}
    return {name: t for name, t in named.items() if not is_ignorable(name)}


def block_count(names: Iterable[str]) -> int:
    """How many transformer blocks the official names speak of; 28 is usual, 40 and 52 exist."""
    found = {int(match[1]) for name in names if (match := re.match(r"blocks\.(\d+)\.", name))}
    return max(found, default=-1) + 1


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in tensors.items()}


def check_keys(expected: Mapping[str, tuple], found: Mapping[str, tuple], source: str) -> None:
    """Compare name → shape. Raises one KeyMismatch that lists everything which is wrong."""
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    misshaped = [
        f"{name} is {found[name]}, should be {shape}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    if missing or unexpected or misshaped:
        raise KeyMismatch(source, missing, unexpected, misshaped)


def load_strict(module: nn.Module, tensors: Mapping[str, Tensor], source: str, assign: bool = False) -> None:
    """Load tensors that are named as the module's own; `assign` takes the tensors themselves, without a copy.

    Raises KeyMismatch before anything is changed.
    """
    check_keys(shapes(module.state_dict()), shapes(tensors), source)
    module.load_state_dict(tensors, assign=assign)


def to_diffusers(name: str) -> str:
    """Official name of a module or tensor of the transformer → its name in CosmosTransformer3DModel."""
    return renamed(name, "blocks", "transformer_blocks", DIFFUSERS_BLOCK, DIFFUSERS_OUTSIDE)


def from_diffusers(name: str) -> str:
    """The way back of `to_diffusers`."""
    return renamed(name, "transformer_blocks", "blocks", OFFICIAL_BLOCK, OFFICIAL_OUTSIDE)


def renamed(name: str, list_from: str, list_to: str, block: Mapping, outside: Mapping) -> str:
    match = re.match(rf"{list_from}\.(\d+)\.(.+)", name)
    start, rest, table = (f"{list_to}.{match[1]}.", match[2], block) if match else ("", name, outside)
    for module, other in table.items():
        if rest == module or rest.startswith(f"{module}."):
            return start + other + rest.removeprefix(module)
    raise KeyError(f"{name} is no module of the transformer")


def split_for_diffusers(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Official names → state dicts of (CosmosTransformer3DModel, AnimaTextConditioner)."""
    adapter = "llm_adapter."
    transformer = {to_diffusers(n): t for n, t in tensors.items() if not n.startswith(adapter)}
    conditioner = {n.removeprefix(adapter): t for n, t in tensors.items() if n.startswith(adapter)}
    return transformer, conditioner


def join_from_diffusers(
    transformer: Mapping[str, Tensor], conditioner: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The way back of `split_for_diffusers`."""
    adapter = {f"llm_adapter.{n}": t for n, t in conditioner.items()}
    return {from_diffusers(n): t for n, t in transformer.items()} | adapter


def load_vae(tensors: Mapping[str, Tensor], source: str) -> QwenImageVAE:
    """The published VAE from its tensors, named by ComfyUI or by diffusers; its width is read from them.

    The tensors are taken as they are, not copied. Raises KeyMismatch, with names as diffusers has them.
    """
    from diffusers import AutoencoderKLQwenImage
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    for prefix in ("first_stage_model.", "vae."):
        if any(name.startswith(prefix) for name in tensors):
            tensors = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    if "quant_conv.weight" not in tensors:
        tensors = convert_wan_vae_to_diffusers(dict(tensors))
    first = tensors.get("encoder.conv_in.weight")
    with torch.device("meta"):
        vae = AutoencoderKLQwenImage(base_dim=96 if first is None else len(first))
    load_strict(vae, tensors, source, assign=True)
    refuse_not_finite(tensors.items(), source)
    return QwenImageVAE(vae.eval().requires_grad_(False))
