"""One frozen value that says how a picture is drawn. It is checked when made, and travels inside the PNG."""

import dataclasses
import difflib
import json
import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from snapref.config import ModelConfig
from snapref.reference.cache import CacheError
from snapref.reference.compact import read_form
from snapref.reference.stitch import COLOURS, DIRECTIONS
from snapref.sampling.fields import SettingsError, checked, choice, number, per_block, plain, several
from snapref.sampling.samplers import SAMPLERS
from snapref.sampling.schedule import SCHEDULES, TABLE_SIZE

VERSION = 1  # of the stored form; raised only when an old file would be read wrongly
PNG_KEY = "snapref"

# What a field left at None means when the model's config states no `default_<field>` of its own.
PLAIN = {"sampler": "euler", "schedule": "simple", "apg_eta": 1.0, "apg_momentum": 0.0, "apg_threshold": 0.0,
         "cfg_rescale": 0.0}


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
    weights: tuple[float, ...] | None = several(0, 10, "how strongly each picture is read, times strength")
    block_weights: tuple[float, ...] | str | None = several(
        0, 2, "how strongly each block reads, times strength; also as text: 0-3:0,4-:1"
    )
    mode: str | None = plain(None, "what to take from the reference: the name of a caption of the adapter")
    ref_caption: str | None = plain(None, "caption the reference is read with, instead of the mode's")
    ref_in_uncond: bool = plain(False, "whether the negative branch reads the reference too")
    fidelity: float = number(1.0, 0, 1, "the negative branch reads the reference with weight 1 - fidelity")
    ref_guidance: float | None = number(None, 0, 100, "scale of the reference in two-scale guidance")
    ref_start: float = number(0.0, 0, 1, "share of the steps after which the reference is read")
    ref_end: float = number(1.0, 0, 1, "share of the steps after which it is no longer read")
    ref_megapixels: float | None = number(
        None, 0, 16, "largest area of a picture, or of all when stitched, in million pixels", above=True
    )
    cache_form: str = plain("whole", "how it is kept: whole, fp8, thin:SHARE of its tokens, or fp8+thin:SHARE")
    layout: str = choice("separate", ("separate", "stitch"), "pictures read one by one, or on one canvas")
    stitch_direction: str = choice("right", DIRECTIONS, "on which side the next picture comes")
    stitch_match: bool = plain(True, "whether the next picture takes the height (width) of the canvas")
    stitch_spacing: int = number(0, 0, 1024, "pixels between stitched pictures, made even")
    stitch_colour: str = choice("white", tuple(COLOURS), "of the spacing")

    def __post_init__(self):
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if value is None and f.default is None:
                continue
            object.__setattr__(self, f.name, checked(f, value))  # frozen: the only way to write
        if self.ref_start >= self.ref_end:
            raise SettingsError(
                f"ref_start {self.ref_start} is not below ref_end {self.ref_end}; strength 0 reads nothing"
            )
        if self.ref_in_uncond and self.ref_guidance not in (None, 1.0):
            raise SettingsError(
                f"ref_in_uncond is ref_guidance 1 and contradicts ref_guidance {self.ref_guidance}; give one"
            )
        try:
            read_form(self.cache_form)
        except CacheError as error:
            raise SettingsError(str(error)) from None
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

        Raises SettingsError, with the nearest sides, for a size that the model cannot draw, and for weights
        of another number of blocks.
        """
        defaults = {
            name: getattr(model, f"default_{name}", PLAIN.get(name))
            for name, value in dataclasses.asdict(self).items()
            if value is None
        }
        if self.block_weights is not None:
            defaults["block_weights"] = per_block(self.block_weights, model.dit.blocks)
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
        if not isinstance(stored, dict):
            raise SettingsError(f"stored settings are a {type(stored).__name__}; give what `to_dict` returned")
        fields = dict(stored)
        version = fields.pop("version", VERSION)
        if not isinstance(version, int):
            raise SettingsError(f"settings have version {version!r}; it must be a whole number, up to {VERSION}")
        if version > VERSION:
            raise SettingsError(f"settings have version {version}, this snapref reads {VERSION}: upgrade it")
        _known(fields)
        return cls(**fields)

    @classmethod
    def from_png(cls, path: str | Path) -> "Settings":
        """The settings of a picture that `Result.save` wrote. Raises SettingsError if it carries none.

        Warns where regions, masks or levels, which are no settings, are needed to draw it again.
        """
        record = read_record(path)
        needed = [f"{name} {told(record[name])}" for name in ("regions", "ref_masks") if record.get(name)]
        needed += ["levels of its own"] if record.get("levels") else []
        if needed:
            warnings.warn(f"{path} was drawn with {' and '.join(needed)}; give them again", stacklevel=2)
        return cls.from_dict(record["settings"])


def with_changes(settings: Settings | None, changes: dict) -> Settings:
    """Settings (None: the defaults) with some fields changed. Raises SettingsError."""
    if settings is not None and not isinstance(settings, Settings):
        raise SettingsError(f"settings is a {type(settings).__name__}; give Settings, or its fields by their names")
    return (settings or Settings()).replace(**changes)


def read_record(path: str | Path) -> dict:
    """Returns what `Result.save` wrote into a PNG (`Result.record`). Raises SettingsError."""
    with Image.open(path) as picture:
        text = picture.info.get(PNG_KEY)
    if text is None:
        raise SettingsError(f"{path} carries no snapref settings; only pictures saved by snapref as PNG do")
    try:
        record = json.loads(text)
    except ValueError:
        record = None
    if not isinstance(record, dict) or "settings" not in record:
        raise SettingsError(f"{path} carries settings that are damaged; use the picture as it was saved")
    return record


def told(areas: list) -> str:
    """Regions or masks of a record in words: "none, 0,0,0.5,1 and a mask of 96x128 (1a2b3c4d…)"."""

    def one(area) -> str:
        if area is None:
            return "none"
        if isinstance(area, dict):
            return f"a mask of {area['size'][0]}x{area['size'][1]} ({area['mask'][:8]}…)"
        return ",".join(f"{share:g}" for share in area)

    return "; ".join(map(one, areas))


def _known(names) -> None:
    fields = [f.name for f in dataclasses.fields(Settings)]
    for name in names:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"settings are {', '.join(fields)}"
            raise SettingsError(f"{name} is not a setting; {hint}")
