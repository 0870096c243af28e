"""The plan of a run's memory: what is where, and how many bytes.

Weights are counted from the config; what a call needs while it computes is found by `sampling.working`.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass

import torch
from torch import nn

from snapref.anima.attention import KeyGroup
from snapref.anima.codec import NanoCodec
from snapref.anima.model import AnimaDiT
from snapref.anima.qwen import new_qwen
from snapref.anima.vae import QwenImageVAE
from snapref.config import NANO_V1A, V1A, ModelConfig
from snapref.reference.branches import linear_shapes, planned_specs
from snapref.reference.cache import reference_bytes
from snapref.sampling.working import bare, dressed, working_bytes

GB = 1e9
CONTEXT = int(0.4 * GB)  # what CUDA takes for itself before the first tensor; differs a little between drivers
ROUNDING = 1.02  # the allocator hands out whole pieces


@dataclass(frozen=True)
class Ask:
    """What a plan is made for. size: (height, width) of the picture; references: pictures that are read."""

    config: ModelConfig
    dtype: torch.dtype
    size: tuple[int, int]
    batch: int = 1
    passes: int = 2  # of guidance, computed together
    references: int = 1
    ref_megapixels: float = 1.0
    fp8: bool = False  # the linears of attention and MLP are fp8 in the file
    offload: bool = False
    adapter: bool = True


@dataclass(frozen=True)
class Part:
    name: str
    bytes: int
    where: str  # "device" throughout, "host", or "visits": on the device for some phase only


@dataclass(frozen=True)
class Plan:
    parts: tuple[Part, ...]
    phases: dict[str, int]  # phase -> bytes on the device at its peak, in the order of a run

    @property
    def peak(self) -> int:
        """Bytes that the card must have free."""
        return max(self.phases.values())

    def to_json(self) -> dict:
        return {
            "parts": [dataclasses.asdict(part) for part in self.parts],
            "phases": self.phases,
            "peak": self.peak,
        }

    def __str__(self) -> str:
        lines = [f"{part.name:34} {part.where:8} {part.bytes / GB:7.2f} GB" for part in self.parts]
        lines += [f"peak while {name:23} {'device':8} {size / GB:7.2f} GB" for name, size in self.phases.items()]
        return "\n".join(lines)


@functools.lru_cache(maxsize=64)
def make_plan(ask: Ask) -> Plan:
    """Returns the plan of a run with guidance, reading its reference included. Costs a second or two."""
    config, dit, item = ask.config, ask.config.dit, ask.dtype.itemsize
    tokens = ref_tokens(ask)
    with torch.device("meta"):
        model, qwen, codec = AnimaDiT(config), new_qwen(config.text), new_codec(config)
    block = sum(weight_bytes(name, p, ask) for name, p in model.blocks[0].named_parameters())
    blocks = block * dit.blocks
    rest = sum(p.numel() for n, p in model.named_parameters() if not n.startswith(("blocks.", "llm_adapter."))) * item
    reader = sum(p.numel() for p in model.llm_adapter.parameters()) * item
    text, pictures = (4 * sum(p.numel() for p in module.parameters()) for module in (qwen, codec))
    specs = planned_specs(NANO_V1A if config.codec.kind == "nano" else V1A, dit.blocks) if ask.adapter else {}
    branches = sum(4 * spec.rank * sum(linear_shapes(dit)[n.split(".", 3)[3]]) for n, spec in specs.items())
    # Merged weights stand beside the originals; an fp8 weight carries the branch beside it instead, and blocks
    # that visit take it on the way.
    merging = ask.adapter and ask.references and not ask.fp8 and not ask.offload
    merged = 4 * dit.width**2 * item * dit.blocks if merging else 0
    cache = ask.references * reference_bytes(dit, tokens, ask.dtype)

    visiting = 2 * block if ask.offload else 0
    away = "host" if ask.offload else "device"
    parts = [
        Part("model: blocks", blocks, away),
        Part("model: embedders", rest, "device"),
        Part("model: text adapter", reader, away),
        Part("text encoder (fp32)", text, "host" if ask.offload else "visits"),
        Part("codec (fp32)", pictures, away),
        Part("adapter, both branches", branches, "device"),
        Part("target branch in the weights", merged, "device"),
        Part(f"reference cache, {ask.references * tokens} tokens", cache, "device"),
        Part("two visiting blocks", visiting, "device"),
        Part("CUDA itself", CONTEXT, "device"),
    ]
    always = rest + branches + CONTEXT + visiting + (0 if ask.offload else blocks + reader + pictures)
    # With offload these come layer by layer; the largest that reads a prompt is a table, looked up as it is stored.
    prompt = max(layer_bytes(qwen), layer_bytes(model.llm_adapter)) if ask.offload else text
    guest = layer_bytes(codec) if ask.offload else 0
    widest = max(math.prod(shape) for shape in linear_shapes(dit).values())
    widened = widest * item if ask.fp8 else 0
    phases = {"reading the prompt": always + prompt}
    if ask.references:
        side = max(config.size_step, int(math.sqrt(ask.ref_megapixels * 1e6) / config.size_step) * config.size_step)
        phases["encoding the picture"] = always + guest + codec_bytes(config, (side, side), encode=True)
        wide = block * 4 // item if ask.dtype == torch.float16 else widened
        phases["reading the reference"] = always + cache + wide + reading_bytes(ask, tokens)
    phases["drawing"] = always + cache + merged + widened + drawing_bytes(ask, tokens)
    phases["decoding"] = always + cache + guest + codec_bytes(config, ask.size, encode=False)
    rounded = {name: CONTEXT + int((size - CONTEXT) * ROUNDING) for name, size in phases.items()}
    return Plan(tuple(part for part in parts if part.bytes), rounded)


def ref_tokens(ask: Ask) -> int:
    """Reference tokens of one picture of the largest area."""
    return max(1, int(ask.ref_megapixels * 1e6 / ask.config.size_step**2)) if ask.references else 0


def weight_bytes(name: str, weight: torch.Tensor, ask: Ask) -> int:
    """Bytes of one tensor of a block: one per number where fp8 files have fp8 (specification section 7)."""
    narrow = ask.fp8 and name.removesuffix(".weight") in linear_shapes(ask.config.dit)
    return weight.numel() * (1 if narrow else ask.dtype.itemsize)


def layer_bytes(module: nn.Module) -> int:
    """The most that one layer takes while it visits: fp32, a table of embeddings in 16 bits as files have it."""
    wide = {True: 2, False: 4}
    return max(
        wide[isinstance(part, nn.Embedding)] * sum(p.numel() for p in part.parameters(recurse=False))
        for part in module.modules()
    )


def new_codec(config: ModelConfig) -> nn.Module:
    if config.codec.kind == "nano":
        return NanoCodec(config.codec)
    from diffusers import AutoencoderKLQwenImage

    return QwenImageVAE(AutoencoderKLQwenImage())


@functools.lru_cache(maxsize=64)
def codec_bytes(config: ModelConfig, size: tuple[int, int], encode: bool) -> int:
    """What encoding or decoding one picture of `size` needs, beside the weights."""

    undressed = bare(lambda: new_codec(config))

    def make():
        codec, factor = dressed(undressed), config.codec.factor
        if encode:
            pixels = torch.empty(1, 3, *size)
            return lambda: codec.encode(pixels)
        latent = torch.empty(1, config.codec.latent_channels, 1, size[0] // factor, size[1] // factor)
        return lambda: codec.decode(latent)

    return working_bytes(make)


def two_blocks(config: ModelConfig) -> ModelConfig:
    """The config of a model whose call has the same peak: blocks come one after the other."""
    return dataclasses.replace(config, text=None, dit=dataclasses.replace(config.dit, blocks=2))


def drawing_bytes(ask: Ask, tokens: int) -> int:
    """What one guided call of the model needs, beside weights and cache."""
    config, dit = ask.config, ask.config.dit
    rows, (height, width) = ask.batch * ask.passes, (side // config.codec.factor for side in ask.size)
    undressed = bare(lambda: AnimaDiT(two_blocks(config)))

    def make():
        model = dressed(undressed, ask.dtype)
        latent, sigma = torch.empty(rows, dit.latent_channels, 1, height, width), torch.empty(rows)
        context = torch.empty(rows, config.text.context_rows, dit.context_width, dtype=ask.dtype)
        side = torch.empty(1, dit.heads, ask.references * tokens, dit.head_dim, dtype=ask.dtype)
        readers = None if ask.passes == 1 else tuple(range(ask.batch))
        memory = [[KeyGroup(side, side, rows=readers)]] * 2 if ask.references else None
        return lambda: model(latent, sigma, context, memory=memory)

    return working_bytes(make)


def reading_bytes(ask: Ask, tokens: int) -> int:
    """What reading one reference needs, beside weights and cache. fp16 weights are read in fp32."""
    config, dit = ask.config, ask.config.dit
    dtype = torch.float32 if ask.dtype == torch.float16 else ask.dtype
    side = max(1, int(math.sqrt(tokens))) * dit.patch
    undressed = bare(lambda: AnimaDiT(two_blocks(config)))

    def make():
        model = dressed(undressed, dtype)
        latent, sigma = torch.empty(1, dit.latent_channels, 1, side, side), torch.empty(1)
        context = torch.empty(1, config.text.context_rows, dit.context_width, dtype=dtype)
        return lambda: model.keys_values(latent, sigma, context)

    return working_bytes(make)


