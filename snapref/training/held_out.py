"""Whom no training may see: the drawn world's own law, whatever a catalog or a list of pictures says.

An attribute set is known by its tags, so neither other names of the attributes nor another order make it another one.
"""

from collections.abc import Iterable, Mapping, Sequence

from snapref.training.catalog import ARTIST, nano_catalog, place_of
from snapref.world import IDENTITY, parse

WORLD = nano_catalog()  # its split is that of `world.split_of`
EVERYBODY = tuple(name for name, values in IDENTITY.items() if None not in values)  # attributes that nobody lacks


def world_values(tags: Iterable[str | None]) -> dict[str, str]:
    """Attribute → tag of what tags say in the drawn world's language; of two tags of an attribute the first."""
    found = parse(", ".join(reversed([tag for tag in tags if isinstance(tag, str)])))
    return {name: found[name] for name in IDENTITY if name in found}


def world_set(tags: Iterable[str | None]) -> dict[str, str | None] | None:
    """The attribute set of the drawn world that tags contain; None where an attribute that nobody lacks is missing."""
    found = world_values(tags)
    return {name: found.get(name) for name in IDENTITY} if all(name in found for name in EVERYBODY) else None


def world_identity(tags: Iterable[str | None]) -> str:
    """sha256 (hex) of that attribute set, as a manifest of nano's has it; "" for none."""
    found = world_set(tags)
    return WORLD.identity_hash(found, found[ARTIST]) if found else ""


def world_split(tags: Iterable[str | None]) -> str | None:
    """ "heldout", "train" or "other" for an attribute set of the drawn world, None for anything else."""
    found = world_set(tags)
    return WORLD.split_of(found, found[ARTIST]) if found else None


def kept_back(values: Mapping[str, str | None]) -> list[str]:
    """Those of a character's tags by attribute, in the drawn world, that no adapter is trained on."""
    return [tag for name, tag in WORLD.kept_back.items() if values.get(name) == tag]


def told(split: str) -> str:
    return {"heldout": "held out from all training", "train": "for training"}.get(split, "of neither kind")


def refuse_heldout(identities: Iterable[str], heldout: Sequence[float], named: Iterable[str], where) -> None:
    """Raises ValueError that lists attribute sets (hashes) which no training may see.

    heldout: [from, below) of `place_of`; named: hashes of single ones.
    """
    named, (low, high) = set(named), heldout
    found = sorted({h for h in identities if h in named or low <= place_of(h) < high})
    if found:
        shown = ", ".join(h[:12] for h in found[:5]) + (", …" if len(found) > 5 else "")
        raise ValueError(
            f"{where} holds {len(found)} held-out characters ({shown}), which no training may see; "
            "use it with --unseen, or prepare a set without them"
        )
