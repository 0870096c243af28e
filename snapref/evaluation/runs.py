"""The scores of `snapref evaluate`, from one opened model and from samples that are drawn once."""

from functools import cached_property

import numpy as np
import torch

import snapref
from snapref.config import NANO
from snapref.evaluation.attributes import CONDITIONS, attribute_report
from snapref.evaluation.cases import Case, draw_cases
from snapref.evaluation.colours import CONDITIONS as COLOUR_CONDITIONS
from snapref.evaluation.colours import colour_report
from snapref.evaluation.flatness import codec_report, flatness_report
from snapref.evaluation.heldout import heldout_losses, heldout_report
from snapref.evaluation.samples import draw, seconds_per_picture, through_codec
from snapref.files.loader import load_codec
from snapref.files.nano import nano_file
from snapref.reference.fingerprint import hash_module
from snapref.sampling.pipeline import Pipeline
from snapref.sampling.settings import Settings
from snapref.training.tagger import load_tagger

COLOUR_CASES = 128  # enough for a gap of 1 ΔE; every case costs a sample more


class Evaluator:
    """nano from `folder` (None: the shipped files). Files are opened, samples drawn, once and when needed.

    adapter: a bundle instead of nano's own; False scores the base alone, where no score needs a picture.
    """

    def __init__(
        self, folder=None, adapter=None, seed: int = 0, steps: int | None = None, quiet: bool = False
    ):
        self.folder, self.adapter = folder, adapter
        self.seed, self.steps, self.quiet = seed, steps, quiet
        self._cases: dict[str, list[Case]] = {}
        self._samples: dict[tuple[str, str], np.ndarray] = {}

    @cached_property
    def pipe(self) -> Pipeline:
        return snapref.load("nano", folder=self.folder, adapter=self.adapter)

    @cached_property
    def codec_alone(self):
        """Its score needs no other file."""
        return load_codec(nano_file("codec.safetensors", self.folder), NANO.codec, torch.float32, "cpu")

    @cached_property
    def tagger(self):
        return load_tagger(self.folder)

    @property
    def weights(self) -> dict[str, str]:
        """sha256 of every part that a score depends on: numbers of other weights are no longer true."""
        pipe = self.pipe
        parts = {"base": pipe.model, "text": pipe.text.qwen, "codec": pipe.codec, "adapter": pipe.adapter,
                 "tagger": self.tagger}  # fmt: skip
        return {name: hash_module(part) for name, part in parts.items() if part is not None}

    def cases(self, count: int, split: str = "heldout") -> list[Case]:
        if len(self._cases.get(split, ())) < count:
            self._cases[split] = draw_cases(count, self.seed, split)
        return self._cases[split][:count]

    def samples(self, condition: str, count: int, split: str = "heldout") -> np.ndarray:
        """uint8 (n, h, w, 3)."""
        key = condition, split
        if len(self._samples.get(key, ())) < count:
            self._samples[key] = draw(
                self.pipe, self.cases(count, split), condition,
                seed=self.seed, steps=self.steps, quiet=self.quiet,
            )
        return self._samples[key][:count]

    def attributes(self, count: int, split: str = "heldout") -> dict:
        tagger, cases = self.tagger, self.cases(count, split)  # a missing file should not cost the samples
        shown = [c for c in CONDITIONS if self.adapter is not False or not c.endswith("reference")]
        samples = {condition: self.samples(condition, count, split) for condition in shown}
        return attribute_report(tagger, samples, cases) | self.conditions(split)

    def heldout(self, count: int) -> dict:
        losses, sigmas = heldout_losses(self.pipe, self.cases(count), self.seed, quiet=self.quiet)
        return heldout_report(losses, sigmas) | {"seed": self.seed}

    def colours(self, count: int) -> dict:
        samples = {condition: self.samples(condition, count) for condition in COLOUR_CONDITIONS}
        return colour_report(samples, self.cases(count)) | self.conditions("heldout")

    def codec(self, count: int) -> dict:
        originals = np.stack([case.picture for case in self.cases(count)])
        return codec_report(through_codec(self.codec_alone, originals), originals)

    def pictures(self, count: int) -> dict:
        """How clean samples are, beside the drawn world and what the codec makes of it."""
        originals = np.stack([case.picture for case in self.cases(count)])
        return flatness_report({
            "renderer": originals,
            "codec": through_codec(self.codec_alone, originals),
            **{condition: self.samples(condition, count) for condition in ("all_tags", "reference")},
        })

    def speed(self) -> dict:
        seconds = seconds_per_picture(self.pipe, self.cases(1)[0], self.steps)
        return {"seconds": round(seconds, 3), "threads": torch.get_num_threads()}

    def everything(self, count: int, pairs: int) -> dict:
        return {
            "speed": self.speed(),
            "codec": self.codec(count),
            "heldout": self.heldout(pairs),
            "attributes": self.attributes(count),
            "pictures": self.pictures(count),
            "colours": self.colours(min(count, COLOUR_CASES)),
            "held_back": self.attributes((count + 1) // 2, "held_back"),
            "weights": self.weights,
        }

    def conditions(self, split: str) -> dict:
        """What a number depends on besides the weights."""
        used = Settings(steps=self.steps).resolved(self.pipe.config)
        return {"split": split, "seed": self.seed, "steps": used.steps, "guidance": used.guidance}
