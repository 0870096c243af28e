"""What a file is, told from its header alone: names, shapes and number formats, not one weight is read."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from snapref.files.broken import opened
from snapref.files.keys import block_count, is_ignorable, prefix_of
from snapref.files.lora import MATRIX, OTHER_METHODS

# Slots of `snapref.load`, by kind.
SLOTS = {"dit": "base", "text encoder": "text_encoder", "vae": "vae", "adapter": "adapter", "lora": "loras"}
BRANCHES = re.compile(r"(?P<side>ref|tgt)\.(?P<module>.+?)\.(?:lora_A|lora_down|lora\.down)(?:\.default)?(?:\.weight)?")
FP8 = {"F8_E4M3", "F8_E5M2"}
# What no other family of models has under this name; of any shard of a diffusers repository, some.
OFFICIAL_SIGN = re.compile(r"blocks\.0\.mlp\.layer1\.weight")
DIFFUSERS_SIGN = re.compile(r"transformer_blocks\.\d+\.norm[123]\.linear_[12]\.weight")


@dataclass(frozen=True)
class Entry:
    """A tensor in a file's header."""

    shape: tuple[int, ...]
    dtype: str  # as safetensors writes it: BF16, F8_E4M3, …

    @property
    def nbytes(self) -> int:
        bits = int(re.sub(r"\D", "", self.dtype.partition("_")[0]) or 8)
        return prod(self.shape) * bits // 8


@dataclass(frozen=True)
class Found:
    """kind: dit, llm adapter, text encoder, vae, lora, adapter, reference cache, nano codec, tagger, or unknown."""

    path: Path
    kind: str
    words: str  # the kind with its measures, to stand after "is"
    facts: dict = field(default_factory=dict)

    @property
    def slot(self) -> str | None:
        """The argument of `snapref.load` that takes it."""
        return SLOTS.get(self.kind)


