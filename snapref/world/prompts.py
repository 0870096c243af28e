"""Tags of a character in a scene, the prompt they make, and the way back."""

from .characters import Character
from .scenes import Scene
from .vocabulary import (
    ALIASES,
    ATTRIBUTE_OF,
    COUNT_TAGS,
    GROUNDS,
    IDENTITY,
    PAIR_APPEARANCE,
    QUALITY_TAGS,
    SIDES,
    known_tags,
)

APPEARANCE = tuple(name for name in IDENTITY if name != "artist")
SCENE_ORDER = ("background", "ground", "pose", "expression", "framing")


def tags(person: Character, where: Scene | None = None, *, appearance: bool | tuple[str, ...] = True,
         scene: bool | tuple[str, ...] = True, style: bool = True, ground: bool = False,
         quality: bool = False) -> list[str]:
    """The tags in their usual order; `appearance` and `scene` may name the attributes to keep.

    The ground is named only with `ground`, and never where the floor is drawn white.
    """
    wanted = APPEARANCE if appearance is True else appearance or ()
    words = [*QUALITY_TAGS[:4]] if quality else []
    words.append("1girl")
    if quality:
        words.append("solo")
    words += [getattr(person, name) for name in APPEARANCE if name in wanted]
    words += scene_tags(where, scene, ground)
    if style:
        words.append(person.artist)
    return [word for word in words if word]


def pair_tags(left: Character, right: Character, where: Scene | None = None, *,
              appearance: bool | tuple[str, ...] = True, scene: bool | tuple[str, ...] = True,
              style: bool = True, ground: bool = False) -> list[str]:
    """Tags of a two-character picture: "2girls, left red hair, …, right blue hair, …, beach"."""
    wanted = PAIR_APPEARANCE if appearance is True else appearance or ()
    words = ["2girls"]
    for side, person in zip(SIDES, (left, right), strict=True):
        values = (getattr(person, name) for name in PAIR_APPEARANCE if name in wanted)
        words += [f"{side} {value}" for value in values if value]
    words += scene_tags(where, scene, ground)
    return words + [left.artist] if style else words


def scene_tags(where: Scene | None, wanted: bool | tuple[str, ...] = True, ground: bool = False) -> list[str]:
    """Background, ground, pose, expression and framing of a scene; nothing for None."""
    if where is None or not wanted:
        return []
    keep = SCENE_ORDER if wanted is True else wanted
    values = {name: getattr(where, name) for name in SCENE_ORDER if name != "ground"}
    values["ground"] = GROUNDS[where.background] if ground and not where.white_floor else None
    return [values[name] for name in SCENE_ORDER if name in keep and values[name]]


def prompt(*args, **options) -> str:
    """`tags` (or `pair_tags` for two characters) joined by commas."""
    two = len(args) > 1 and isinstance(args[1], Character)
    return ", ".join((pair_tags if two else tags)(*args, **options))


def split_prompt(text: str) -> list[str]:
    """The comma-separated tags of a prompt: lower case, weight syntax and spare spaces removed."""
    words = []
    for part in text.lower().replace("_", " ").replace("score 7", "score_7").split(","):
        word = " ".join(part.translate(str.maketrans("", "", "()[]")).split(":")[0].split())
        if word:
            words.append(word)
    return words


def parse(text: str) -> dict[str, str]:
    """Attribute to tag; a tag of one of two characters is under "left.hair_colour" and so on."""
    found = {}
    for word in split_prompt(text):
        word = ALIASES.get(word, word)
        side, _, rest = word.partition(" ")
        if side in SIDES and rest in ATTRIBUTE_OF:
            found[f"{side}.{ATTRIBUTE_OF[rest]}"] = rest
        elif word in ATTRIBUTE_OF:
            found[ATTRIBUTE_OF[word]] = word
        elif word in COUNT_TAGS:
            found["count"] = word
    return found


def unknown_tags(text: str) -> list[str]:
    """The words of a prompt that nano never learnt (see `nearest_tags` for what to say instead)."""
    known = set(known_tags())
    return [word for word in split_prompt(text) if word not in known]


def visible_attributes(person: Character, where: Scene) -> tuple[str, ...]:
    """Identity attributes that this picture lets one see."""
    hidden = set()
    if where.expression == "closed eyes" or where.blink:
        hidden.add("eye_colour")
    return tuple(name for name in IDENTITY if name not in hidden)
