"""`snapref prepare`: every picture to its latent, every prompt to its context, once, before any training.

Work is split by shard: a process makes those whose number is its rank modulo the number of processes. A shard is
written aside and renamed, so preparing again makes only what is not there. The index comes last.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm.auto import tqdm

from snapref.anima.offload import at_work, device_of
from snapref.anima.text import TextEncoder, contexts
from snapref.config import V1A, ModelConfig
from snapref.files.weights import save_weights
from snapref.reference.picture import fitted_size, load_picture
from snapref.sampling.fields import checked, number
from snapref.sampling.pipeline import Pipeline
from snapref.training.json_file import read_json, write_json
from snapref.training.origin import origin
from snapref.training.pair_rules import MODES, PairOf, make_pairs
from snapref.training.prepared import FORMAT, INDEX, PAIRS, PLAN
from snapref.training.records import PictureSet
from snapref.training.shards import measured, planned, sha256_of, whole, write_shard

EACH = 4  # pairs of a target, each with a prompt of its own
LATENTS, CONTEXTS = 256, 1024  # a shard at full size has about 130 MB
SLACK = 1.05  # a picture this much above the area allowed is read as it is
MAX_ASPECT = 4
TOGETHER = {"nano": (32, 64), "anima": (2, 16)}  # pictures and prompts encoded in one call


@dataclass(frozen=True)
class Plan:
    """All that preparing does, in numbers: it follows from the pictures and the settings alone.

    Raises ValueError that names a setting, its value and its range.
    """

    pictures: PictureSet
    folder: Path
    config: ModelConfig
    captions: dict[str, str]
    each: int = number(MISSING, 1, 1000, "pairs of a target")
    seed: int = number(MISSING, 0, 2**63 - 2, "of pairs and prompts")

    def __post_init__(self):
        for f in dataclasses.fields(self):
            if f.metadata:
                checked(f, getattr(self, f.name))

    @cached_property
    def pairs(self) -> list[PairOf]:
        found = make_pairs(
            self.pictures.records, self.pictures.catalog.count, self.each, self.seed, self.pictures.split == "heldout"
        )
        if not found:
            raise ValueError(f"{self.folder} has no two pictures of one character; give more pictures of each")
        return found

    @cached_property
    def prompts(self) -> list[str]:
        """Every prompt once: the captions and the empty one first."""
        return list(dict.fromkeys([*self.captions.values(), "", *(pair.prompt for pair in self.pairs)]))

    @cached_property
    def sizes(self) -> list[tuple[int, int, int, int]]:
        """Of each picture (h, w) as a target and (h, w) as a reference, in pixels."""
        areas = buckets(self.config)
        found = []
        for record in self.pictures.records:
            height, width = nearest_bucket(*record.size, areas)
            cap = self.config.default_ref_megapixels
            own = height * width <= SLACK * cap * 1e6
            found.append((height, width, *((height, width) if own else
                                           fitted_size(height, width, self.config.size_step, cap))))
        return found

    @cached_property
    def content(self) -> dict[str, str]:
        """File → sha256 of each picture: a second of reading for a few hundred, far less than their encoding."""
        files = [record.file for record in self.pictures.records]
        with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter to the others
            return dict(zip(files, pool.map(lambda file: sha256_of(self.folder / file), files), strict=True))

    def to_json(self, fingerprint: str) -> dict:
        text = json.dumps([[dataclasses.astuple(r) for r in self.pictures.records], self.prompts])
        return {"model": self.config.name, "fingerprint": fingerprint, "each": self.each, "seed": self.seed,
                "pictures": hashlib.sha256(text.encode()).hexdigest(), "content": self.content}

    def write(self, out: Path, fingerprint: str) -> None:
        """Note the plan in its folder. Raises ValueError where another was begun there, or of other pictures."""
        path, new = out / PLAN, self.to_json(fingerprint)
        if path.exists():
            old = read_json(path, f"remove the folder {out} and prepare the pictures again")
            if changed := [name for name in new if old.get(name) != new[name]]:
                raise ValueError(
                    f"{out} was begun with another {self._told(changed, old)}; give the same to go on, or another "
                    "folder"
                )
        write_json(path, new)

    def _told(self, changed: list[str], old: dict) -> str:
        """What changed in words; of pictures that are the same by name, the first whose content is not."""
        before = old.get("content")
        if changed != ["content"] or not isinstance(before, dict):
            return ", ".join(changed)
        files = [file for file, digest in self.content.items() if before.get(file) != digest]
        return f"content of {len(files)} pictures ({files[0]}{', …' if len(files) > 1 else ''})"


def new_plan(pictures: PictureSet, folder: Path, config: ModelConfig, each: int = EACH, seed: int = 0,
             captions: dict[str, str] | None = None) -> Plan:
    return Plan(pictures, folder, config, captions or dict(V1A.captions), each, seed)


def prepare(plan: Plan, out: Path, pipe: Pipeline, *, rank: int = 0, world: int = 1, quiet: bool = False) -> int:
    """Make this process's share of the shards that are not there; returns how many were made."""
    latents, texts = _shards(plan)
    jobs = [(s, _latents) for s in latents] + [(s, _contexts) for s in texts]
    own = [(shard, make) for shard, make in jobs[rank::world] if not whole(out, shard)]
    for shard, make in tqdm(own, desc="preparing", unit="shard", disable=quiet or rank > 0):
        write_shard(out, shard, make(plan, pipe, range(shard.first, shard.first + shard.count)))
    return len(own)


