"""The two LoRA branches: one for the tokens of the reference, one for the tokens of the picture being made.

    reference tokens ──► DiT + `adapter.reference`  at sigma 0, once
    target tokens    ──► DiT + `adapter.target`     at every step

`Adapter` holds the trainable matrices. While sampling, `merged` adds the target branch to the weights.
"""

import re
import weakref
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import nn

from snapref.anima.linear import carry, is_float8
from snapref.anima.lowrank import Branch, LowRank
from snapref.config import AdapterConfig, DiTConfig, ModelConfig

MODULE = re.compile(r"(?P<side>ref|tgt)\.blocks\.(?P<block>\d+)\.(?P<module>[\w.]+)")


class MergeError(RuntimeError):
    """A model whose weights already carry a branch cannot take another."""


@dataclass(frozen=True)
class Spec:
    """What one adapted linear needs to know: its rank, and scale = alpha / rank."""

    rank: int
    scale: float


def linear_shapes(dit: DiTConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of every linear of a block that a branch can reach, by its name in the block."""
    width, text, hidden = dit.width, dit.context_width, dit.width * dit.mlp_ratio
    square = (width, width)
    return {
        **{f"self_attn.{name}": square for name in ("q_proj", "k_proj", "v_proj", "output_proj")},
        **{f"cross_attn.{name}": square for name in ("q_proj", "output_proj")},
        **{f"cross_attn.{name}": (width, text) for name in ("k_proj", "v_proj")},
        "mlp.layer1": (hidden, width),
        "mlp.layer2": (width, hidden),
    }


def planned_specs(config: AdapterConfig, blocks: int) -> dict[str, Spec]:
    """The modules that a new adapter gets: "ref.blocks.0.self_attn.q_proj" → its `Spec`."""
    reference = Spec(config.reference_rank, config.reference_alpha / config.reference_rank)
    target = Spec(config.target_rank, config.target_alpha / config.target_rank)
    return {
        f"{side}.blocks.{block}.{module}": spec
        for side, modules, spec in (
            ("ref", config.reference_targets, reference),
            ("tgt", config.target_targets, target),
        )
        for block in range(blocks)
        for module in modules
    }


class Pair(nn.Module):
    """The two matrices beside one linear. B starts at zero: an untrained branch changes nothing."""

    def __init__(self, inputs: int, outputs: int, spec: Spec):
        super().__init__()
        self.scale = spec.scale
        self.lora_A = nn.Linear(inputs, spec.rank, bias=False)
        self.lora_B = nn.Linear(spec.rank, outputs, bias=False)
        nn.init.normal_(self.lora_A.weight, std=inputs**-0.5)  # x of unit variance → x Aᵀ of unit variance
        nn.init.zeros_(self.lora_B.weight)

    def low_rank(self) -> LowRank:
        return LowRank(self.lora_A.weight, self.lora_B.weight, self.scale)


class Adapter(nn.Module):
    """Both branches. Parameters are named as in the bundle file: ref.blocks.0.self_attn.q_proj.lora_A.weight.

    Without `specs` it is new, with the modules and ranks of `config`; with `specs` (full module name → Spec)
    it has exactly those, as a file may. Raises ValueError for a module that the base model does not have.
    """

    def __init__(self, config: AdapterConfig, model: ModelConfig, specs: Mapping[str, Spec] | None = None):
        super().__init__()
        self.config, self.model = config, model
        self.specs = dict(planned_specs(config, model.dit.blocks) if specs is None else specs)
        shapes = linear_shapes(model.dit)
        for name, spec in self.specs.items():
            found = MODULE.fullmatch(name)
            if not found or int(found["block"]) >= model.dit.blocks or found["module"] not in shapes:
                raise ValueError(
                    f"model {model.name!r} has no place for {name!r}; names are ref.blocks.N.MODULE or tgt…, "
                    f"N from 0 to {model.dit.blocks - 1}, MODULE one of {', '.join(shapes)}"
                )
            outputs, inputs = shapes[found["module"]]
            place_at(self, name, Pair(inputs, outputs, spec))

    @property
    def reference(self) -> Branch:
        """What reference tokens get; views on the parameters, with gradients."""
        return self.branch("ref")

    @property
    def target(self) -> Branch:
        """What target tokens get; views on the parameters, with gradients."""
        return self.branch("tgt")

    def branch(self, side: str) -> Branch:
        blocks = [{} for _ in range(self.model.dit.blocks)]
        for name in self.specs:
            found = MODULE.fullmatch(name)
            if found["side"] == side:
                blocks[int(found["block"])][found["module"]] = self.get_submodule(name).low_rank()
        return blocks

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def place_at(root: nn.Module, name: str, module: nn.Module) -> None:
    """Put `module` at a dotted name below `root`, with empty modules on the way."""
    *parents, last = name.split(".")
    for parent in parents:
        if parent not in root._modules:
            root.add_module(parent, nn.Module())
        root = root.get_submodule(parent)
    root.add_module(last, module)


_merged_models: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def is_merged(model: nn.Module) -> bool:
    """Whether `model` is inside a `merged` block at this moment."""
    return model in _merged_models


@contextmanager
def merged(model: nn.Module, branch: Branch):
    """Within this block the model's weights carry the branch: as fast as the base, the branch costs nothing.

    The sum is made in fp32 and cast once; where a weight is fp8 the branch is computed beside it instead. On
    leaving, by an exception or Ctrl-C too, the original parameter objects are put back, so that the base is the
    same bit for bit; W + BA − BA would not be.
    Raises MergeError inside another `merged` block of the same model.
    """
    if is_merged(model):
        raise MergeError("the model already carries a branch; leave that `merged` block before the next one")
    undo = ExitStack()
    try:
        _merged_models.add(model)
        if getattr(model, "visits", None) is not None:  # blocks away from the device take it when they come
            undo.callback(setattr, model.visits, "branch", model.visits.branch)
            model.visits.branch = branch
        for block, low_ranks in zip(model.blocks, branch, strict=True):
            for name, low_rank in low_ranks.items():
                linear = block.get_submodule(name)
                if is_float8(linear) or getattr(model, "visits", None) is None:
                    undo.callback(carry(linear, low_rank))
        yield model
    finally:
        undo.close()
        _merged_models.discard(model)
