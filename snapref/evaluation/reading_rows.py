"""What the bench of reading times: the ways of reading a reference, and the arithmetic that each of them needs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from snapref.config import BASE, V1A, AdapterConfig, DiTConfig
from snapref.evaluation.floor import Product, Stream, block_products, flops
from snapref.reference.branches import linear_shapes
from snapref.reference.thin import count_kept
from snapref.sampling.passes import Pass, plan
from snapref.sampling.settings import Settings

# Plain guidance of two branches, whatever a model's defaults are.
GUIDED = {"guidance": 4.5, "apg_eta": 1.0, "apg_momentum": 0.0, "apg_threshold": 0.0, "cfg_rescale": 0.0}


@dataclass(frozen=True)
class Job:
    """Sizes are (height, width) in pixels, 16 to a token."""

    dit: DiTConfig = field(default_factory=lambda: replace(BASE.dit, blocks=1))
    adapter: AdapterConfig = V1A
    size: tuple[int, int] = (1216, 832)
    ref_size: tuple[int, int] = (1216, 832)
    context_rows: int = 512
    steps: int = 28  # over which reading the reference and merging the branch are spread
    rounds: int = 5
    minutes: float = 60.0  # after which no further round begins
    dtype: torch.dtype = torch.float32

    @property
    def tokens(self) -> int:
        return self.size[0] * self.size[1] // 256

    @property
    def reference(self) -> int:
        return self.ref_size[0] * self.ref_size[1] // 256


@dataclass(frozen=True)
class Row:
    """One way of reading."""

    name: str
    settings: dict = field(default_factory=dict)
    pictures: int = 1
    form: str = "whole"
    weight: float = 1.0
    halves: bool = False  # the first picture is read by the left half, the second by the right one
    merged: bool = True
    share: float = 1.0  # of the reference's tokens that are kept

    @property
    def asked(self) -> Settings:
        return Settings(**GUIDED | self.settings)

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The branches of guidance in a step."""
        return plan(self.asked, reading=True)

    def attentions(self, job: Job) -> Counter[Product]:
        """The self-attentions of a block of one step that cannot be avoided, each branch with its own keys."""
        # Halves of the queries with half of the references each: as much as all queries with one.
        read = job.tokens + count_kept(job.reference, self.share) * (1 if self.halves else self.pictures)
        return Counter(attention(job, read if one.reads else job.tokens) for one in self.passes)

    def further(self, job: Job) -> Counter[Product]:
        """All other products of the branches beyond the plain step's two, in a block of one step."""
        alone = plain_products(job)
        del alone[attention(job, job.tokens)]
        return Counter({product: count * (len(self.passes) - 2) for product, count in alone.items()})

    @property
    def further_share(self) -> float:
        """Of the work that a step does in one batch over its branches, what those beyond two take."""
        return 1 - 2 / len(self.passes)

    def beside(self, job: Job) -> Counter[Product]:
        """The small products of a block of one step where the target branch stays beside the weights."""
        found: Counter[Product] = Counter()
        if not self.merged:
            rank, tokens = job.adapter.target_rank, len(self.passes) * job.tokens
            for name in job.adapter.target_targets:
                outputs, inputs = linear_shapes(job.dit)[name]
                found[Product("forward", tokens, inputs, rank)] += 1
                found[Product("forward", tokens, rank, outputs)] += 1
        return found


ROWS = (
    Row("default"),
    Row("both branches read", {"ref_in_uncond": True}),
    Row("fidelity 0.5", {"fidelity": 0.5}),
    Row("reference guidance 2.5", {"ref_guidance": 2.5}),
    Row("APG and rescale", {"apg_eta": 0.0, "apg_momentum": -0.5, "apg_threshold": 20.0, "cfg_rescale": 0.7}),
    Row("weight 0.7", weight=0.7),
    Row("two pictures", pictures=2),
    Row("two pictures, left and right", pictures=2, halves=True),
    Row("fp8", form="fp8"),
    Row("half the tokens", form="thin:0.5", share=0.5),
    Row("a third of the tokens", form="thin:0.333", share=0.333),
    Row("a quarter of the tokens", form="thin:0.25", share=0.25),
    Row("target branch not merged", merged=False),
)


def attention(job: Job, keys: int) -> Product:
    return Product("attend", job.tokens, keys, job.dit.heads, job.dit.head_dim)


def plain_products(job: Job) -> Counter[Product]:
    """Products of one branch in a block of one step that reads nothing."""
    return block_products(job.dit, Stream(job.tokens, job.tokens, 0, (), False), job.context_rows, False, False)[0]


def reading_in_full(job: Job, ends_at_keys: bool = False) -> Counter[Product]:
    """Products of a picture in one block: a whole one, or one that ends at its keys and values."""
    stream = Stream(job.reference, job.reference, job.adapter.reference_rank, job.adapter.reference_targets, False)
    return block_products(job.dit, stream, job.context_rows, False, ends_at_keys)[0]


def reading_floor(job: Job) -> Counter[Product]:
    """Products of reading a picture, in all blocks, which are some of a whole model's: its last ends at its keys."""
    last, found = 1 / BASE.dit.blocks, Counter()
    for share, ends_at_keys in ((1 - last, False), (last, True)):
        for product, count in reading_in_full(job, ends_at_keys).items():
            found[product] += share * count * job.dit.blocks
    return found


def reading_share(job: Job) -> float:
    """Of reading with all blocks in full, what a whole model needs, by its arithmetic."""
    return flops(reading_floor(job)) / flops(reading_in_full(job)) / job.dit.blocks


def operations(job: Job, row: Row) -> float:
    """The row's step over the plain one, its share of reading included, counted in floating-point operations."""
    plain, own = 2 * flops(plain_products(job)), 2 * attention(job, job.tokens).flops
    added = flops(row.attentions(job) + row.further(job) + row.beside(job)) - own
    return 1 + (added + row.pictures * flops(reading_floor(job)) / job.dit.blocks / job.steps) / plain


def rows_named(names: Sequence[str]) -> tuple[Row, ...]:
    """Those of ROWS, all if none is named. Raises ValueError for a name that is none of theirs."""
    known = {row.name: row for row in ROWS}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"row is {unknown[0]!r}; give one of: {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(names)) or ROWS


def job_of(width: int, heads: int, blocks: int, size: tuple[int, int], ref_size: tuple[int, int],
           steps: int, rounds: int, minutes: float, bf16: bool) -> Job:  # fmt: skip
    """Raises ValueError for what makes no model or no run."""
    if width % heads or width // heads % 8:
        raise ValueError(f"width is {width} with {heads} heads; give a multiple of 8 for each head, as 2048 with 16")
    for name, value in (("blocks", blocks), ("rounds", rounds), ("steps", steps)):
        if value < 1:
            raise ValueError(f"{name} is {value}; give at least 1")
    return Job(replace(BASE.dit, width=width, heads=heads, blocks=blocks), size=size, ref_size=ref_size,
               steps=steps, rounds=rounds, minutes=minutes,
               dtype=torch.bfloat16 if bf16 else torch.float32)  # fmt: skip
