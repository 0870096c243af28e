"""What a setting may hold: how a field states its range, and how a value is checked against it."""

import dataclasses
import numbers
import re
from dataclasses import field

MAX_SIDE = 4096  # pixels


class SettingsError(ValueError):
    """A setting that cannot be used, in one sentence: field, value, range."""


def number(default, low: float, high: float, text: str, *, above: bool = False):
    """A numeric field within [low, high]; `above` shuts out `low` itself."""
    return field(default=default, metadata={"low": low, "high": high, "above": above, "text": text})


def several(low: float, high: float, text: str):
    """One number within [low, high] for each of something; None: 1 for each."""
    return field(default=None, metadata={"low": low, "high": high, "several": True, "text": text})


def choice(default, options: tuple[str, ...], text: str):
    return field(default=default, metadata={"options": options, "text": text})


def plain(default, text: str):
    return field(default=default, metadata={"text": text})


def checked(f: dataclasses.Field, value):
    """Returns the value as a plain Python type of the field. Raises SettingsError."""
    if f.name == "size":
        return _checked_size(value)
    if "several" in f.metadata:
        return _checked_several(f, value)
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


def _checked_several(f: dataclasses.Field, value) -> tuple[float, ...] | str:
    """A list, tuple or array of numbers as a tuple; a text for those that may be one, its numbers checked."""
    if isinstance(value, str) and str in getattr(f.type, "__args__", ()):
        text = value.strip()
        if ":" in text:
            for *_, weight in _spans(text):
                _checked_number(f, weight)
            return text
        try:
            value = [float(part) for part in text.split(",")]
        except ValueError:
            _spans(text)  # says how to write it
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__len__") or getattr(value, "ndim", 1) != 1:
        raise SettingsError(f"{f.name} is {value!r}; it must be a list of numbers")
    values = value.tolist() if hasattr(value, "tolist") else [*value]
    if not values:
        raise SettingsError(f"{f.name} is an empty list; give at least one number, or None")
    return tuple(_checked_number(f, one, f"{f.name}[{i}]") for i, one in enumerate(values))


def _checked_number(f: dataclasses.Field, value, name: str | None = None) -> int | float:
    name = name or f.name
    whole = int in (f.type, *getattr(f.type, "__args__", ()))
    low, high, above = f.metadata["low"], f.metadata["high"], f.metadata.get("above", False)
    kind = numbers.Integral if whole else numbers.Real
    # A NaN is within nothing; a whole number may be too large to become a float.
    fits = isinstance(value, kind) and not isinstance(value, bool) and low <= value <= high
    if not fits or (above and value == low):
        what = "a whole number" if whole else "a number"
        span = f"{'above' if above else 'from'} {low:g} to {high if whole else format(high, 'g')}"
        raise SettingsError(f"{name} is {brief(value)}; it must be {what} {span}")
    return int(value) if whole else float(value)


def brief(value) -> str:
    """A value as a message shows it: of a long one both ends."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:28]}…{text[-28:]}"


def _checked_size(value) -> tuple[int, int]:
    try:
        height, width = value
        sides = int(height), int(width)
    except (TypeError, ValueError, OverflowError):
        raise SettingsError(f"size is {value!r}; it must be (height, width) in pixels") from None
    if sides != (height, width) or not all(1 <= side <= MAX_SIDE for side in sides):
        raise SettingsError(f"size is {brief(value)}; both sides must be whole, from 1 to {MAX_SIDE} pixels")
    return sides


def per_block(given: tuple[float, ...] | str, blocks: int) -> tuple[float, ...]:
    """One weight per block. given: as many numbers, or a text such as "0-3:0,4-:1.5"; what it leaves out is 1.

    Raises SettingsError for another number of blocks, and for a block that the model does not have.
    """
    if isinstance(given, str):
        weights = [1.0] * blocks
        for first, last, weight in _spans(given):
            last = blocks - 1 if last is None else last
            if not first <= last < blocks:
                raise SettingsError(
                    f"block_weights names blocks {first} to {last}; the model has 0 to {blocks - 1}"
                )
            weights[first : last + 1] = [weight] * (last + 1 - first)
        return tuple(weights)
    if len(given) != blocks:
        raise SettingsError(f"block_weights has {len(given)} entries for {blocks} blocks; give one per block")
    return given


def _spans(text: str) -> list[tuple[int, int | None, float]]:
    """[(first block, last block or None for the end, weight)] of a text like "0-3:0, 4-:1". """
    spans = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:(-)(\d*))?\s*:\s*(\S+)\s*", part)
        try:
            weight = float(found[4])
        except (TypeError, ValueError):
            raise SettingsError(
                f"block_weights is {text!r}; give one number per block, or FIRST-LAST:WEIGHT parts: 0-3:0,4-:1"
            ) from None
        first = int(found[1])
        last = first if not found[2] else int(found[3]) if found[3] else None
        spans.append((first, last, weight))
    return spans
