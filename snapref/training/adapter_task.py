"""Training of an adapter on nano: both LoRA branches at once, the base frozen.

The reference and the target go through the blocks in one step, by the very function whose numbers the cache
reproduces at sampling time (`reference.encode.joint_velocity`).
"""

import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from snapref import config as sizes
from snapref.anima.model import AnimaDiT
from snapref.anima.text import contexts
from snapref.config import NANO, AdapterConfig
from snapref.files.loader import load_model
from snapref.reference.branches import Adapter
from snapref.reference.bundle import load_bundle, save_bundle
from snapref.reference.encode import joint_velocity
from snapref.training.base_task import KERNELS, by_sigma
from snapref.training.config import RunConfig
from snapref.training.flow import add_noise, draw_sigmas, velocity_loss
from snapref.training.frozen import FrozenParts
from snapref.training.loop import my_rows
from snapref.training.pairs import draw_pair

EMPTY_SHARE = 0.1  # of prompts replaced by the empty one
ALONE_SHARE = 0.1  # of targets without a reference
# Of targets, a batch at a time: one place has to serve every size of picture.
SHAPES = ("portrait", "portrait", "landscape", "portrait", "portrait", "square")


class AdapterStep(nn.Module):
    """The flow-matching loss of targets that read one clean reference each."""

    def __init__(self, dit: AnimaDiT, adapter: Adapter):
        super().__init__()
        self.adapter = adapter
        self.frozen = [dit]  # in a list: not a part of what learns, saves or averages

    def __deepcopy__(self, memo):
        return AdapterStep(self.frozen[0], _copy(self.adapter))

    def forward(self, latent, noise, sigma, context, reference, reference_context, reads) -> dict[str, Tensor]:
        """latent, reference: (b, 16, 1, h, w); reads: (b,) bool, whether a row reads its reference."""
        rows = reads.nonzero()[:, 0]
        with sdpa_kernel(KERNELS[latent.device.type]):
            velocity = joint_velocity(
                self.frozen[0], self.adapter, add_noise(latent, noise, sigma), sigma, context,
                reference[rows], reference_context[rows],
                reference_rows=None if len(rows) == len(reads) else tuple(rows.tolist()),
            )
        losses = velocity_loss(velocity.float(), latent, noise)
        return {"loss": losses.mean(), **by_sigma(losses.detach(), sigma)}


def _copy(adapter: Adapter) -> Adapter:
    twin = Adapter(adapter.config, adapter.model, adapter.specs)
    twin.load_state_dict(adapter.state_dict())
    return twin


class AdapterTask:
    def __init__(self, config: RunConfig):
        torch.manual_seed(config.seed)
        self.config, options = config, config.options
        folder = Path(options["weights"])
        self.parts = FrozenParts(folder)
        self.dit = load_model(folder / "base.safetensors", NANO, torch.float32)
        if start := options.get("init"):
            adapter = load_bundle(start, NANO)
        else:
            adapter = Adapter(adapter_config(options), NANO)
        freeze_unread(adapter)
        self.captions = adapter.config.captions
        self.model = AdapterStep(self.dit, adapter)
        self.contexts = {mode: self._contexts([caption]) for mode, caption in self.captions.items()}
        self.empty = self._contexts([""])
        self._made: tuple[int, list] | None = None

    @torch.no_grad()
    def _contexts(self, prompts: list[str]) -> Tensor:
        return contexts(self.dit.llm_adapter, **self.parts.text(prompts), rows=NANO.text.context_rows)

    def batch(self, step: int, rank: int, world: int) -> dict[str, Tensor]:
        count, columns, passes = self.config.batch, self.config.options["columns"], self.config.options["passes"]
        chunk, within = divmod(step, columns * passes)
        if self._made is None or self._made[0] != chunk:
            self._made = (chunk, [self._make(chunk * columns + i, rank, world) for i in range(columns)])
        turn, place = divmod(within, columns)
        order = np.random.default_rng((self.config.seed, chunk, turn)).permutation(columns)
        column = self._made[1][int(order[place])]

        rows = my_rows(count, rank, world)
        generator = torch.Generator().manual_seed((self.config.seed + 1) * 1_000_003 + step)
        noise = torch.randn((count, *column["latent"].shape[1:]), generator=generator)[rows]
        sigma = draw_sigmas(count, self.config.options["shift"], generator, self.config.options["spread"])[rows]
        silent, alone = (torch.rand(count, generator=generator)[rows] for _ in range(2))
        context = torch.where((silent < EMPTY_SHARE)[:, None, None], self.empty, column["context"])
        return {**column, "context": context, "noise": noise, "sigma": sigma, "reads": alone >= ALONE_SHARE}

    def _make(self, number: int, rank: int, world: int) -> dict[str, Tensor]:
        """A batch of pairs, encoded: everything that does not learn is computed once."""
        count = self.config.batch
        rows, shape = range(count)[my_rows(count, rank, world)], SHAPES[number % len(SHAPES)]
        pairs = [draw_pair(self.config.seed, number * count + i, shape=shape) for i in rows]
        return {
            "latent": self._latents([p.target for p in pairs]),
            "reference": self._latents([p.reference for p in pairs]),
            "context": self._contexts([p.prompt for p in pairs]),
            "reference_context": torch.cat([self.contexts[p.mode] for p in pairs]),
        }

    def _latents(self, pictures: list[np.ndarray]) -> Tensor:
        frames = torch.from_numpy(np.stack(pictures))[:, None]  # (b, 1, h, w, 3)
        return torch.cat([self.parts.latents(part) for part in frames.split(16)])

    def export(self, model: AdapterStep, path: Path) -> None:
        save_bundle(model.adapter, path, torch.float16)


def freeze_unread(adapter: Adapter) -> None:
    """Take out of training what nothing reads: of the reference's last block only keys and values are cached.

    Such parameters never get a gradient, for which several processes would wait for ever.
    """
    last = f"ref.blocks.{adapter.model.dit.blocks - 1}."
    for name, parameter in adapter.named_parameters():
        if name.startswith(last) and not any(f"self_attn.{side}_proj" in name for side in "kv"):
            parameter.requires_grad_(False)


def adapter_config(options: dict) -> AdapterConfig:
    """The adapter config named in the options, with single fields replaced by options["adapter_changes"]."""
    changes = dict(options.get("adapter_changes", {}))
    if "place" in changes:
        changes["place"] = tuple(map(float, changes["place"]))
    return dataclasses.replace(getattr(sizes, options["adapter"]), **changes)
