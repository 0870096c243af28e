"""Tags, prompts and the way back."""

import pytest

from snapref.world import (
    APPEARANCE,
    IDENTITY,
    PAIR_APPEARANCE,
    QUALITY_TAGS,
    SCENE,
    VOCABULARY,
    character,
    known_tags,
    nearest_tags,
    pair_tags,
    parse,
    prompt,
    sample,
    sample_pair,
    scene,
    tags,
    unknown_tags,
    visible_attributes,
)


def test_the_world_is_as_rich_as_promised():
    sizes = {name: len([v for v in values if v]) for name, values in VOCABULARY.items()}
    assert sizes["hair_colour"] == 10 and sizes["hair_style"] >= 6 and sizes["eye_colour"] == 6
    assert sizes["skin"] == 4 and sizes["outfit"] >= 6 and sizes["outfit_colour"] == 8
    assert sizes["accessory"] == 6 and sizes["detail"] == 4 and sizes["artist"] >= 3
    assert sizes["background"] >= 8 and sizes["pose"] >= 6
    assert sizes["framing"] == 3 and sizes["expression"] == 4


def test_no_tag_means_two_things():
    plain = [tag for values in VOCABULARY.values() for tag in values if tag]
    assert len(set(plain)) == len(plain) == len(set(plain) - set(QUALITY_TAGS))
    assert len(set(known_tags())) == len(known_tags())


@pytest.mark.parametrize("index", range(30))
def test_a_prompt_can_be_read_back(index):
    who, where = character((1, index), "any"), scene((2, index))
    found = parse(prompt(who, where, ground=True))
    assert found.pop("count") == "1girl" and found.pop("ground")
    expected = {name: getattr(who, name) for name in IDENTITY if getattr(who, name)}
    expected |= {name: getattr(where, name) for name in SCENE if name != "ground"}
    assert found == expected


def test_parts_of_a_prompt():
    who, where = character(5), scene(5, background="beach", pose="waving", framing="full body")
    words = tags(who, where, appearance=False, scene=("background", "pose", "framing"), style=False)
    assert ", ".join(words) == "1girl, beach, waving, full body"
    assert set(parse(prompt(who, where, scene=False, style=False))) <= {"count", *APPEARANCE}
    assert tags(who, where, quality=True)[:6] == [*QUALITY_TAGS[:4], "1girl", "solo"]
    assert "sand" in tags(who, where, ground=True)


def test_two_characters_are_told_apart():
    left, right, where = character(1), character(2), scene(3)
    found = parse(", ".join(pair_tags(left, right, where)))
    assert found["count"] == "2girls"
    for side, person in (("left", left), ("right", right)):
        for name in PAIR_APPEARANCE:
            assert found.get(f"{side}.{name}") == getattr(person, name)
    assert prompt(left, right, where) == ", ".join(pair_tags(left, right, where))


def test_every_caption_is_known():
    for index in range(300):
        assert unknown_tags(sample((4, index)).prompt) == []
        assert unknown_tags(sample_pair((4, index)).prompt) == []


def test_what_is_unknown_gets_a_neighbour():
    assert unknown_tags("1girl, (blue hair:1.2), Twin_Tails, beech, masterpiece") == ["twin tails", "beech"]
    assert nearest_tags("twin tails") == ("twintails",)
    assert nearest_tags("beech")[0] == "beach"
    assert "armor" in nearest_tags("armour plate") or nearest_tags("armour")[0] == "armor"
    assert any("hair" in tag for tag in nearest_tags("silver hair"))
    assert nearest_tags("qqqq") == () == nearest_tags("")
    assert parse("blond hair, serafuku") == {"hair_colour": "blonde hair", "outfit": "school uniform"}


def test_shut_eyes_hide_their_colour():
    who = character(9)
    assert "eye_colour" not in visible_attributes(who, scene(1, expression="closed eyes"))
    assert "eye_colour" in visible_attributes(who, scene(1, expression="smile"))
