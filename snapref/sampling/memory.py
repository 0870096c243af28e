"""The plan of a run's memory: what is where, how many bytes, and what to lower where it does not fit.

Weights are counted from the config. What a call needs while it computes is not estimated by a formula that could
go stale: the call itself is run on tensors without memory, and what lives at the same time is added up.
"""

import dataclasses
import functools
import inspect
import math
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from snapref.anima.attention import KeyGroup
from snapref.anima.codec import NanoCodec
from snapref.anima.model import AnimaDiT
from snapref.anima.qwen import new_qwen
from snapref.anima.vae import QwenImageVAE
from snapref.config import NANO_V1A, V1A, ModelConfig
from snapref.reference.branches import linear_shapes, planned_specs

GB = 1e9
CONTEXT = int(0.4 * GB)  # what CUDA takes for itself before the first tensor; differs a little between drivers
ROUNDING = 1.02  # the allocator hands out whole pieces


class OutOfMemory(MemoryError):
    """A run that needs more than the card has, in one sentence that ends with what to lower."""


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


class Living(TorchDispatchMode):
    """Counts the bytes of what operations make and that still lives; `peak` is the most at once."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                self.known.add(tensor.untyped_storage())  # views of weights and arguments are not ours
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage()) not in self.known:
                self.known.add(storage)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.forget, storage.nbytes())
        return result

    def forget(self, size: int) -> None:
        self.now -= size


def working_bytes(make: Callable[[], Callable[[], object]]) -> int:
    """Most bytes alive at once inside a call, its result included. make() builds the call, which is not counted.

    Both run on tensors that have a shape and no memory.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.no_grad():
        call = make()
        with Living() as living:
            call()
    return living.peak


def bare(make: Callable[[], nn.Module]) -> nn.Module:
    """A module on the meta device, to be `dressed` inside `working_bytes`."""
    with torch.device("meta"):
        return make().eval()


