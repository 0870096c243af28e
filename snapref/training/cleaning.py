"""Contradictions out of a picture's tags: what nobody can see, and what cannot both be true."""

from collections.abc import Mapping

from snapref.training.catalog import Catalog


def clean(tags: Mapping[str, str | None], catalog: Catalog) -> dict[str, str]:
    """Tags by attribute without contradictions, in their order.

    Of two that clash the earlier stays, so a character's tags win over those of a scene put after them. What
    another tag hides goes (eye colour beside closed eyes), and so does an absent attribute. Applied to its own
    result it changes nothing.
    """
    kept: dict[str, str] = {}
    enemies = _enemies(catalog)
    for attribute, tag in tags.items():
        if tag and not enemies.get(tag, set()) & set(kept.values()):
            kept[attribute] = tag
    hidden = {name for tag in kept.values() for name in catalog.hides.get(tag, ())}
    return {attribute: tag for attribute, tag in kept.items() if attribute not in hidden}


def clean_list(tags: list[str], catalog: Catalog) -> list[str]:
    """The same for the tags of a picture somebody else tagged: one of each attribute stays, unknown ones all do."""
    attributes = catalog.attribute_of()
    named: dict[str, str] = {}
    for number, tag in enumerate(tags):
        named.setdefault(attributes.get(tag, f"other {number if tag not in tags[:number] else tags.index(tag)}"), tag)
    return list(clean(named, catalog).values())


def _enemies(catalog: Catalog) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one, other in catalog.clashes:
        found.setdefault(one, set()).add(other)
        found.setdefault(other, set()).add(one)
    return found
