"""Which checkpoint of which run is best: the held-out gap of each, and how far it is from the best, with intervals."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from snapref.anima.model import AnimaDiT
from snapref.evaluation.stats import estimate
from snapref.files.loader import WeightsError
from snapref.reference.bundle import load_bundle
from snapref.training.adapter_task import nano_contexts, nano_folder, open_base, unseen_set
from snapref.training.frozen import FrozenParts
from snapref.training.resume import noted
from snapref.training.unseen import Unseen, unseen_drawn, unseen_losses, unseen_prepared


@dataclass(frozen=True)
class Candidate:
    """A bundle and where it came from."""

    name: str  # of the run or of the file
    step: int | None
    path: Path
    options: dict  # of the run's config: which base it belongs to


def candidates(places: list[Path], last: int | None = None) -> list[Candidate]:
    """The checkpoints of run folders (the `last` of each) and single bundle files. Raises WeightsError for others."""
    found = []
    for place in places:
        if place.is_file():
            found.append(Candidate(place.name, None, place, {}))
            continue
        bundles = sorted((place / "bundles").glob("*.safetensors"))
        if not bundles:
            raise WeightsError(
                f"{place} holds no checkpoints of an adapter; give a run's folder, such as runs/nano-v1a, or a bundle"
            )
        options = (noted(place) or {"options": {}})["options"]
        if strange := [path for path in bundles if not path.stem.isdigit()]:
            raise WeightsError(
                f"{strange[0]} is not named by its step, as {0:08d}.safetensors is; move it out, and give it by itself"
            )
        found += [Candidate(place.name, int(path.stem), path, options) for path in bundles[-last if last else 0 :]]
    return found


def compare(
    places: list[Path], n: int = 256, seed: int = 0, *, base: Path | None = None, weights: Path | None = None,
    unseen: Path | None = None, last: int | None = None, device: str | None = None, quiet: bool = False,
) -> dict:
    """{"ranking": best first, "n", "seed"}: each with its gap and its distance to the best, 95 % intervals.

    All are asked the same pairs with the same noise, so the distances are paired. base, weights, unseen: instead of
    what the runs' own configs say. Raises ValueError for runs on different bases, and for fewer than two pairs.
    """
    for name, value, low in (("n", n, 2), ("last", last, 1)):
        if value is not None and value < low:
            raise ValueError(f"{name} is {value}; it must be at least {low}")
    found = candidates(places, last)
    options = one_base(found, {"base": base, "weights": weights, "unseen": unseen})
    dit = open_base(options, device or ("cuda" if torch.cuda.is_available() else "cpu"))
    pairs, losses = None, {}
    for i, candidate in enumerate(tqdm(found, desc="checkpoints", disable=quiet)):
        adapter = load_bundle(candidate.path, dit.config).to(next(dit.parameters()).device).requires_grad_(False)
        if pairs is None:
            pairs = unseen_pairs(dit, adapter.config, options, n, seed)
        losses[i] = unseen_losses(dit, adapter, pairs, dit.config.shift, seed)
    gaps = {i: loss["wrong"] - loss["right"] for i, loss in losses.items()}
    order = sorted(gaps, key=lambda i: -gaps[i].mean())
    return {
        "ranking": [ranked(found[i], losses[i], gaps[i], gaps[order[0]]) for i in order],
        "n": len(pairs), "seed": seed, "model": dit.config.name,
    }


def one_base(found: list[Candidate], given: dict) -> dict:
    """The options that all candidates agree on, with what was given put on top."""
    stated = {"model": "nano", "dtype": "float32"}
    for name in ("model", "dtype", "base", "weights", "unseen"):
        values = {str(c.options[name]) for c in found if name in c.options}
        if given.get(name) is None and len(values) > 1:
            raise ValueError(f"the runs differ in {name}: {', '.join(sorted(values))}; compare those of one base")
        if values:
            stated[name] = values.pop()
    return {**stated, **{name: str(value) for name, value in given.items() if value is not None}}


def unseen_pairs(dit: AnimaDiT, config, options: dict, n: int, seed: int) -> Unseen:
    if folder := options.get("unseen"):
        return unseen_prepared(unseen_set(folder, dit), n)
    if options["model"] != "nano":
        raise ValueError("anima's held-out pairs are prepared ones; give --unseen, a folder of `snapref prepare`")
    parts = FrozenParts(nano_folder(options))
    return unseen_drawn(parts, lambda prompts: nano_contexts(dit, parts, prompts), config, n, seed + 1)


def ranked(candidate: Candidate, losses: dict[str, np.ndarray], gaps: np.ndarray, best: np.ndarray) -> dict:
    gap, behind = estimate(gaps), estimate(best - gaps)
    means = {name: estimate(values)["mean"] for name, values in losses.items()}
    return {
        "name": candidate.name, "step": candidate.step, "path": str(candidate.path), "gap": gap["mean"],
        "ci95": gap["ci95"], "behind": behind["mean"], "behind_ci95": behind["ci95"], **means,
    }


def comparison_text(report: dict) -> str:
    """A table for a person."""
    rows = [f"{'checkpoint':<28}{'gap':>8}  {'95 % interval':<20}{'behind the best':>16}  {'95 % interval':<20}"]
    for row in report["ranking"]:
        name = row["name"] if row["step"] is None else f"{row['name']} step {row['step']}"
        spans = [f"{low:+.4f} to {high:+.4f}" for low, high in (row["ci95"], row["behind_ci95"])]
        rows.append(f"{name:<28}{row['gap']:>8.4f}  {spans[0]:<20}{row['behind']:>16.4f}  {spans[1]:<20}")
    best = report["ranking"][0]
    equal = sum(row["behind_ci95"][0] <= 0 for row in report["ranking"][1:])
    rows.append(
        f"\n{report['n']} held-out pairs of {report['model']}, the same for all; gap: loss with another's reference "
        f"minus with the right one. Others that cannot be told from the first, {Path(best['path'])}: {equal}"
    )
    return "\n".join(rows)
