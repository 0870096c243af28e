"""One frozen value that says how a picture is drawn. It is checked when made, and travels inside the PNG."""

import dataclasses
import difflib
import json
import math
import numbers
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from snapref.config import ModelConfig
from snapref.sampling.samplers import SAMPLERS
from snapref.sampling.schedule import SCHEDULES, TABLE_SIZE

VERSION = 1  # of the stored form; raised only when an old file would be read wrongly
PNG_KEY = "snapref"
MAX_SIDE = 4096  # pixels

# What a field left at None means when the model's config states no `default_<field>` of its own.
PLAIN = {"sampler": "euler", "schedule": "simple", "apg_eta": 1.0, "apg_momentum": 0.0, "apg_threshold": 0.0,
         "cfg_rescale": 0.0}


class SettingsError(ValueError):
    """A setting that cannot be used, in one sentence: field, value, range."""


def number(default, low: float, high: float, text: str, *, above: bool = False):
    """A numeric field within [low, high]; `above` shuts out `low` itself."""
    return field(default=default, metadata={"low": low, "high": high, "above": above, "text": text})


def choice(default, options: tuple[str, ...], text: str):
    return field(default=default, metadata={"options": options, "text": text})


def plain(default, text: str):
    return field(default=default, metadata={"text": text})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything but the prompt and the pictures. None stands for the model's own default (`resolved`).

    Raises SettingsError, naming the field, its value and its range.
    """

    # The run
    steps: int | None = number(None, 1, TABLE_SIZE, "steps of the sampler")
    sampler: str | None = choice(None, SAMPLERS, "how a step is taken")
    schedule: str | None = choice(None, SCHEDULES, "which sigmas the steps visit")
    seed: int = number(0, 0, 2**63 - 2, "of the noise")
    size: tuple[int, int] | None = plain(None, "(height, width) in pixels")
    denoise: float = number(1.0, 0, 1, "share of noise to start from; below 1 needs an image", above=True)
    s_noise: float = number(1.0, 0, 2, "factor on the noise of stochastic samplers")
    noise_device: str = choice("cpu", ("cpu", "cuda"), "whose noise; cpu gives the same everywhere")
    # Guidance
    guidance: float | None = number(None, 0, 100, "classifier-free guidance scale; 1 turns it off")
    apg_eta: float | None = number(None, -10, 10, "APG: share kept of the parallel part")
    apg_momentum: float | None = number(None, -1, 1, "APG: share of the running difference")
    apg_threshold: float | None = number(None, 0, 1e6, "APG: largest norm of the difference; 0: none")
    cfg_rescale: float | None = number(None, 0, 1, "pull of the contrast back to the unguided one")
    # Reading the reference
    strength: float = number(1.0, 0, 2, "how strongly the reference is read; 0 is the base model")
    mode: str | None = plain(None, "what to take from the reference: the name of a caption of the adapter")
    ref_caption: str | None = plain(None, "caption the reference is read with, instead of the mode's")
    ref_in_uncond: bool = plain(False, "whether the negative branch reads the reference too")
    fidelity: float = number(1.0, 0, 1, "the negative branch reads the reference with weight 1 - fidelity")
    ref_guidance: float | None = number(None, 0, 100, "scale of the reference in two-scale guidance")
    ref_start: float = number(0.0, 0, 1, "share of the steps after which the reference is read")
    ref_end: float = number(1.0, 0, 1, "share of the steps after which it is no longer read")
    ref_megapixels: float | None = number(None, 0, 16, "largest area, in million pixels", above=True)

    def __post_init__(self):
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if value is None and f.default is None:
                continue
            object.__setattr__(self, f.name, _checked(f, value))  # frozen: the only way to write
        if self.ref_start >= self.ref_end:
            raise SettingsError(
                f"ref_start {self.ref_start} is not below ref_end {self.ref_end}; strength 0 reads nothing"
            )
        if self.ref_in_uncond and self.ref_guidance not in (None, 1.0):
            raise SettingsError(
                f"ref_in_uncond is ref_guidance 1 and contradicts ref_guidance {self.ref_guidance}; give one"
            )
        if self.steps is not None and self.steps / self.denoise > TABLE_SIZE:
            raise SettingsError(
                f"steps {self.steps} at denoise {self.denoise} asks for {self.steps / self.denoise:.0f}; "
                f"at most {TABLE_SIZE} steps differ"
            )

    def replace(self, **changes) -> "Settings":
        """Returns a copy with some fields changed. Raises SettingsError for a name that is no field."""
        _known(changes)
        return dataclasses.replace(self, **changes)

    def resolved(self, model: ModelConfig) -> "Settings":
        """Returns a copy where None has become the model's default, `model.default_<field>`.

        Raises SettingsError, with the nearest sides, for a size that the model cannot draw.
        """
        defaults = {
            name: getattr(model, f"default_{name}", PLAIN.get(name))
            for name, value in dataclasses.asdict(self).items()
            if value is None
        }
        settings, step = self.replace(**defaults), model.size_step
        for name, side in zip(("height", "width"), settings.size, strict=True):
            if side % step:
                near = f"{side - side % step} or {side - side % step + step}" if side > step else f"{step}"
                raise SettingsError(f"{name} is {side} px, no multiple of {step}; the nearest is {near}")
        return settings

    def to_dict(self) -> dict:
        """Returns plain values and the version of their form; `from_dict` reads it back."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, stored: dict) -> "Settings":
        """Fields that an older version did not know keep their defaults. Raises SettingsError."""
        fields = dict(stored)
        version = fields.pop("version", VERSION)
        if version > VERSION:
            raise SettingsError(f"settings have version {version}, this snapref reads {VERSION}: upgrade it")
        _known(fields)
        return cls(**fields)

    @classmethod
    def from_png(cls, path: str | Path) -> "Settings":
        """The settings of a picture that `Result.save` wrote. Raises SettingsError if it carries none."""
        return cls.from_dict(read_record(path)["settings"])


