"""LoRA files of other trainers: whose module each pair of matrices belongs to, and how strongly it counts.

W ← W + strength · (alpha / rank) · B A, alpha / rank being 1 where no alpha is stated (specification section 6).
Trainers write a module's name in three ways:

    kohya       lora_unet_blocks_0_self_attn_q_proj.lora_down.weight
    comfyui     diffusion_model.blocks.0.self_attn.q_proj.lora_A.weight
    diffusers   transformer.transformer_blocks.0.attn1.to_q.lora_A.weight

The first has lost the difference between a dot and an underscore, and only the model's own list brings it back:
so all three are looked up in that list, and a name that is not in it is never guessed at.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from snapref.anima.lowrank import LowRank
from snapref.files.keys import PREFIXES, KeyMismatch, block_count, shortened, to_diffusers
from snapref.files.loader import read_metadata, read_tensors

TEXT_ENCODER = "text_encoder."  # in front of the language model's own module names
ADAPTER = "llm_adapter."
DEPTHS = (28, 40, 52)  # blocks of the bases that are in use (specification section 1)

MATRIX = re.compile(
    r"(?P<stem>.+?)[._](?:"
    r"(?P<down>lora_A|lora_down|lora\.down|lora_linear_layer\.down)|"
    r"(?P<up>lora_B|lora_up|lora\.up|lora_linear_layer\.up)"
    r")(?:\.default)?(?:\.weight)?"
)
ALPHA = re.compile(r"(?P<stem>.+)\.alpha")
# What other methods leave in a file, by the last part of a name.
OTHER_METHODS = {
    "LoKr": re.compile(r"\.lokr_\w+$"),
    "LoHa": re.compile(r"\.hada_\w+$"),
    "DoRA": re.compile(r"\.dora_scale$|\.lora_magnitude_vector(\.\w+)*$"),
    "OFT": re.compile(r"\.(oft_\w+|oft_R\.\w+|boft_\w+)$"),
    "GLoRA": re.compile(r"\.[ab][12]\.weight$"),
    "Tucker LoRA": re.compile(r"\.lora_mid\.weight$"),
    "file of whole weight differences": re.compile(r"\.(diff|diff_b|set_weight|w_norm|b_norm)$"),
}
_BLOCK = re.compile(r"(?:^|[._])(?:transformer_)?blocks[._](\d+)[._]")
_OTHER_STACKS = ("llm_adapter", "text_conditioner", "lora_te", "text_encoder")  # their blocks are their own


class LoraError(ValueError):
    """A file that is no LoRA for this base, in one sentence that ends with what to do."""


@dataclass(frozen=True)
class Lora:
    """The matrices of a file by module: "blocks.0.mlp.layer1", "llm_adapter.…", "text_encoder.layers.0.…"."""

    path: Path
    naming: str  # kohya, comfyui or diffusers; "kohya and comfyui" where a file mixes them
    pairs: Mapping[str, LowRank]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that occur, rising."""
        return tuple(sorted({len(pair.a) for pair in self.pairs.values()}))


def read_lora(path: str | Path, shapes: Mapping[str, tuple[int, int]]) -> Lora:
    """Returns the LoRA of a file.

    shapes: (out, in) of every linear that can take one, by module name; the language model's begin with
    "text_encoder.".
    Raises LoraError for another method, another number of blocks or a file without any LoRA; KeyMismatch
    with every unknown, missing and mis-shaped matrix; WeightsError for what is no safetensors file.
    """
    path = Path(path)
    tensors, metadata = read_tensors(path), read_metadata(path)
    config = peft_config(path.name, metadata)
    refuse_other_methods(path.name, tensors, config)
    refuse_other_depth(path.name, tensors, block_count(shapes))

    known = spellings(shapes)
    downs, ups, alphas, stems, unexpected, namings = {}, {}, {}, {}, [], set()
    for key, tensor in tensors.items():
        found = MATRIX.fullmatch(key) or ALPHA.fullmatch(key)
        if found is None or found["stem"] not in known:
            unexpected.append(key)
            continue
        module, naming = known[found["stem"]]
        sides = found.groupdict()
        side = downs if sides.get("down") else ups if sides.get("up") else alphas
        if module in side:  # the same matrix under two namings
            unexpected.append(key)
            continue
        side[module], stems[module] = tensor, found["stem"]
        namings.add(naming)
    if not downs and not ups:
        example = next(iter(tensors), None)
        holds = "it holds no tensors" if example is None else f"its tensors are like {example}"
        raise LoraError(f"{path.name} is no LoRA for this model: {holds}; `snapref inspect` says what it is")
    check_pairs(path.name, downs, ups, alphas, stems, unexpected, shapes)

    pairs = {}
    for module, down in downs.items():
        stated = float(alphas[module]) if module in alphas else None
        scale = scale_of(stems[module], len(down), stated, config, metadata)
        pairs[module] = LowRank(down.clone(), ups[module].clone(), scale)  # off the file, which may be replaced
    refuse_broken_numbers(path.name, pairs)
    return Lora(path, " and ".join(sorted(namings)), pairs)


