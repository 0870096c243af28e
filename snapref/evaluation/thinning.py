"""Which tokens of a reference to keep: ways of choosing them, by the identity that is left, bytes and time.

Every point draws the same held-out cases from the same noise; prompts name the scene alone.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from snapref.evaluation.attributes import APPEARANCE, ATTRIBUTES, marks
from snapref.evaluation.cases import SCENE_PROMPT, SIZE, Case
from snapref.evaluation.reading_rows import Job, Row, operations
from snapref.evaluation.samples import starting_noise
from snapref.evaluation.stats import estimate, rounded
from snapref.lab.attention_view import reference_shares
from snapref.reference.cache import ReferenceCache
from snapref.reference.thin import How, farthest, joined, longest_and_apart, thinned
from snapref.sampling.pipeline import Pipeline

SHARES = (1.0, 0.5, 0.333, 0.25)
PROBED = 0.9  # sigma of the one step that is asked what it reads
BATCH = 16

# Tokens chosen once for all heads: (values of all blocks (r, c), how many) → their numbers (m,).
Choice = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class Way:
    """How tokens are chosen; with `returned`, those kept carry the weight of those that are gone."""

    name: str
    choose: Callable[[Pipeline, Case, ReferenceCache], How]
    returned: bool = False


def for_all_heads(choice: Choice) -> How:
    """Every head of every block keeps the same tokens, as if the picture had fewer."""

    def how(layers, count):
        values = [v.transpose(0, 1).flatten(1).float() for _, v in layers]  # per block (r, n · d)
        chosen = choice(torch.cat([v / v.norm(dim=-1).mean().clamp(min=1e-12) for v in values], dim=-1), count)
        return [chosen.expand(len(k), -1) for k, _ in layers]

    return how


def spread(described: Tensor, count: int) -> Tensor:
    """The tokens that differ most from one another, the first one from the mean."""
    first = (described - described.mean(0)).norm(dim=-1).argmax()
    return farthest(described[None], first.reshape(1, 1), count)[0]


def grid_of(rows: int, columns: int) -> Choice:
    """Uniform over the picture: of a lattice as square as the picture, the tokens nearest to its points."""

    def choice(described: Tensor, count: int) -> Tensor:
        down = min(rows, max(1, round(math.sqrt(count * rows / columns))))
        # Each lattice row takes its part of `count`, as evenly as whole numbers allow.
        ends = [round(count * (i + 1) / down) for i in range(down)]
        chosen = set()
        for row, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
            across = min(columns, last - first)
            y = int((row + 0.5) * rows / down)
            chosen |= {y * columns + int((i + 0.5) * columns / across) for i in range(across)}
        rest = [i for i in range(len(described)) if i not in chosen]
        missing = count - len(chosen)
        chosen |= {rest[int((i + 0.5) * len(rest) / missing)] for i in range(missing)}
        return torch.tensor(sorted(chosen))

    return choice


def norm(described: Tensor, count: int) -> Tensor:
    """The tokens with the largest values."""
    return described.norm(dim=-1).topk(count).indices


def most(amounts: Tensor) -> Choice:
    """The tokens of the largest amounts. amounts: (r,)."""
    return lambda described, count: amounts.topk(count).indices


def longest(layers, count: int) -> list[Tensor]:
    """Every head for itself: the tokens with the largest values."""
    return [v.float().norm(dim=-1).topk(count, dim=1).indices for _, v in layers]


def differing(layers, count: int) -> list[Tensor]:
    """Every head for itself: the tokens that differ most from one another, the first one the longest."""
    return [farthest(joined(k, v), v.float().norm(dim=-1).topk(1, dim=1).indices, count) for k, v in layers]


@torch.no_grad()
def read_amounts(pipe: Pipeline, case: Case, cache: ReferenceCache) -> Tensor:
    """(r,): how much of the target's attention goes to each token, in one step from noise at `PROBED`."""
    latent = starting_noise(pipe, 1, seed=1)
    context = pipe.contexts([case.prompt(SCENE_PROMPT)])[0]
    shares = reference_shares(pipe.model, latent, PROBED, context, cache.memory(), pipe.adapter.target)
    return shares.mean(dim=(0, 1))


