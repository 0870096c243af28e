"""What made-up characters and scenes are put together from: the tags of each attribute, and which of them agree.

nano's catalog is the vocabulary of its drawn world. Anima's is `catalogs/anima.json`, Danbooru-style tags; a longer
one of the same form can be given in its place.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from snapref.training.catalog_form import check_form
from snapref.training.json_file import read_json
from snapref.world import HELD_BACK, IDENTITY, POSES_IN, SCENE, SIZES

FOLDER = Path(__file__).with_name("catalogs")
MODELS = ("nano", "anima")
ARTIST = "artist"  # the attribute that is a style, in a catalog whose attribute sets contain it


@dataclass(frozen=True)
class Catalog:
    """Tags by attribute; None among the values is an attribute that may be absent."""

    name: str
    prefix: tuple[str, ...]  # before the tags from which a picture is drawn
    count: tuple[str, ...]  # before the tags of a training prompt: how many are seen
    per_character: int  # pictures
    heldout: tuple[float, float]  # [from, below): places (`place_of`) of the attribute sets never trained on
    train: tuple[float, float]  # likewise of those to train on
    sizes: Mapping[str, float]  # "HEIGHTxWIDTH" in pixels → share
    appearance: Mapping[str, tuple[str | None, ...]]
    scene: Mapping[str, tuple[str | None, ...]]
    styles: tuple[str, ...]
    poses_in: Mapping[str, tuple[str, ...]]  # framing → the poses that it shows; all for others
    hides: Mapping[str, tuple[str, ...]]  # tag → attributes that cannot be seen beside it
    clashes: tuple[tuple[str, str], ...]  # pairs of tags that contradict each other
    identity: tuple[str, ...]  # attributes of the attribute set that is hashed, in this order
    kept_back: Mapping[str, str]  # attribute → value that no adapter is trained on

    def attribute_of(self) -> dict[str, str]:
        """Tag → attribute, "style" for a style."""
        known = {tag: name for part in (self.appearance, self.scene) for name, tags in part.items() for tag in tags}
        return {**{tag: name for tag, name in known.items() if tag}, **dict.fromkeys(self.styles, "style")}

    def identity_hash(self, values: Mapping[str, str | None], style: str) -> str:
        """sha256 (hex) of the attribute set of a character in a style."""
        whole = {**values, ARTIST: style}
        return hashlib.sha256("|".join(str(whole.get(name)) for name in self.identity).encode()).hexdigest()

    def split_of(self, values: Mapping[str, str | None], style: str) -> str:
        """ "heldout", "train" or "other", by the hash of the attribute set alone."""
        place = place_of(self.identity_hash(values, style))
        whole = {**values, ARTIST: style}
        if self.heldout[0] <= place < self.heldout[1]:
            return "heldout"
        back = any(whole.get(name) == value for name, value in self.kept_back.items())
        return "train" if self.train[0] <= place < self.train[1] and not back else "other"


def place_of(identity: str) -> float:
    """Where in [0, 1) a hash lies: its first 64 bits."""
    return int(identity[:16], 16) / 2.0**64


def nano_catalog() -> Catalog:
    """The drawn world's vocabulary. Its hash is that of `world.split_of`, so both know the same strangers."""
    shown = {name: tuple(tags) for name, tags in IDENTITY.items() if name != ARTIST}
    return Catalog(
        name="nano", prefix=("1girl",), count=("1girl",), per_character=6, heldout=(0.0, 0.15), train=(0.15, 0.50),
        sizes={f"{h}x{w}": share for (h, w), share in zip(SIZES.values(), (0.7, 0.15, 0.15), strict=True)},
        appearance=shown, scene={name: tuple(SCENE[name]) for name in ("background", "pose", "expression", "framing")},
        styles=tuple(IDENTITY[ARTIST]), poses_in={name: tuple(poses) for name, poses in POSES_IN.items()},
        hides={"closed eyes": ("eye_colour",)},
        clashes=tuple((framing, pose) for framing, poses in POSES_IN.items() for pose in SCENE["pose"]
                      if pose not in poses),
        identity=tuple(IDENTITY), kept_back=dict(HELD_BACK),
    )


def read_catalog(path: str | Path) -> Catalog:
    """A catalog of a JSON file. Raises ValueError that names the file and what is missing, torn or wrong in it."""
    again = f"see {FOLDER.name}/anima.json"
    return catalog_of(read_json(path, f"give a catalog in JSON, {again}"), f"the catalog {path}", again)


def catalog_of(stored, where, again: str) -> Catalog:
    """A catalog of what JSON gave. Raises ValueError as `check_form` does."""
    return Catalog(**frozen(check_form(stored, where, again, ARTIST)))


def open_catalog(model: str, path: str | Path | None = None) -> Catalog:
    """The catalog of a file, or the model's own. Raises ValueError for an unknown model."""
    if model not in MODELS:
        raise ValueError(f"there is no model {model!r}; take {' or '.join(MODELS)}")
    if path is not None:
        return read_catalog(path)
    return nano_catalog() if model == "nano" else read_catalog(FOLDER / f"{model}.json")


def frozen(value):
    """JSON lists as tuples, all the way down."""
    if isinstance(value, Mapping):
        return {name: frozen(inner) for name, inner in value.items()}
    return tuple(map(frozen, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