def spellings(modules: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Returns stem in a file → (module, naming), for every way to write every module."""
    found: dict[str, tuple[str, str]] = {}
    for module in modules:
        flat = module.replace(".", "_")
        if module.startswith(TEXT_ENCODER):
            own = module.removeprefix(TEXT_ENCODER)
            flat = flat.removeprefix("text_encoder_")
            written = {
                "kohya": (f"lora_te_{flat}", f"lora_te1_{flat}"),
                "comfyui": (f"text_encoders.qwen3_06b.transformer.model.{own}",),
                "diffusers": (module, f"text_encoder.model.{own}"),
            }
        else:
            if module.startswith(ADAPTER):
                theirs = ("text_conditioner." + module.removeprefix(ADAPTER),)
            else:
                bare = to_diffusers(module)
                theirs = (f"transformer.{bare}", bare)
            written = {
                "kohya": (f"lora_unet_{flat}",),
                "comfyui": (*(prefix + module for prefix in PREFIXES), module),
                "diffusers": theirs,
            }
        for naming, stems in written.items():
            for stem in stems:
                if found.setdefault(stem, (module, naming))[0] != module:
                    raise ValueError(f"{stem} can mean {module} or {found[stem][0]}")
    return found


def refuse_other_methods(name: str, tensors: Iterable[str], config: Mapping) -> None:
    """Raises LoraError, naming the method, for a file that a plain LoRA's formula would apply wrongly."""
    for method, pattern in OTHER_METHODS.items():
        if stems := {pattern.sub("", key) for key in tensors if pattern.search(key)}:
            raise LoraError(
                f"{name} is a {method} ({shortened(sorted(stems)[:1])}, {len(stems)} modules in all), which is "
                "not read; take the plain LoRA, or convert it to one with the tools of its trainer"
            )
    if any(value for key, value in config.items() if key.endswith("use_dora")):
        raise LoraError(f"{name} says of itself that it is a DoRA, which is not read; take the plain LoRA")


def refuse_other_depth(name: str, tensors: Iterable[str], blocks: int) -> None:
    """Raises LoraError where the file's highest block says that it was made for a base of another depth.

    A LoRA may leave blocks out, so a lower highest block is a sign only where it is that of another base.
    """
    own = [key for key in tensors if not any(stack in key for stack in _OTHER_STACKS)]
    found = [int(match[1]) for key in own if (match := _BLOCK.search(key))]
    depth = max(found, default=-1) + 1
    if depth > blocks or (depth < blocks and depth in DEPTHS):
        raise LoraError(
            f"{name} was made for a base of {depth} blocks, this base has {blocks}; take a LoRA made for "
            f"{blocks} blocks, or the base it was made for"
        )


def check_pairs(
    name: str,
    downs: Mapping[str, Tensor],
    ups: Mapping[str, Tensor],
    alphas: Mapping[str, Tensor],
    stems: Mapping[str, str],
    unexpected: Iterable[str],
    shapes: Mapping[str, tuple[int, int]],
) -> None:
    """Raises one KeyMismatch that lists everything which is wrong, by the names in the file."""
    unexpected = [*unexpected, *(f"{stems[m]}.alpha" for m in alphas if m not in downs and m not in ups)]
    missing = [f"the up matrix of {stems[m]}" for m in downs if m not in ups]
    missing += [f"the down matrix of {stems[m]}" for m in ups if m not in downs]
    misshaped = []
    for module in downs.keys() & ups.keys():
        down, up = tuple(downs[module].shape), tuple(ups[module].shape)
        outputs, inputs = shapes[module]
        rank = down[0] if down else 0
        if not rank or down != (rank, inputs) or up != (outputs, rank):
            misshaped.append(
                f"{stems[module]} is {down} and {up}, should be (rank, {inputs}) and ({outputs}, rank)"
            )
    misshaped += [
        f"{stems[m]}.alpha is {tuple(alpha.shape)}, should be one number"
        for m, alpha in alphas.items()
        if alpha.numel() != 1
    ]
    if missing or unexpected or misshaped:
        raise KeyMismatch(name, missing, unexpected, misshaped)


def refuse_broken_numbers(name: str, pairs: Mapping[str, LowRank]) -> None:
    broken = [
        module
        for module, pair in pairs.items()
        if not (pair.a.isfinite().all() and pair.b.isfinite().all() and math.isfinite(pair.scale))
    ]
    if broken:
        raise LoraError(
            f"{name} has numbers that are not finite in {shortened(broken)}; fetch it again, or take another"
        )


def scale_of(
    stem: str, rank: int, alpha: float | None, config: Mapping, metadata: Mapping[str, str]
) -> float:
    """Returns alpha / rank: alpha from the module's own tensor, else from the header, else 1 for both.

    config: PEFT's settings in the header (`peft_config`), which may name an alpha per module, or say that
    rank enters by its root (rsLoRA).
    """
    part, _, module = stem.partition(".")
    root = bool(config.get(f"{part}.use_rslora", config.get("use_rslora", False)))
    if alpha is None:
        own = config.get(f"{part}.alpha_pattern", config.get("alpha_pattern")) or {}
        special = [a for pattern, a in own.items() if re.fullmatch(rf"(.*\.)?({pattern})", module)]
        usual = [config.get(f"{part}.lora_alpha"), config.get("lora_alpha")]
        named = [metadata.get(key) for key in ("alpha", "lora_alpha", "network_alpha", "ss_network_alpha")]
        alpha = next((a for a in map(as_number, [*special, *usual, *named]) if a is not None), None)
    return 1.0 if alpha is None else alpha / (math.sqrt(rank) if root else rank)


def as_number(value) -> float | None:
    """Returns what a header says as a number; None where it says none ("None", "")."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def peft_config(name: str, metadata: Mapping[str, str]) -> dict:
    """Returns PEFT's settings as diffusers puts them into the header: "transformer.lora_alpha" and so on."""
    text = metadata.get("lora_adapter_metadata", "{}")
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise LoraError(f"{name} has damaged settings in its header ({error}); fetch it again") from None
    return config if isinstance(config, dict) else {}