def by_grid(pipe: Pipeline, case: Case, cache: ReferenceCache) -> How:
    _, height, width = cache.fingerprint.pictures[0].size
    patch = pipe.config.dit.patch
    return for_all_heads(grid_of(-(-height // patch), -(-width // patch)))


WAYS = (
    Way("each head: longest, then apart", lambda pipe, case, cache: longest_and_apart),
    Way("the same, weight given back", lambda pipe, case, cache: longest_and_apart, returned=True),
    Way("each head: longest values", lambda pipe, case, cache: longest),
    Way("each head: apart", lambda pipe, case, cache: differing),
    Way("all heads: apart", lambda pipe, case, cache: for_all_heads(spread)),
    Way("all heads: grid", by_grid),
    Way("all heads: longest values", lambda pipe, case, cache: for_all_heads(norm)),
    Way("all heads: most read", lambda pipe, case, cache: for_all_heads(most(read_amounts(pipe, case, cache)))),
)


def thin_by(pipe: Pipeline, way: Way, share: float, case: Case, whole: ReferenceCache) -> ReferenceCache:
    """A case's cache with a share of its tokens; share 1 is the whole one, whatever the way."""
    if share == 1:
        return whole
    thin = thinned(whole, share, way.choose(pipe, case, whole))
    if not way.returned:
        return thin
    pairs = zip(whole.tokens, thin.tokens, whole.weights, strict=True)
    return thin.with_weights([weight * before / after for before, after, weight in pairs])


def draw_thin(
    pipe: Pipeline, cases: list[Case], wholes: list[ReferenceCache], way: Way, share: float, seed: int,
    steps: int | None,
) -> tuple[np.ndarray, dict]:
    """(samples uint8 (n, h, w, 3), {"bytes", "choosing_ms"})."""
    noise, pictures, choosing, sizes = starting_noise(pipe, len(cases), seed), [], [], []
    for start in range(0, len(cases), BATCH):
        part = slice(start, start + BATCH)
        prompts = [case.prompt(SCENE_PROMPT) for case in cases[part]]
        begun = time.perf_counter()
        caches = [thin_by(pipe, way, share, *pair) for pair in zip(cases[part], wholes[part], strict=True)]
        choosing.append((time.perf_counter() - begun) / len(caches))
        drawn = pipe(prompts, references=caches, noise=noise[part], size=SIZE, steps=steps, quiet=True)
        pictures += [np.asarray(image) for image in drawn.images]
        sizes += [cache.nbytes for cache in caches]
    return np.stack(pictures), {
        "bytes": round(float(np.mean(sizes))),
        "choosing_ms": rounded(1000 * np.median(choosing)),
    }


def share_times(
    pipe: Pipeline, cases: list[Case], wholes: list[ReferenceCache], shares, steps: int | None = None, rounds: int = 5
) -> dict[str, float]:
    """{share: CPU time of a batch over a plain one's, of the quickest of each}; the way makes no difference."""
    cases, wholes, seconds = cases[:BATCH], wholes[:BATCH], {share: [] for share in (0.0, *shares)}
    thin = {share: [thin_by(pipe, WAYS[0], share, *pair) for pair in zip(cases, wholes, strict=True)]
            for share in shares}  # fmt: skip
    common = {"noise": starting_noise(pipe, len(cases), 0), "size": SIZE, "steps": steps, "quiet": True}
    for _ in range(rounds):
        for share, spent in seconds.items():
            begun = time.process_time()  # a clock also counts what else the machine does
            pipe([case.prompt(SCENE_PROMPT) for case in cases], references=thin.get(share), **common)
            spent.append(time.process_time() - begun)
    return {f"{share:g}": rounded(min(seconds[share]) / min(seconds[0.0])) for share in shares}


def thinning_report(
    pipe: Pipeline, tagger, cases: list[Case], ways=WAYS, shares=SHARES, seed: int = 0, steps: int | None = None,
    quiet: bool = False,
) -> dict:
    """{"rows": [{way, share, identity, lost, bytes, choosing_ms}], "times": {share: …}, "best", "n", "seed"}.

    identity: share of the seen identity attributes, art style apart; lost: what the whole cache has more, case by
    case. best: the way with the highest identity, mean over the shares below 1.
    """
    wholes = [pipe.encode(case.reference) for case in cases]
    points = [("whole", Way("whole", None), 1.0)] if 1.0 in shares else []
    points += [(way.name, way, share) for way in ways for share in shares if share < 1]
    rows, whole = [], None
    for name, way, share in tqdm(points, desc="thinning", unit="point", disable=quiet):
        pictures, cost = draw_thin(pipe, cases, wholes, way, share, seed, steps)
        looks = np.delete(marks(tagger, pictures, cases), ATTRIBUTES.index("artist"), axis=1)
        identity = np.nanmean(looks[:, : len(APPEARANCE) - 1], axis=1)
        whole = identity if name == "whole" else whole
        lost = None if whole is None else estimate(whole - identity)
        rows.append({"way": name, "share": share, "identity": estimate(identity), "lost": lost, **cost})
    means = {
        way.name: float(np.mean([row["identity"]["mean"] for row in rows if row["way"] == way.name])) for way in ways
    }
    times = share_times(pipe, cases, wholes, shares, steps)
    return {"rows": rows, "times": times, "best": max(means, key=means.get), "n": len(cases), "seed": seed}


def shown(row: dict) -> str:
    return f"{row['share']:g}"


def thinning_table(report: dict) -> str:
    """The report in Markdown, a row a point."""
    from snapref.evaluation.tables import markdown, percent

    head = ["tokens chosen by", "share kept", "identity, %", "bytes", "time × plain", "choosing, ms"]
    lines = [
        [row["way"], shown(row), percent(row["identity"]["mean"], row["identity"]["ci95"]),
         f"{row['bytes']:,}", f"{report['times'][shown(row)]:.2f}", f"{row['choosing_ms']:.1f}"]
        for row in report["rows"]
    ]  # fmt: skip
    return f"{markdown(head, lines)}\n\nn = {report['n']} held-out characters; best on average: {report['best']}."


def draw_thinning(report: dict):
    """A figure: identity against bytes and against time, a line a way, the whole cache's interval as a band.

    Time is that of a step at full size, counted in operations (`bench attention` measures it): nano's differ by noise.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    rows = [row | {"step": operations(Job(), Row("", share=row["share"]))} for row in report["rows"]]
    whole = next((row for row in rows if row["way"] == "whole"), None)
    for axis, key, factor, label in (
        (axes[0], "bytes", 1e-3, "kB of one reference"),
        (axes[1], "step", 1, "operations of a step at full size, × plain"),
    ):
        if whole:
            axis.axhspan(*(100 * end for end in whole["identity"]["ci95"]), color="#dee2e6", label="whole, 95 %")
            axis.plot(factor * whole[key], 100 * whole["identity"]["mean"], "o", color="#495057")
        for name in dict.fromkeys(row["way"] for row in rows if row["way"] != "whole"):
            own = sorted((row for row in rows if row["way"] == name), key=lambda row: row["share"])
            axis.plot([factor * row[key] for row in own], [100 * row["identity"]["mean"] for row in own],
                      "o-", markersize=4, label=name)  # fmt: skip
        axis.set_xlabel(label)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[1].set_xlim(1, None)
    axes[0].set_ylabel("identity, %")
    axes[0].legend(frameon=False, fontsize=8)
    return figure