def finish(plan: Plan, out: Path, pipe: Pipeline) -> Path:
    """Write the pairs and, last, the index. For one process, when all shards are made."""
    latents, texts = _shards(plan)
    if left := [shard.file for shard in (*latents, *texts) if not whole(out, shard)]:
        raise ValueError(f"{len(left)} shards of {out} are not made ({left[0]}, …); run snapref prepare again")
    factor, pairs = plan.config.codec.factor, plan.pairs
    number = {prompt: i for i, prompt in enumerate(plan.prompts)}
    columns = {"target": [p.target for p in pairs], "reference": [p.reference for p in pairs],
               "prompt": [number[p.prompt] for p in pairs], "mode": [MODES.index(p.mode) for p in pairs],
               "reads": [int(p.reads) for p in pairs], "sizes": (np.array(plan.sizes) // factor).tolist()}
    save_weights({name: torch.tensor(v, dtype=torch.int32) for name, v in columns.items()}, out / PAIRS, dtype=None)
    fingerprint, parts = origin(pipe)
    pictures = plan.pictures
    index = {
        "format": FORMAT, "model": plan.config.name, "fingerprint": fingerprint, "parts": parts,
        "split": pictures.split, "pictures": len(pictures.records), "captions": plan.captions,
        "caption_prompts": {mode: number[caption] for mode, caption in plan.captions.items()},
        "empty_prompt": number[""], "context_rows": plan.config.text.context_rows,
        "identities": sorted({record.identity for record in pictures.records}),
        "world": sorted({record.world for record in pictures.records if record.world}),
        "heldout": {"named": pictures.strangers, "range": list(pictures.catalog.heldout)},
        "pairs": {"bytes": (out / PAIRS).stat().st_size, "sha256": sha256_of(out / PAIRS), "count": len(pairs)},
        "latents": [measured(out, shard).to_json() for shard in latents],
        "contexts": [measured(out, shard).to_json() for shard in texts],
    }
    write_json(out / INDEX, index)
    return out / INDEX


def buckets(config: ModelConfig) -> list[tuple[int, int]]:
    """Sizes (h, w) of about the area of the model's default size, a sixteenth of a side apart."""
    area = config.default_size[0] * config.default_size[1] * SLACK
    step = max(1, round(math.sqrt(area) / 16 / config.size_step)) * config.size_step
    widths = range(step, int(math.sqrt(area * MAX_ASPECT)), step)
    sizes = ((int(area / width // step) * step, width) for width in widths)
    return [(h, w) for h, w in sizes if h and max(h, w) <= MAX_ASPECT * min(h, w)]


def nearest_bucket(height: int, width: int, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The size of most nearly the same aspect."""
    return min(sizes, key=lambda size: abs(math.log(size[0] * width / size[1] / height)))


@torch.no_grad()
def encode_prompts(text: TextEncoder, prompts: Sequence[str]) -> list[Tensor]:
    """The context of each prompt without its zero rows, (k, c): what `TextEncoder` gives alone, many at a time.

    Raises ValueError for a prompt longer than the model's fixed number of rows.
    """
    config, tokens = text.config, [text.tokenize(prompt) for prompt in prompts]
    for prompt, one in zip(prompts, tokens, strict=True):
        if len(one.t5_ids) > config.context_rows:
            raise ValueError(
                f"a prompt of {len(one.t5_ids)} tokens ({prompt[:60]}…) is longer than the {config.context_rows} rows "
                "of a context; shorten its tags"
            )
    device = device_of(text.adapter)
    # Padding comes last and the language model looks back only, so real tokens never see it.
    qwen_ids, qwen_mask = _padded([t.qwen_ids for t in tokens], config.qwen_pad_id)
    t5_ids, t5_mask = _padded([t.t5_ids for t in tokens], config.t5_pad_id)
    with at_work(text.qwen):
        source = text.qwen(input_ids=qwen_ids.to(device_of(text.qwen)), use_cache=False).last_hidden_state.to(device)
    t5_ids, t5_mask, qwen_mask = (t.to(device) for t in (t5_ids, t5_mask, qwen_mask))
    with at_work(text.adapter):
        whole = contexts(text.adapter, t5_ids, t5_mask, source, qwen_mask, 0)
    rows = [context[: len(t.t5_ids)] for context, t in zip(whole, tokens, strict=True)]
    return [row * torch.tensor(t.t5_weights, device=device, dtype=row.dtype)[:, None]
            for row, t in zip(rows, tokens, strict=True)]


def pixels_at(path: Path, size: tuple[int, int]) -> Tensor:
    """(1, 3, h, w) in [0, 1]: the whole picture on white, at a size; nothing is cut off."""
    image = load_picture(path)
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    image = image.resize((size[1], size[0]), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255


def _shards(plan: Plan):
    return planned("latents", len(plan.pictures.records), LATENTS), planned("contexts", len(plan.prompts), CONTEXTS)


def _latents(plan: Plan, pipe: Pipeline, numbers: range) -> dict[str, Tensor]:
    jobs: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for n in numbers:
        size, reference = plan.sizes[n][:2], plan.sizes[n][2:]
        jobs.setdefault(size, []).append((f"{n}", n))
        if reference != size:
            jobs.setdefault(reference, []).append((f"{n}.ref", n))
    made, together = {}, TOGETHER.get(plan.config.name, (8, 16))[0]
    for size, some in jobs.items():
        for i in range(0, len(some), together):
            part = some[i : i + together]
            files = [plan.folder / plan.pictures.records[n].file for _, n in part]
            latent = pipe.to_latent(torch.cat([pixels_at(file, size) for file in files]))
            made |= {name: one.half() for (name, _), one in zip(part, latent.cpu(), strict=True)}
    return made


def _contexts(plan: Plan, pipe: Pipeline, numbers: range) -> dict[str, Tensor]:
    together = TOGETHER.get(plan.config.name, (8, 16))[1]
    made = {}
    for i in range(0, len(numbers), together):
        part = numbers[i : i + together]
        rows = encode_prompts(pipe.text, [plan.prompts[n] for n in part])
        made |= {f"{n}": row.cpu().half() for n, row in zip(part, rows, strict=True)}
    return made


def _padded(rows: list[list[int]], value: int) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([row + [value] * (longest - len(row)) for row in rows])
    return ids, torch.arange(longest) < torch.tensor([[len(row)] for row in rows])
