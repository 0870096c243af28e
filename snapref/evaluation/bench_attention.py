"""What reading a reference costs a step of sampling, against the plain step and against the arithmetic it needs.

A step is two branches of guidance through full-width blocks. Every row, the plain step and the attentions that
bound them from below are timed in turn, in one run, so that a busy machine is busy for all of them. What a row adds
is also seen in its own step, where even the moment is the same.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from tqdm.auto import tqdm

from snapref.anima.init import initialise
from snapref.anima.lowrank import Branch
from snapref.anima.model import AnimaDiT
from snapref.config import BASE
from snapref.evaluation.bench_forward import randomised
from snapref.evaluation.floor import Stopwatch, flops
from snapref.evaluation.in_run import InRun, Operator, labelled, seen
from snapref.evaluation.reading_rows import GUIDED, ROWS, Job, Row, attention, operations, reading_floor, reading_share
from snapref.reference.branches import Adapter
from snapref.reference.cache import PictureGroup, ReferenceCache
from snapref.reference.compact import compacted
from snapref.reference.fingerprint import Fingerprint, PicturePrint
from snapref.sampling.denoiser import Denoiser
from snapref.sampling.settings import Settings

SIGMA = 0.7


class Setting:
    """A model with random weights, what its adapter reads from a random picture, and the calls to time."""

    def __init__(self, job: Job):
        self.job = job
        self.generator = torch.Generator().manual_seed(0)
        config = replace(BASE, dit=job.dit, text=None)
        model = randomised(initialise(AnimaDiT(config), self.generator), self.generator)
        self.model = model.to(job.dtype).eval().requires_grad_(False)
        self.adapter = Adapter(job.adapter, config).to(job.dtype).requires_grad_(False)
        for parameter in self.adapter.parameters():
            parameter.normal_(std=0.02, generator=self.generator)
        self.latent, self.picture = (self.random(1, 16, 1, h // 8, w // 8) for h, w in (job.size, job.ref_size))
        self.contexts = [self.random(1, job.context_rows, job.dit.context_width) for _ in range(2)]
        self.layers = self.read()
        self.caches: dict[str, ReferenceCache] = {}

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.job.dtype)

    @torch.no_grad()
    def read(self) -> list[tuple[Tensor, Tensor]]:
        """All blocks in full. The last one of a whole model ends at its keys and values: see `reading_share`."""
        x, emb, lora, angles = self.model.enter(self.picture, torch.zeros(1), self.adapter.config.place)
        offered = []
        for block, branch in zip(self.model.blocks, self.adapter.reference, strict=True):
            x, pair = block.forward_and_offer(x, emb, lora, self.contexts[0], angles, branch=branch)
            offered.append(pair)
        return offered

    def cache(self, row: Row) -> ReferenceCache:
        """As `encode_reference` leaves it: in memory of its own, pictures side by side. Made once."""
        if row.name in self.caches:
            return self.caches[row.name]
        mark = PicturePrint("bench", tuple(self.picture.shape[2:]), self.adapter.config.place, "cs", "")
        print_ = Fingerprint("bench", "bench", str(self.job.dtype).removeprefix("torch."), (mark,))
        layers = tuple(tuple(side.contiguous() for side in pair) for pair in self.layers)
        one = ReferenceCache(layers, (PictureGroup(self.job.reference, row.weight),), print_)
        self.caches[row.name] = ReferenceCache.concat([compacted(one, row.form)] * row.pictures)
        return self.caches[row.name]

    def denoiser(self, row: Row | None) -> Denoiser:
        """What one run of sampling calls once per step; None: the plain model."""
        settings = row.asked if row else Settings(**GUIDED)
        positive, negative = ([context] for context in self.contexts)
        common = (positive, negative, settings, self.job.steps)
        if row is None:
            return Denoiser(self.model, *common)
        target: Branch = self.adapter.target
        regions = None
        if row.halves:
            height, width = (side // 16 for side in self.job.size)
            left = (torch.arange(width) < width // 2).repeat(height)
            regions = [(left, ~left)]
        model = self.model if row.merged else partial(self.model, branch=target)
        return Denoiser(model, *common, [self.cache(row)], target if row.merged else None, regions)

    def step(self, denoiser: Denoiser) -> Callable[[], object]:
        def call():
            denoiser.step = 0  # the window of reading is the whole run, however long the bench is
            return denoiser(self.latent, SIGMA)

        return call


@torch.no_grad()
def bench_attention(job: Job | None = None, rows: tuple[Row, ...] = ROWS, quiet: bool = False) -> dict:
    """Rounds in which reading, every row and every attention are timed once, and the plain step around every row.

    Returns {"rows": [{name, operations, ratio, floor, in_run}], …}. ratio: the row's step, with its share of
    reading, over the plain steps before and after it; operations: the same, counted. floor: with nothing but the
    attentions and products that the row adds, timed by themselves. in_run: {ratio, added_over_floor} as `seen_in_run`
    gives them. All times as a median of the rounds with quartiles.
    """
    job = job or Job()
    setting, watch = Setting(job), Stopwatch(job.dtype, torch.device("cpu"))
    products = {attention(job, job.tokens), *reading_floor(job)}
    products |= {product for row in rows for product in row.attentions(job) + row.further(job) + row.beside(job)}
    calls = {product: watch.call(product) for product in products}
    for call in calls.values():
        call()
    times: list[dict] = []
    setting.step(setting.denoiser(None))()  # the first call of a shape costs more
    end = time.monotonic() + 60 * job.minutes
    for number in tqdm(range(job.rounds), desc="rounds", disable=quiet):
        if number and time.monotonic() > end:
            break
        found: dict = {product: seconds(call) for product, call in calls.items()}
        with seen() as found["read"]:
            setting.read()
        before = step_of(setting, None)[0]
        found["plain"] = before.seconds
        for row in rows[number % len(rows):] + rows[:number % len(rows)]:
            found[row.name], found["merge", row.name] = step_of(setting, row)
            after = step_of(setting, None)[0]
            found["plain", row.name] = (before.seconds + after.seconds) / 2
            found["around", row.name] = (around(before) + around(after)) / 2
            before = after
        times.append(found)
    return {
        "rows": [row_report(job, row, times) for row in rows],
        "plain_seconds": middle(found["plain"] for found in times),
        "read_over_plain": spread(found["read"].seconds / found["plain"] for found in times),
        "width": job.dit.width, "heads": job.dit.heads, "blocks": job.dit.blocks, "tokens": job.tokens,
        "reference_tokens": job.reference, "context_rows": job.context_rows, "steps": job.steps,
        "rounds": len(times), "dtype": str(job.dtype).removeprefix("torch."), "threads": torch.get_num_threads(),
    }  # fmt: skip


def step_of(setting: Setting, row: Row | None) -> tuple[InRun, float]:
    """(one step, seconds of merging the branch before it). Plain steps are looked into too, or they would cost less."""
    with setting.denoiser(row) as denoiser:
        begun = time.perf_counter()
        denoiser.set_target(denoiser.reading(0))
        merging = time.perf_counter() - begun
        step = setting.step(denoiser)
        with labelled(), seen() as found:
            step()
    return found, merging


def around(step: InRun) -> float:
    """Seconds of all that self-attention and the projections do besides their products: views, merges, widening."""
    return step.time(lambda one: one.part != "" and not one.is_product)


def row_report(job: Job, row: Row, times: list[dict]) -> dict:
    by_clock = [ratio_and_floor(job, row, found) for found in times]
    inside = [seen_in_run(job, row, found) for found in times]
    return {
        "name": row.name, "operations": round(operations(job, row), 4),
        "ratio": spread(ratio for ratio, _ in by_clock), "floor": spread(floor for _, floor in by_clock),
        "in_run": {"ratio": spread(ratio for ratio, _ in inside),
                   "added_over_floor": spread(over for _, over in inside)},
    }  # fmt: skip


def ratio_and_floor(job: Job, row: Row, found: dict) -> tuple[float, float]:
    """(the row's step over the plain one, the same with nothing but what the row must add), by the clock."""
    reading = sum(count * found[product] for product, count in reading_floor(job).items())
    needed = row.attentions(job) + row.further(job) + row.beside(job)
    added = sum(count * found[product] for product, count in needed.items())
    added -= 2 * found[attention(job, job.tokens)]  # the plain step's own, of both branches
    least = job.dit.blocks * added + row.pictures * reading / job.steps
    plain = found["plain", row.name]
    return (found[row.name].seconds + once(job, row, found)) / plain, 1 + least / plain


def once(job: Job, row: Row, found: dict) -> float:
    """A step's share of what is done once in a run: reading, and merging the branch."""
    return (row.pictures * reading_share(job) * found["read"].seconds + found["merge", row.name]) / job.steps


def seen_in_run(job: Job, row: Row, found: dict) -> tuple[float, float]:
    """(the row's step over itself without what it adds, what it adds over what it must add).

    It must add the further attention, the products of an unmerged branch and, with three branches of guidance, those
    of the third: its share of what all do in one batch. It does add whatever else happens around them, beyond what
    happens there in the plain steps before and after. Of reading, the products are what must be.
    """
    step, read = found[row.name], found["read"]
    beside = {product.sides for product in row.beside(job)}

    def own(one: Operator) -> bool:  # what this way of reading brings with it, for all branches
        return one.part == "read" or (one.part == "project" and one.is_product and one.product.sides in beside)

    must = step.time(lambda one: one.is_product and own(one))
    must += row.further_share * step.time(lambda one: one.is_product and not own(one))
    more = around(step) - found["around", row.name]
    more += row.further_share * step.time(lambda one: one.part == "" and not one.is_product)
    reading = read.products * flops(reading_floor(job)) / read.flops
    added = must + more + once(job, row, found)
    ratio = (step.seconds + once(job, row, found)) / (step.seconds - must - more)
    return ratio, added / (must + row.pictures * reading / job.steps)


def seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def middle(values) -> float:
    return round(statistics.median(values), 4)


def spread(values) -> dict:
    """{"median", "quartiles"}; of a single value, itself."""
    values = [*values]
    low, centre, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {"median": round(centre, 4), "quartiles": [round(low, 4), round(high, 4)]}


def bench_text(report: dict) -> str:
    """The report for a person, a line a row."""
    head = "{blocks} block(s) of width {width}, {tokens} target and {reference_tokens} reference tokens, {dtype}, " \
           "{threads} thread(s), {rounds} rounds; reading spread over {steps} steps".format(**report)  # fmt: skip
    lines = [head]
    for row in report["rows"]:
        ratio, added = (row["in_run"][what] for what in ("ratio", "added_over_floor"))
        lines.append(
            f"{row['name']:30} {spread_text(ratio)} × plain, adds {added['median']:.3f} × what it must; by the clock "
            f"{spread_text(row['ratio'])}, floor {row['floor']['median']:.3f}; operations {row['operations']:.3f}"
        )
    return "\n".join(lines)


def spread_text(values: dict) -> str:
    """One of `spread`."""
    low, high = values["quartiles"]
    return f"{values['median']:.3f} ({low:.3f} to {high:.3f})"
