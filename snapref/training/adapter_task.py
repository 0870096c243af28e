"""Training of an adapter: both LoRA branches at once, the base frozen, at either scale.

The reference and the target go through the blocks in one step, by the very function whose numbers the cache
reproduces at sampling time (`reference.encode.joint_velocity`).
"""

import dataclasses
import warnings
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from snapref.anima.model import AnimaDiT
from snapref.anima.text import contexts
from snapref.config import AdapterConfig, ModelConfig
from snapref.files.loader import load_codec, load_model
from snapref.files.nano import FOLDER
from snapref.reference.branches import Adapter
from snapref.reference.bundle import load_bundle, save_bundle
from snapref.reference.encode import joint_velocity
from snapref.training.base_task import KERNELS, by_sigma
from snapref.training.config import RunConfig
from snapref.training.exact import check_cached_equals_joint, copied
from snapref.training.flow import add_noise, draw_sigmas, velocity_loss
from snapref.training.frozen import FrozenParts
from snapref.training.log import append_row
from snapref.training.loop import my_rows
from snapref.training.options import DTYPES, MODELS, RULES, adapters, check_options
from snapref.training.prepared import PreparedPairs
from snapref.training.preview import draw_panel
from snapref.training.processes import process_state
from snapref.training.recompute import recomputed
from snapref.training.sources import PreparedSource, RendererSource
from snapref.training.unseen import Unseen, gap_summary, unseen_drawn, unseen_losses, unseen_prepared

FUSED_FROM = 256  # target tokens from which the fused attention is the faster one on a CPU, and plain too large


class AdapterStep(nn.Module):
    """The flow-matching loss of targets that read one clean reference each.

    recompute: gradient checkpointing, the same gradients for less memory.
    """

    def __init__(self, dit: AnimaDiT, adapter: Adapter, recompute: bool = False):
        super().__init__()
        self.adapter, self.recompute = adapter, recompute
        self.frozen = [dit, recomputed(dit) if recompute else dit]  # in a list: not a part of what learns or saves

    def __deepcopy__(self, memo):
        return AdapterStep(self.frozen[0], copied(self.adapter), self.recompute)

    def forward(
        self, latent, noise, sigma, context, reference, reference_context, reads, place=None
    ) -> dict[str, Tensor]:
        """latent, reference: (b, 16, 1, h, w); reads: (b,) bool, whether a row reads its reference; place: of it."""
        rows, dit = reads.nonzero()[:, 0], self.frozen[1]
        # A base in half precision has its own rules about what is computed in which dtype, those of sampling.
        own = torch.autocast(latent.device.type, enabled=False) if dit.dtype != torch.float32 else nullcontext()
        with own, sdpa_kernel(kernels(latent, dit.config.dit.patch)):
            velocity = joint_velocity(
                dit, self.adapter, add_noise(latent, noise, sigma), sigma, context,
                reference[rows], reference_context[rows], place,
                reference_rows=None if len(rows) == len(reads) else tuple(rows.tolist()),
            )
        losses = velocity_loss(velocity.float(), latent, noise)
        loss = losses.mean()
        if not len(rows):  # several processes wait for each other's gradients: none must be missing in one of them
            loss = loss + 0.0 * sum(p.sum() for p in self.adapter.ref.parameters() if p.requires_grad)
        return {"loss": loss, **by_sigma(losses.detach(), sigma)}


