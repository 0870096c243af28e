"""The adapter as one file, format `anima_ref_kv/1`.

A safetensors file whose header says `format` and `config` (JSON: ranks, alphas, place, modes with their
captions, base width and blocks), with tensors `ref.<module>.lora_A.weight`, `….lora_B.weight` and `tgt.…`.
Which modules carry a branch and with which rank is read from the tensors, never assumed: several layouts have
the published number of parameters. The namings of other trainers are read as well.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from snapref.config import AdapterConfig, ModelConfig
from snapref.files.convert import FORMATS, by_row, scaled
from snapref.files.keys import PREFIXES
from snapref.files.loader import read_metadata, read_tensors
from snapref.files.weights import save_weights
from snapref.reference.branches import Adapter, Spec, linear_shapes

FORMAT = "anima_ref_kv/1"
FP8 = FORMATS["fp8"]

_NAME = re.compile(
    r"(?P<side>ref|tgt)\.(?P<stem>.+)\."
    r"(?:(?P<down>lora_A|lora_down|lora\.down)|(?P<up>lora_B|lora_up|lora\.up)|(?P<alpha>alpha))"
    r"(?:\.default)?(?:\.weight)?"
)


class BundleError(ValueError):
    """A file that is no adapter for this base; lists everything that is wrong with it at once."""


def save_bundle(
    adapter: Adapter, path, dtype: torch.dtype | None = None, notes: Mapping[str, str] | None = None
) -> None:
    """Write the adapter, aside and then moved into place.

    dtype: what matrices are stored in (None: what they are); torch.float8_e4m3fn stores each row scaled to the
    format's range, with the scales (rows, 1) in fp32 beside it: half the size of 16 bits.
    notes: more texts for the header.
    """
    config, dit = adapter.config, adapter.model.dit
    header = {
        "reference_rank": config.reference_rank, "target_rank": config.target_rank,
        "reference_alpha": config.reference_alpha, "target_alpha": config.target_alpha,
        "place": config.place, "captions": config.captions, "default_mode": config.default_mode,
        "name": config.name, "base": adapter.model.name, "width": dit.width, "blocks": dit.blocks,
    }
    if dtype == FP8:
        tensors = {}
        for name, tensor in adapter.state_dict().items():
            tensors[name], tensors[f"{name}_scale"] = by_row(tensor)
    else:
        tensors = {name: tensor.to(dtype or tensor.dtype) for name, tensor in adapter.state_dict().items()}
    usual = {"ref": config.reference_alpha, "tgt": config.target_alpha}
    for name, spec in adapter.specs.items():
        if spec.scale * spec.rank != usual[name[:3]]:  # a module that goes its own way says so itself
            tensors[f"{name}.alpha"] = torch.tensor(spec.scale * spec.rank)
    metadata = {**(notes or {}), "format": FORMAT, "config": json.dumps(header)}
    save_weights(tensors, path, dtype=None, metadata=metadata)


def load_bundle(
    path,
    model: ModelConfig,
    dtype: torch.dtype = torch.float32,
    *,
    place: tuple[float, float, float] | None = None,
    captions: Mapping[str, str] | None = None,
) -> Adapter:
    """The adapter of a file, for a base of `model`'s sizes.

    place, captions: what the file's header does not state, or what shall replace it.

    The scale of a module is alpha / rank, alpha being its own tensor, else the header's; without any it is 1.
    Raises BundleError where place or captions are stated nowhere, or listing all missing, unexpected and
    mis-shaped tensors at once, and WeightsError for what is no safetensors file.
    """
    name, header = Path(path).name, read_metadata(path)
    if header.get("format", FORMAT) != FORMAT:
        raise BundleError(f"{name!r} has format {header['format']!r}, this reads {FORMAT!r}; update snapref")
    settings = header_settings(name, header)
    given = {"place": place, "captions": captions}
    settings |= {field: value for field, value in given.items() if value is not None}
    for field, own in (("width", model.dit.width), ("blocks", model.dit.blocks)):
        if settings.get(field, own) != own:
            raise BundleError(
                f"{name!r} was made for a base with {field} {settings[field]}, {model.name!r} has {own}; "
                "take the adapter of this base"
            )
    pairs, alphas = sorted_tensors(name, scaled(read_tensors(path)), model)
    if unstated := [field for field in given if field not in settings]:
        # Any other place or caption gives plausible keys that the adapter never learnt to read.
        raise BundleError(
            f"{name!r} does not state its {' and '.join(unstated)}; give {', '.join(f'{u}=' for u in unstated)} "
            "as its author documents them"
        )
    specs = {}
    for module, (down, _) in pairs.items():
        rank = len(down)
        alpha = alphas.get(module, header_alpha(settings, header, module[:3]))
        specs[module] = Spec(rank, 1.0 if alpha is None else alpha / rank)
    with torch.device("meta"):  # without memory and without first values, for it takes the file's
        adapter = Adapter(adapter_config(Path(path).stem, settings, specs), model, specs)
    weights = {
        f"{module}.{matrix}.weight": tensor.to(dtype, copy=True)
        for module, pair in pairs.items()
        for matrix, tensor in zip(("lora_A", "lora_B"), pair, strict=True)
    }
    adapter.load_state_dict(weights, assign=True)
    return adapter


def sorted_tensors(
    name: str, tensors: Mapping[str, Tensor], model: ModelConfig
) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, float]]:
    """({module: (A (rank, in), B (out, rank))}, {module: alpha}); modules as "ref.blocks.0.mlp.layer1"."""
    shapes = linear_shapes(model.dit)
    blocks = range(model.dit.blocks)
    modules = {f"blocks.{i}.{linear}": shape for i in blocks for linear, shape in shapes.items()}
    # Other trainers write dots as underscores. Only the list of modules undoes that: "q_proj" has its own.
    stems = {spelling: module for module in modules for spelling in (module, module.replace(".", "_"))}

    downs, ups, alphas, unexpected, misshaped = {}, {}, {}, [], []
    for key, tensor in tensors.items():
        found = _NAME.fullmatch(key)
        stem = found and without(found["stem"], (*PREFIXES, "lora_unet_"))
        if stem not in stems:
            unexpected.append(key)
            continue
        module = f"{found['side']}.{stems[stem]}"
        kind = downs if found["down"] else ups if found["up"] else alphas
        if module in kind:  # the same matrix under two namings
            unexpected.append(key)
        kind[module] = tensor
    unexpected += [f"{module}.alpha" for module in alphas if module not in downs and module not in ups]
    missing = [f"{module}.lora_B.weight" for module in downs if module not in ups]
    missing += [f"{module}.lora_A.weight" for module in ups if module not in downs]
    for module in downs.keys() & ups.keys():
        down, up = downs[module], ups[module]
        outputs, inputs = modules[module[4:]]
        rank = down.shape[0] if down.ndim else 0
        if down.shape != (rank, inputs) or up.shape != (outputs, rank) or not rank:
            misshaped.append(
                f"{module} A {tuple(down.shape)} and B {tuple(up.shape)}, "
                f"expected (rank, {inputs}) and ({outputs}, rank)"
            )
    misshaped += [
        f"{module}.alpha {tuple(alpha.shape)}, expected one number"
        for module, alpha in alphas.items()
        if alpha.numel() != 1
    ]
    wrong = [
        f"{len(names)} {kind}: {', '.join(sorted(names))}"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("mis-shaped", misshaped))
        if names
    ]
    if wrong or not downs:
        raise BundleError(
            f"{name!r} is no adapter for {model.name!r}: {'; '.join(wrong) or 'it holds no tensors'}; "
            "take the adapter that was made for this base"
        )
    ordered = [f"{side}.{module}" for side in ("ref", "tgt") for module in modules]
    pairs = {module: (downs[module], ups[module]) for module in ordered if module in downs}
    return pairs, {module: float(alpha) for module, alpha in alphas.items()}


def header_settings(name: str, header: Mapping[str, str]) -> dict:
    """The header's config; empty when there is none."""
    try:
        settings = json.loads(header.get("config", "{}"))
    except json.JSONDecodeError as error:
        raise BundleError(f"{name!r} has a damaged config in its header ({error}); fetch it again") from None
    if not isinstance(settings, dict):
        raise BundleError(f"{name!r} has a config that is no JSON object; fetch the file again")
    return settings


