"""What a catalog in JSON must look like, told field by field before anything is drawn from it."""

import math
import re
from collections.abc import Callable, Mapping

from snapref.sampling.fields import brief
from snapref.training.json_file import checked_object

LEADS = ("framing", "pose")  # a scene is drawn by these first


def a_text(value) -> bool:
    return isinstance(value, str) and bool(value)


def a_share(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -math.inf < value < math.inf


def texts(value) -> bool:
    return isinstance(value, list) and all(map(a_text, value))


def some_texts(value) -> bool:
    return texts(value) and bool(value)


def some_values(value) -> bool:
    """Tags of an attribute, of which null is its absence."""
    return isinstance(value, list) and bool(value) and all(one is None or a_text(one) for one in value)


def a_span(value) -> bool:
    return (isinstance(value, list) and len(value) == 2 and all(map(a_share, value))
            and 0 <= value[0] < value[1] <= 1)


def sizes(value) -> bool:
    return (isinstance(value, Mapping) and bool(value) and all(a_share(share) and share > 0 for share in value.values())
            and all(re.fullmatch(r"[1-9]\d*x[1-9]\d*", name) for name in value))


def by_name(test: Callable) -> Callable:
    return lambda value: isinstance(value, Mapping) and all(map(test, value.values()))


def pairs(value) -> bool:
    return isinstance(value, list) and all(texts(one) and len(one) == 2 for one in value)


FORM: dict[str, tuple[Callable, str]] = {
    "name": (a_text, "a text"),
    "prefix": (texts, "a list of tags"),
    "count": (texts, "a list of tags"),
    "per_character": (lambda value: type(value) is int and value >= 2, "a whole number of at least 2"),
    "heldout": (a_span, "[from, below] with 0 <= from < below <= 1"),
    "train": (a_span, "[from, below] with 0 <= from < below <= 1"),
    "sizes": (sizes, 'at least one "HEIGHTxWIDTH" with a share above 0'),
    "appearance": (by_name(some_values), "attributes with at least one tag each"),
    "scene": (by_name(some_values), "attributes with at least one tag each"),
    "styles": (some_texts, "a list of at least one tag"),
    "poses_in": (by_name(some_texts), "framings with at least one pose each"),
    "hides": (by_name(texts), "tags with the attributes that they hide"),
    "clashes": (pairs, "a list of pairs of tags"),
    "identity": (some_texts, "a list of at least one attribute"),
    "kept_back": (by_name(a_text), "attributes with one tag each"),
}


def check_form(stored, where, again: str, artist: str) -> dict:
    """A catalog as JSON gives it, with `kept_back` filled in. artist: what `identity` calls the style.

    Raises ValueError that names the field, its value and what it must be.
    """
    needed = {name: object for name in FORM if name != "kept_back"}
    stored = checked_object(stored, needed, where, again, {"kept_back": object})
    stored = {"kept_back": {}, **stored}
    for name, (fits, words) in FORM.items():
        if not fits(stored[name]):
            raise ValueError(f"{where} has {name} {brief(stored[name])}; it must be {words}; {again}")
    if lost := [name for name in LEADS if name not in stored["scene"]]:
        raise ValueError(f"{where} lacks {' and '.join(lost)} in scene; {again}")
    known = {*stored["appearance"], artist}
    for part in ("identity", "kept_back"):
        if unknown := [name for name in stored[part] if name not in known]:
            raise ValueError(f"{where} names in {part} {', '.join(unknown)}, no attribute of appearance; {again}")
    (low, high), (begin, end) = stored["heldout"], stored["train"]
    if max(low, begin) < min(high, end):
        raise ValueError(
            f"{where} holds out [{low}, {high}) and trains on [{begin}, {end}); the two must not overlap: a held-out "
            "attribute set is never trained on"
        )
    return stored