def dressed(module: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The module with tensors of the kind that is current, of its shapes, in `dtype`."""
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                part._parameters[name] = nn.Parameter(torch.empty(weight.shape, dtype=dtype), requires_grad=False)
        for name, weight in part._buffers.items():
            if weight is not None:
                part._buffers[name] = torch.empty(weight.shape, dtype=dtype)
    return module


@functools.lru_cache(maxsize=64)
def make_plan(ask: Ask) -> Plan:
    """Returns the plan of a run with guidance, reading its reference included. Costs a second or two."""
    config, dit, item = ask.config, ask.config.dit, ask.dtype.itemsize
    tokens = ref_tokens(ask)
    with torch.device("meta"):
        model, qwen, codec = AnimaDiT(config), new_qwen(config.text), new_codec(config)
    block = sum(weight_bytes(name, p, ask) for name, p in model.blocks[0].named_parameters())
    blocks = block * dit.blocks
    rest = sum(p.numel() for n, p in model.named_parameters() if not n.startswith("blocks.")) * item
    text, pictures = (4 * sum(p.numel() for p in module.parameters()) for module in (qwen, codec))
    specs = planned_specs(NANO_V1A if config.codec.kind == "nano" else V1A, dit.blocks) if ask.adapter else {}
    branches = sum(4 * spec.rank * sum(linear_shapes(dit)[n.split(".", 3)[3]]) for n, spec in specs.items())
    # Merged weights stand beside the originals; an fp8 weight carries the branch beside it instead, and blocks
    # that visit take it on the way.
    merging = ask.adapter and ask.references and not ask.fp8 and not ask.offload
    merged = 4 * dit.width**2 * item * dit.blocks if merging else 0
    cache = ask.references * 2 * dit.blocks * dit.width * tokens * item

    visiting = 2 * block if ask.offload else 0
    away = "host" if ask.offload else "device"
    parts = [
        Part("model: blocks", blocks, away),
        Part("model: embedders, text adapter", rest, "device"),
        Part("text encoder (fp32)", text, "visits"),
        Part("codec (fp32)", pictures, "visits" if ask.offload else "device"),
        Part("adapter, both branches", branches, "device"),
        Part("target branch in the weights", merged, "device"),
        Part(f"reference cache, {ask.references * tokens} tokens", cache, "device"),
        Part("two visiting blocks", visiting, "device"),
        Part("CUDA itself", CONTEXT, "device"),
    ]
    always = rest + branches + CONTEXT + visiting + (0 if ask.offload else blocks + pictures)
    guest = pictures if ask.offload else 0
    widest = max(math.prod(shape) for shape in linear_shapes(dit).values())
    widened = widest * item if ask.fp8 else 0
    phases = {"reading the prompt": always + text}
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


def lowered(ask: Ask) -> list[tuple[str, Ask]]:
    """What can be lowered, in the order in which it is missed least, each in words and as an ask."""
    change, found = dataclasses.replace, []
    if ask.batch > 1:
        ask = change(ask, batch=1)
        found.append(("draw one prompt at a time", ask))
    if not ask.offload and ask.config.codec.kind != "nano":
        ask = change(ask, offload=True)
        found.append(("load with offload=True", ask))
    if ask.references and ask.ref_megapixels > 0.5:
        ask = change(ask, ref_megapixels=0.5)
        found.append(("set ref_megapixels=0.5", ask))
    for factor in (0.75, 0.5):
        step = ask.config.size_step
        small = tuple(max(step, int(side * factor) // step * step) for side in ask.size)
        found.append((f"draw {small[1]}x{small[0]}", change(ask, size=small)))
    return found


def advice(ask: Ask, room: int) -> str:
    """Returns one sentence: what the run needs, what there is, and what to lower, added up until it fits."""
    needed = make_plan(ask).peak
    steps = []
    for words, less in lowered(ask):
        if words.startswith("draw ") and steps and steps[-1].startswith("draw ") and "x" in steps[-1]:
            steps.pop()
        steps.append(words)
        peak = make_plan(less).peak
        if peak <= room:
            break
    else:
        peak = make_plan(less).peak
    height, width = ask.size
    what = f"drawing {width}x{height}" + (f" with {ask.references} reference(s)" if ask.references else "")
    fits = f"then it is {peak / GB:.1f} GB" if peak <= room else f"even so it is {peak / GB:.1f} GB: take another card"
    return (
        f"out of memory: {what} needs about {needed / GB:.1f} GB, the card has {room / GB:.1f} GB free; "
        f"{' and '.join(steps)}, {fits}"
    )


def in_one_sentence(method):
    """A method of the pipeline whose running out of memory prints the plan and raises `OutOfMemory`."""

    @functools.wraps(method)
    def told(self, *args, **options):
        try:
            return method(self, *args, **options)
        except torch.OutOfMemoryError as error:
            given = inspect.signature(method).bind(self, *args, **options).arguments
            ask = ask_of(self, given)
            print(make_plan(ask), file=sys.stderr)
            raise OutOfMemory(advice(ask, free_bytes(self))) from error

    return told


def ask_of(pipe, given: dict) -> Ask:
    """Returns what a call with these arguments asks of the card."""
    options = given.get("changes", {})
    settings = given.get("settings")

    def value(name: str, otherwise):
        found = options.get(name, given.get(name, getattr(settings, name, None)))
        return otherwise if found is None else found

    prompt, reference = given.get("prompt", ""), given.get("reference")
    each = given.get("references") or ()
    counted = reference if isinstance(reference, (list, tuple)) else [reference] * (reference is not None)
    guidance = value("guidance", pipe.config.default_guidance)
    linears = [m for m in pipe.model.blocks[0].modules() if isinstance(m, nn.Linear)]
    return Ask(
        pipe.config,
        pipe.model.dtype,
        tuple(value("size", pipe.config.default_size)),
        batch=1 if isinstance(prompt, str) else max(1, len(prompt)),
        passes=1 if math.isclose(guidance, 1) else 2,
        references=max(len(counted), len(each)),
        ref_megapixels=value("ref_megapixels", pipe.config.default_ref_megapixels),
        fp8=any(linear.weight.dtype.itemsize == 1 for linear in linears),
        offload=pipe.model.visits is not None,
        adapter=pipe.adapter is not None,
    )


def free_bytes(pipe) -> int:
    """Bytes that this program could have on the pipeline's card: what is free, and what it holds already."""
    if pipe.device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(pipe.device)
    return free + torch.cuda.memory_reserved(pipe.device) + CONTEXT