def kernels(latent: Tensor, patch: int) -> list[SDPBackend]:
    """Which attention a step may use; at nano's 48 tokens the plain one is faster backwards on a CPU."""
    if latent.device.type == "cpu" and latent[0, 0].numel() >= FUSED_FROM * patch**2:
        return [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    return KERNELS[latent.device.type]


class AdapterTask:
    """An adapter of nano or anima, on prepared pairs (`data`), or for nano on pairs the renderer makes.

    Options: model, adapter (a name in `snapref.config`), adapter_changes, data, init (a bundle to go on from), base
    (file of anima's), weights (folder of nano's files), dtype (of the base), recompute (gradient checkpointing),
    shift and spread of sigma, jitter of the reference's place, unseen (a prepared folder of held-out pairs), vae,
    previews (rows of the panel), gap (pairs of the held-out loss; 0: neither gap nor panel).
    """

    def __init__(self, config: RunConfig):
        check_options(config)
        torch.manual_seed(config.seed)
        self.config, options = config, config.options
        self.device = process_state().device
        self.dit = open_base(options, self.device)
        self.parts = FrozenParts(nano_folder(options)) if options.get("model", "nano") == "nano" else None
        if self.parts is not None and options.get("vae"):
            raise ValueError(f"vae is {options['vae']}, but nano has a codec among its own files; leave it out")
        adapter = first_adapter(options, self.dit.config)
        freeze_unread(adapter)
        self.model = AdapterStep(self.dit, adapter.to(self.device), options.get("recompute", False))
        self.source = self._source(adapter)
        self._unseen: Unseen | None = None

    @property
    def reads_disk(self) -> bool:
        return self.source.reads_disk

    def _source(self, adapter: Adapter):
        if folder := self.config.options.get("data"):
            pairs = PreparedPairs(Path(folder))
            refuse_other_model(pairs, self.dit)
            return PreparedSource(pairs, self.config.batch, self.config.seed)
        if self.parts is None:
            raise ValueError("anima learns from prepared pairs; give --data, a folder that `snapref prepare` made")
        return RendererSource(self.config, self.parts, self.contexts, adapter.config.captions)

    def contexts(self, prompts: list[str]) -> Tensor:
        return nano_contexts(self.dit, self.parts, prompts)

    def batch(self, step: int, rank: int, world: int) -> dict[str, Tensor]:
        count, options = self.config.batch, self.config.options
        pairs = self.source.batch(step, rank, world)
        rows = my_rows(count, rank, world)
        generator = torch.Generator().manual_seed((self.config.seed + 1) * 1_000_003 + step)
        noise = torch.randn((count, *pairs["latent"].shape[1:]), generator=generator)[rows]
        sigma = draw_sigmas(count, options.get("shift", 3.0), generator, options.get("spread", 1.0))[rows]
        batch = {**pairs, "noise": noise, "sigma": sigma}
        if any(jitter := options.get("jitter", ())):  # the same for all rows, for a call has one place
            moved = (torch.rand(3, generator=generator) * 2 - 1).tolist()
            place = self.model.adapter.config.place
            batch["place"] = tuple(p + j * m for p, j, m in zip(place, jitter, moved, strict=True))
        return batch

    def check(self, batch: dict[str, Tensor]) -> None:
        """What is learnt is what is sampled: raises NotTheSame where it is not, and ValueError or OSError for files
        that the first checkpoint would stumble over. Warns of what no checkpoint will have."""
        if process_state().is_main_process and (lacking := self._not_watched()):
            warnings.warn(lacking, stacklevel=2)
        dit, training = self.model.frozen
        with sdpa_kernel(kernels(batch["latent"], dit.config.dit.patch)):
            check_cached_equals_joint(dit, self.model.adapter, batch, training)

    def _not_watched(self) -> str | None:
        """What of gap and panel cannot be had, and how it could, in a sentence; the files for them have been opened."""
        options = self.config.options
        if not options.get("gap", 64):
            return None
        unseen, codec = self._unseen_pairs(), self._codec()
        if unseen is None:
            return ("no held-out gap is measured and no panel is drawn at the checkpoints, for there are no held-out "
                    "pairs; give --unseen, prepared from pictures of `snapref datagen --heldout`, and --vae")
        if codec is None and options.get("previews", 3):
            return "no panel is drawn at the checkpoints, only the gap is measured; give --vae, the file of the VAE"
        return None

    def export(self, model: AdapterStep, path: Path) -> None:
        save_bundle(model.adapter, path, torch.float16)

    def watch(self, model: AdapterStep, run: Path, step: int) -> dict[str, float]:
        """A bundle, a panel of held-out characters, and the held-out gap, of every checkpoint; its `gap_summary`."""
        options, dit, adapter = self.config.options, self.dit, model.adapter
        save_bundle(adapter, run / f"bundles/{step:08d}.safetensors", torch.float16)
        if (unseen := self._unseen_pairs()) is None:
            return {}
        losses = unseen_losses(dit, adapter, unseen, options.get("shift", 3.0))
        found = gap_summary(losses)
        append_row(run / "gaps.csv", {"step": step, **{k: f"{v:.5f}" for k, v in found.items()}})
        codec = self._codec()
        if codec is not None and (rows := options.get("previews", 3)):
            panel = draw_panel(dit, adapter, codec, unseen, rows)
            (run / "previews").mkdir(exist_ok=True)
            panel.save(run / f"previews/{step:08d}.png")
        return found

    def _unseen_pairs(self) -> Unseen | None:
        options = self.config.options
        if self._unseen is None and (count := options.get("gap", 64)):
            if folder := options.get("unseen"):
                self._unseen = unseen_prepared(unseen_set(folder, self.dit), count)
            elif self.parts is not None:
                self._unseen = unseen_drawn(self.parts, self.contexts, self.model.adapter.config, count)
        return self._unseen

    def _codec(self):
        if self.parts is not None:
            return self.parts.codec
        if (vae := self.config.options.get("vae")) is None:
            return None
        return load_codec(vae, self.dit.config.codec, torch.float32, self.device)


def open_base(options: dict, device="cpu") -> AnimaDiT:
    """The frozen base of a config. Raises ValueError where its file is not given."""
    name, dtype = options.get("model", "nano"), options.get("dtype", "float32")
    for what, value in (("model", name), ("dtype", dtype)):
        if not (rule := RULES["adapter"][what]).test(value):
            raise ValueError(f"{what} is {value!r}; it must be {rule.words()}")
    path = options.get("base") or (nano_folder(options) / "base.safetensors" if name == "nano" else None)
    if path is None:
        raise ValueError("anima's base is not given; give --base, the path of its diffusion model")
    return load_model(path, MODELS[name], DTYPES[dtype], device)


def refuse_other_model(pairs: PreparedPairs, dit: AnimaDiT) -> None:
    """Raises ValueError for pairs that were prepared for another model, or with another base of it."""
    if pairs.model != dit.config.name:
        raise ValueError(
            f"{pairs.folder} was prepared for {pairs.model}, this config trains {dit.config.name}; prepare the "
            "pictures with that model"
        )
    if hasattr(dit, "llm_adapter"):
        pairs.check_base(dit.llm_adapter)


def unseen_set(folder: str | Path, dit: AnimaDiT) -> PreparedPairs:
    """A prepared set of held-out pairs. Raises ValueError for one of characters that trainings see."""
    pairs = PreparedPairs(Path(folder), allow=True)
    refuse_other_model(pairs, dit)
    if "train" in pairs.splits:
        raise ValueError(
            f"{folder} shows characters that trainings see; give --unseen a set prepared from pictures of "
            "`snapref datagen --heldout`"
        )
    return pairs


def first_adapter(options: dict, model: ModelConfig) -> Adapter:
    """What training begins with: new branches, or those of `init`. Raises ValueError where they do not fit."""
    config = adapter_config(options)
    if not (start := options.get("init")):
        if before := options.get("continues"):
            raise ValueError(f"{config.name} goes on from {before}; give --init, the bundle that {before} ended in")
        return Adapter(config, model)
    adapter = load_bundle(start, model)
    for side in ("reference_rank", "target_rank"):
        if (found := getattr(adapter.config, side)) != (wanted := getattr(config, side)):
            raise ValueError(
                f"{start} has {side.replace('_', ' ')} {found}, {config.name} has {wanted}; take a config of its ranks"
            )
    adapter.config = dataclasses.replace(adapter.config, name=config.name)
    return adapter


@torch.no_grad()
def nano_contexts(dit: AnimaDiT, parts: FrozenParts, prompts: list[str]) -> Tensor:
    """(n, k, c) on the CPU. Only nano's: at full size contexts are prepared, never made in the loop."""
    device = next(dit.parameters()).device
    text = {name: value.to(device) for name, value in parts.text(prompts).items()}
    return contexts(dit.llm_adapter, **text, rows=dit.config.text.context_rows).cpu()


def nano_folder(options: dict) -> Path:
    return Path(options.get("weights") or FOLDER)


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
    return dataclasses.replace(adapters()[options["adapter"]], **changes)
