"""JSON files that somebody may lose, cut or change: read whole, or refused in one sentence."""

import json
from collections.abc import Mapping
from pathlib import Path

from snapref.sampling.fields import brief

WORDS = {dict: "a JSON object", list: "a list", str: "a text", int: "a whole number"}


def read_json(path: str | Path, again: str) -> dict:
    """The object that a file holds. again: what to do, the end of every refusal.

    Raises ValueError for a file that is missing, torn, or holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}; {again}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON, and of bytes that are no text
        raise ValueError(f"{path} ({path.stat().st_size:,} bytes) is torn or no JSON ({error}); {again}") from None
    return checked_object(found, None, path, again)


def checked_object(
    found, kinds: Mapping[str, type] | None, where, again: str, optional: Mapping[str, type] | None = None
) -> dict:
    """`found`, a JSON object with these keys and kinds of values (`object`: any); None: with any keys.

    Raises ValueError that says where, which key, and what to do.
    """
    if not isinstance(found, dict):
        raise ValueError(f"{where} is {brief(found)}, no JSON object; {again}")
    if kinds is None:
        return found
    known = {**kinds, **(optional or {})}
    lost, unknown = [name for name in kinds if name not in found], [name for name in found if name not in known]
    wrong = [f"lacks {', '.join(lost)}"] if lost else []
    wrong += [f"has the unknown {', '.join(map(str, unknown))}"] if unknown else []
    wrong += [f"has {name} {brief(found[name])}, not {WORDS[kind]}" for name, kind in known.items()
              if name in found and not _is(found[name], kind)]
    if wrong:
        raise ValueError(f"{where} {' and '.join(wrong)}; {again}")
    return found


def write_json(path: Path, value) -> None:
    """Aside, then renamed, with the folders above it: a file that is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}")
    aside.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    aside.replace(path)


def _is(value, kind: type) -> bool:
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))
