"""What is typed on a command line, as the values that it stands for."""

import json


def height_width(text: str, name: str = "size", step: int = 1) -> tuple[int, int]:
    """Returns (height, width) of "WIDTHxHEIGHT", multiples of `step`. Raises ValueError."""
    width, _, height = text.lower().partition("x")
    if not all(side.isdigit() and int(side) and int(side) % step == 0 for side in (width, height)):
        which = f"multiples of {step}, such as 832x1216" if step > 1 else "such as 96x128"
        raise ValueError(f"{name} is {text!r}; give WIDTHxHEIGHT in pixels, {which}")
    return int(height), int(width)


def fields(texts: list[str]) -> dict:
    """Returns {field: value} of "strength=0.5"; Settings says which fields there are, and what they may hold."""
    found = {}
    for text in texts:
        name, is_given, value = text.partition("=")
        if not is_given:
            raise ValueError(f"set is {text!r}; give FIELD=VALUE, such as strength=0.5")
        try:
            found[name] = height_width(value) if name == "size" else json.loads(value)
        except json.JSONDecodeError:  # a word, as stitch
            found[name] = value
    return found


def modes(texts: list[str]) -> dict[str, str]:
    """Returns {mode: caption} of "cs=character and style reference"."""
    pairs = {mode.strip(): text.strip() for mode, _, text in (each.partition("=") for each in texts)}
    if wrong := [mode for mode, text in pairs.items() if not mode or not text]:
        raise ValueError(f"caption {wrong[0]!r} has no text; give MODE=TEXT, such as cs=character and style reference")
    return pairs


def numbers(text: str, count: int, name: str) -> tuple[float, ...]:
    """Returns the numbers of "0,512,0"."""
    try:
        values = tuple(map(float, text.split(",")))
    except ValueError:
        values = ()
    if len(values) != count:
        raise ValueError(f"{name} is {text!r}; give {count} numbers with commas between")
    return values
