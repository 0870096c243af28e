"""The tag language of the drawn world: every word that nano can be told, by attribute."""

import difflib

# What a character is. `None` is the untagged value of an attribute that may be absent.
IDENTITY = {
    "hair_colour": (
        "black hair", "brown hair", "blonde hair", "red hair", "pink hair",
        "orange hair", "blue hair", "green hair", "purple hair", "white hair",
    ),
    "hair_style": (
        "short hair", "bob cut", "long hair", "twintails", "ponytail", "double bun", "spiky hair",
    ),
    "eye_colour": ("blue eyes", "green eyes", "brown eyes", "red eyes", "purple eyes", "yellow eyes"),
    "skin": ("pale skin", "fair skin", "tan skin", "dark skin"),
    "outfit": ("school uniform", "dress", "hoodie", "kimono", "swimsuit", "overalls", "armor"),
    "outfit_colour": (
        "red outfit", "blue outfit", "green outfit", "yellow outfit",
        "purple outfit", "pink outfit", "black outfit", "white outfit",
    ),
    "accessory": (None, "glasses", "hair bow", "witch hat", "cat ears", "headphones", "scarf"),
    "detail": (None, "freckles", "mole", "scar", "earrings"),
    "artist": ("@flatline", "@softglow", "@inkpress", "@pastelcut"),
}

# The ground that belongs to each background, and whether that place is outdoors.
GROUNDS = {
    "beach": "sand",
    "forest": "grass",
    "city": "pavement",
    "night": "rooftop",
    "sunset": "pier",
    "snow": "ice",
    "bedroom": "carpet",
    "classroom": "wooden floor",
}
OUTDOORS = ("beach", "forest", "city", "night", "sunset", "snow")

# What a picture shows the character doing, and where.
SCENE = {
    "background": tuple(GROUNDS),
    "ground": (None, *GROUNDS.values()),
    "pose": ("standing", "waving", "arms up", "hands on hips", "sitting", "jumping"),
    "expression": ("smile", "open mouth", "closed eyes", "angry"),
    "framing": ("full body", "upper body", "portrait"),
}

VOCABULARY: dict[str, tuple[str | None, ...]] = {**IDENTITY, **SCENE}
COUNT_TAGS = ("1girl", "2girls")
QUALITY_TAGS = ("masterpiece", "best quality", "score_7", "safe", "solo")  # never change the picture
# In front of a tag of one of two characters: "left red hair"; of each only these attributes are said.
SIDES = ("left", "right")
PAIR_APPEARANCE = ("hair_colour", "hair_style", "eye_colour", "outfit", "outfit_colour", "accessory")

# A few spellings that other Danbooru users type.
ALIASES = {
    "blond hair": "blonde hair", "twin tails": "twintails", "pony tail": "ponytail", "bun": "double bun",
    "double buns": "double bun", "serafuku": "school uniform", "sailor uniform": "school uniform",
    "one-piece swimsuit": "swimsuit", "armour": "armor", "smiling": "smile", "v arms": "arms up",
    "hat": "witch hat", "cowboy shot": "upper body", "dark-skinned female": "dark skin", "tan": "tan skin",
    "city street": "city", "night sky": "night", "woods": "forest", "standing up": "standing",
}
ATTRIBUTE_OF = {tag: attribute for attribute, values in VOCABULARY.items() for tag in values if tag}


def known_tags() -> tuple[str, ...]:
    """Every tag the world understands, the ones of a left or right character included."""
    plain = (*QUALITY_TAGS, *COUNT_TAGS, *ATTRIBUTE_OF)
    sided = (f"{side} {tag}" for side in SIDES for name in PAIR_APPEARANCE for tag in IDENTITY[name] if tag)
    return (*plain, *sided)


def nearest_tags(word: str, count: int = 3) -> tuple[str, ...]:
    """The known tags most like `word`, best first; possibly none."""
    word = word.strip().lower()
    if word in ALIASES:
        return (ALIASES[word],)
    last = word.split()[-1] if word else ""
    close = difflib.get_close_matches(word, known_tags(), n=count, cutoff=0.55)
    return tuple(close) or tuple(tag for tag in ATTRIBUTE_OF if last and last in tag.split())[:count]