def read_record(path: str | Path) -> dict:
    """Returns what `Result.save` wrote into a PNG (`Result.record`). Raises SettingsError."""
    with Image.open(path) as picture:
        text = picture.info.get(PNG_KEY)
    if text is None:
        raise SettingsError(f"{path} carries no snapref settings; only pictures saved by snapref as PNG do")
    return json.loads(text)


def _known(names) -> None:
    fields = [f.name for f in dataclasses.fields(Settings)]
    for name in names:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"settings are {', '.join(fields)}"
            raise SettingsError(f"{name} is not a setting; {hint}")


def _checked(f: dataclasses.Field, value):
    """Returns the value as a plain Python type of the field. Raises SettingsError."""
    if f.name == "size":
        return _checked_size(value)
    if "options" in f.metadata:
        if value not in f.metadata["options"]:
            options = ", ".join(f.metadata["options"])
            raise SettingsError(f"{f.name} is {value!r}; it must be one of {options}")
        return value
    if "low" in f.metadata:
        return _checked_number(f, value)
    kind = bool if isinstance(f.default, bool) else str
    if not isinstance(value, kind):
        what = "true or false" if kind is bool else "a text"
        raise SettingsError(f"{f.name} is {value!r}; it must be {what}")
    return value


def _checked_number(f: dataclasses.Field, value) -> int | float:
    whole = int in (f.type, *getattr(f.type, "__args__", ()))
    low, high, above = f.metadata["low"], f.metadata["high"], f.metadata["above"]
    kind = numbers.Integral if whole else numbers.Real
    fits = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or not low <= value <= high or (above and value == low):
        what = "a whole number" if whole else "a number"
        span = f"{'above' if above else 'from'} {low:g} to {high if whole else format(high, 'g')}"
        raise SettingsError(f"{f.name} is {value!r}; it must be {what} {span}")
    return int(value) if whole else float(value)


def _checked_size(value) -> tuple[int, int]:
    try:
        height, width = value
        sides = int(height), int(width)
    except (TypeError, ValueError):
        raise SettingsError(f"size is {value!r}; it must be (height, width) in pixels") from None
    if sides != (height, width) or not all(1 <= side <= MAX_SIDE for side in sides):
        raise SettingsError(f"size is {value!r}; both sides must be whole, from 1 to {MAX_SIDE} pixels")
    return sides