def read_header(path: str | Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """Returns ({name: Entry}, metadata) of a safetensors file. Raises WeightsError."""
    with opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}
        entries = {name: Entry(tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
        return entries, file.metadata() or {}


def inspect(path: str | Path) -> Found:
    """Returns what a safetensors file is. Raises WeightsError for what is none."""
    path = Path(path)
    entries, metadata = read_header(path)
    common = {
        "tensors": len(entries),
        "parameters": sum(prod(e.shape) for e in entries.values()),
        "bytes": sum(e.nbytes for e in entries.values()),
        "dtypes": dict(Counter(e.dtype for e in entries.values()).most_common()),
    }
    for look in (as_adapter, as_cache, as_lora, as_dit, as_llm_adapter, as_text_encoder, as_vae, as_nano_part):
        if found := look(entries, metadata):
            kind, words, facts = found
            return Found(path, kind, words, {**facts, **common})
    example = ", ".join(list(entries)[:3]) or "no tensors at all"
    return Found(path, "unknown", f"none of the files of this program; it holds {example}", common)


def as_adapter(entries: Mapping[str, Entry], metadata: Mapping[str, str]):
    """Returns (kind, words, facts) of a bundle of the two branches, else None."""
    downs = {name: found for name in entries if (found := BRANCHES.fullmatch(name))}
    if not downs:
        return None
    branches = {}
    for side, title in (("ref", "reference"), ("tgt", "target")):
        own = {found["module"]: rank_of(entries[name]) for name, found in downs.items() if found["side"] == side}
        modules = {re.sub(r"^.*?blocks[._]\d+[._]", "", module) for module in own}
        branches[title] = {"modules": len(own), "ranks": sorted(set(own.values())), "targets": sorted(modules)}
    config = header_json(metadata, "config")
    blocks = 1 + max((int(n) for name in entries for n in re.findall(r"blocks[._](\d+)[._]", name)), default=-1)
    captions = config.get("captions") or {}
    place = config.get("place")
    facts = {
        "format": metadata.get("format"), "branches": branches, "blocks": config.get("blocks", blocks),
        "width": config.get("width"), "place": place, "modes": captions or None,
        "fp8": sorted(FP8 & {e.dtype for e in entries.values()}) or None,
    }  # fmt: skip
    ranks = " and ".join(
        f"{title} rank {'/'.join(map(str, b['ranks'])) or 'none'} on {by_sublayer(b['targets'])}"
        for title, b in branches.items()
    )
    said = f"modes {', '.join(captions)}" if captions else "no captions stated"
    where = "no place stated" if place is None else f"place ({', '.join(map(str, place))})"
    return "adapter", f"a reference adapter: {ranks}, {facts['blocks']} blocks, {said}, {where}", facts


def by_sublayer(targets: list[str]) -> str:
    """The names of linears, each sublayer said once: "self_attn (k_proj, v_proj), mlp (layer1)"."""
    groups: dict[str, list[str]] = {}
    for target in targets:
        *sublayer, linear = target.split(".")
        groups.setdefault(".".join(sublayer), []).append(linear)
    said = {sublayer: ", ".join(linears) for sublayer, linears in groups.items()}
    return ", ".join(f"{name} ({linears})" if name else linears for name, linears in said.items()) or "nothing"


def rank_of(down: Entry) -> int:
    return down.shape[0] if down.shape else 0


def as_cache(entries: Mapping[str, Entry], metadata: Mapping[str, str]):
    if not str(metadata.get("format", "")).startswith("snapref_cache/"):
        return None
    try:
        groups = [int(group[0]) for group in json.loads(metadata.get("groups", "[]"))]
    except (ValueError, TypeError, IndexError, KeyError):
        return "reference cache", "a saved reference with a damaged header", {"format": metadata["format"]}
    facts = {"format": metadata["format"], "tokens": groups, "fingerprint": header_json(metadata, "fingerprint")}
    words = f"a saved reference of {len(groups)} picture{'s' * (len(groups) != 1)}, {sum(groups):,} tokens"
    return "reference cache", words, facts


def as_lora(entries: Mapping[str, Entry], metadata: Mapping[str, str]):
    downs = {found["stem"]: name for name in entries if (found := MATRIX.fullmatch(name)) and found["down"]}
    others = [method for method, pattern in OTHER_METHODS.items() if any(pattern.search(name) for name in entries)]
    if not downs and not others:
        return None
    ranks = sorted({rank_of(entries[name]) for name in downs.values()})
    namings = {naming_of(stem) for stem in downs or entries}
    parts = Counter(part_of(stem) for stem in downs)
    blocks = 1 + max((int(n) for stem in downs for n in re.findall(r"blocks[._](\d+)[._]", stem)
                      if part_of(stem) == "blocks"), default=-1)  # fmt: skip
    facts = {"naming": " and ".join(sorted(namings)), "ranks": ranks, "targets": dict(parts), "modules": len(downs),
             "blocks": blocks, "other_method": others or None}  # fmt: skip
    if others:
        return "lora", f"a {others[0]}, which is not read; only plain LoRAs are", facts
    where = ", ".join(f"{count} in {part}" for part, count in parts.items())
    words = f"a LoRA, {facts['naming']} naming, rank {'/'.join(map(str, ranks))}, {len(downs)} modules ({where})"
    return "lora", words, facts


def naming_of(stem: str) -> str:
    if stem.startswith(("lora_unet_", "lora_te")):
        return "kohya"
    return "diffusers" if re.match(r"transformer\.|transformer_blocks|text_conditioner", stem) else "comfyui"


def part_of(stem: str) -> str:
    """Which part of the model a LoRA's module lies in."""
    for part, signs in (
        ("text encoder", ("lora_te_", "lora_te1_", "text_encoder")),
        ("LLM adapter", ("llm_adapter", "text_conditioner")),
        ("AdaLN", ("adaln", ".norm1.", ".norm2.", ".norm3.", "norm_out")),
        ("blocks", ("blocks",)),
    ):
        if any(sign in stem for sign in signs):
            return part
    return "embedders and final layer"


def as_dit(entries: Mapping[str, Entry], metadata: Mapping[str, str]):
    theirs = any(DIFFUSERS_SIGN.fullmatch(name) for name in entries)
    prefix = "" if theirs else prefix_of(entries)
    names = {name.removeprefix(prefix): entry for name, entry in entries.items()}
    sign = DIFFUSERS_SIGN if theirs else OFFICIAL_SIGN
    first = next((name for name, entry in names.items() if sign.fullmatch(name) and len(entry.shape) == 2), None)
    if first is None:
        return None
    rows, columns = names[first].shape
    width = rows // 3 if first.endswith("linear_2.weight") else columns  # (shift, scale, gate) of each
    blocks = block_count(name.removeprefix("transformer_") for name in names)
    has_adapter = any(name.startswith("llm_adapter.") for name in names)
    quantised = quantisation(entries, metadata)
    others = sorted({other for name in entries for other in ("first_stage_model", "vae", "text_encoders")
                     if name.startswith(f"{other}.")})  # fmt: skip
    facts = {
        "blocks": blocks, "width": width, "prefix": prefix, "naming": "diffusers" if theirs else "official",
        "llm_adapter": has_adapter, "quantised": quantised, "dtype": names[first].dtype,
        "ignored": sum(map(is_ignorable, names)), "other_models": others or None,
    }  # fmt: skip
    kind = "all-in-one checkpoint with a diffusion model" if others else "diffusion model"
    lacks = "" if has_adapter or theirs else ", without the LLM adapter that Anima has"
    how = quantised or names[first].dtype.lower()
    named = "named as diffusers does" if theirs else f"prefix {prefix!r}"
    return "dit", f"a {kind}: {blocks} blocks, width {width}, {how}, {named}{lacks}", facts


def as_llm_adapter(entries: Mapping[str, Entry], metadata: Mapping[str, str]):
    """diffusers keeps the LLM adapter in a file of its own, without a prefix."""
    if not {"embed.weight", "out_proj.weight", "blocks.0.cross_attn.o_proj.weight"} <= entries.keys():
        return None
    facts = {"blocks": block_count(entries), "vocabulary": rank_of(entries["embed.weight"])}
    return "llm adapter", f"Anima's LLM adapter alone: {facts['blocks']} blocks", facts


def quantisation(entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> str | None:
    """The kind of 8- or 4-bit weights in words, else None."""
    ends = {name.rpartition(".")[2] for name in entries}
    if {"weight_scale_2", "weight_scale2"} & ends:
        return "nvfp4"
    kinds = {e.dtype for e in entries.values()}
    if "scale_weight" in ends or "scaled_fp8" in ends:
        return "fp8 with scale_weight"
    if kinds & FP8 and ("comfy_quant" in ends or "weight_scale" in ends or "_quantization_metadata" in metadata):
        return "fp8 with weight_scale"
    if kinds & FP8:
        return "plain fp8"
    return "int8" if "I8" in kinds else None


def as_text_encoder(entries: Mapping[str, Entry], metadata: Mapping[str, str]):
    embed = next((name for name in entries if name.endswith("embed_tokens.weight")), None)
    if embed is None or not any(name.endswith("layers.0.self_attn.q_norm.weight") for name in entries):
        return None
    prefix = embed.removesuffix("embed_tokens.weight")
    layers = 1 + max(int(n) for name in entries for n in re.findall(r"layers\.(\d+)\.", name))
    rows, width = (*entries[embed].shape, 0, 0)[:2]
    facts = {"layers": layers, "width": width, "vocabulary": rows, "prefix": prefix, "dtype": entries[embed].dtype}
    return "text encoder", f"a Qwen3 text encoder: {layers} layers, width {width}, {rows:,} tokens", facts


def as_vae(entries: Mapping[str, Entry], metadata: Mapping[str, str]):
    for prefix in ("first_stage_model.", "vae.", ""):
        for name, naming in (("encoder.conv1.weight", "ComfyUI"), ("encoder.conv_in.weight", "diffusers")):
            entry = entries.get(prefix + name)
            if entry is not None and len(entry.shape) == 5:
                facts = {"width": entry.shape[0], "naming": naming, "prefix": prefix, "dtype": entry.dtype}
                return "vae", f"a Wan/Qwen-Image VAE of width {entry.shape[0]}, named as {naming} does", facts
    return None


def as_nano_part(entries: Mapping[str, Entry], metadata: Mapping[str, str]):
    if {"mean", "std", "decoder.0.weight"} <= entries.keys():
        return "nano codec", "nano's codec", {"latent_channels": prod(entries["mean"].shape)}
    if any(name.startswith("heads.") for name in entries) and any(name.startswith("trunk.") for name in entries):
        heads = sorted({name.split(".")[1] for name in entries if name.startswith("heads.")})
        return "tagger", f"nano's tagger, which reads {len(heads)} attributes", {"attributes": heads}
    return None


def header_json(metadata: Mapping[str, str], key: str) -> dict:
    """A JSON object in a header; empty where there is none or a damaged one."""
    try:
        value = json.loads(metadata.get(key, "{}"))
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