def header_alpha(settings: Mapping, header: Mapping[str, str], side: str) -> float | None:
    """A branch's alpha from the config, or from where other trainers put one for the whole file."""
    own = {"ref": "reference_alpha", "tgt": "target_alpha"}[side]
    named = [settings.get(name) for name in (own, f"{side}_alpha", "alpha")]
    named += [header.get(name) for name in ("alpha", "ss_network_alpha")]
    return next((float(alpha) for alpha in named if alpha not in (None, "None")), None)


def adapter_config(name: str, settings: Mapping, specs: Mapping[str, Spec]) -> AdapterConfig:
    """The config of what was found: ranks and modules from the tensors, the rest from the header."""

    def rank_and_alpha(side: str) -> tuple[int, float]:
        own = [spec for module, spec in specs.items() if module.startswith(side)]
        largest = max(own, key=lambda spec: spec.rank, default=Spec(1, 1.0))
        return largest.rank, largest.scale * largest.rank

    def modules(side: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(module.split(".", 3)[3] for module in specs if module.startswith(side)))

    reference_rank, reference_alpha = rank_and_alpha("ref")
    target_rank, target_alpha = rank_and_alpha("tgt")
    config = AdapterConfig(
        settings.get("name", name), reference_rank, target_rank, reference_alpha, target_alpha,
        place=tuple(map(float, settings["place"])),
        reference_targets=modules("ref"), target_targets=modules("tgt"),
    )
    captions = dict(settings["captions"])
    return replace(config, captions=captions, default_mode=settings.get("default_mode", next(iter(captions))))


def without(text: str, prefixes: tuple[str, ...]) -> str:
    for prefix in prefixes:
        text = text.removeprefix(prefix)
    return text
