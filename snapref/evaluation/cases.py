"""The held-out cases: somebody in a scene, a picture of her from elsewhere, a picture of somebody else."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from snapref.world import (
    SCENE,
    SIZES,
    UNBIASED,
    Character,
    Scene,
    character,
    prompt,
    render,
    render_regions,
    scene,
    split_of,
    visible_attributes,
)

SIZE = SIZES["portrait"]  # (h, w) in pixels; the tagger reads this size alone
LEAST_SEEN = 30  # pixels of a colour, for the colour to count as seen
APPEARANCE_PROMPT, SCENE_PROMPT = "all_tags", "scene_only"


@dataclass(frozen=True)
class Case:
    """One question: can this person be drawn in this scene? Pictures are uint8 (h, w, 3), made when asked."""

    person: Character
    scene: Scene
    shown_in: Scene  # where her reference picture was taken
    stranger: Character
    stranger_in: Scene

    @cached_property
    def picture(self) -> np.ndarray:
        """The true answer."""
        return render(self.person, self.scene, SIZE)

    @cached_property
    def reference(self) -> np.ndarray:
        return render(self.person, self.shown_in, SIZE)

    @cached_property
    def wrong_reference(self) -> np.ndarray:
        return render(self.stranger, self.stranger_in, SIZE)

    @cached_property
    def twin_reference(self) -> np.ndarray:
        """Her reference with both untagged hues moved by half their range; every tag says the same of it."""
        moved = {name: turned(getattr(self.person, name)) for name in ("hair_hue", "outfit_hue")}
        return render(replace(self.person, **moved), self.shown_in, SIZE)

    @cached_property
    def regions(self) -> dict[str, np.ndarray]:
        """Where the true answer shows each of her colours: bool (h, w)."""
        return render_regions(self.person, self.scene, SIZE)

    @cached_property
    def visible(self) -> tuple[str, ...]:
        """Identity attributes that the true answer lets one see."""
        names = visible_attributes(self.person, self.scene)
        # In a portrait a scarf hides all of a school uniform that has a colour.
        hidden = {"outfit_colour"} if self.regions["outfit"].sum() < LEAST_SEEN else set()
        return tuple(name for name in names if name not in hidden)

    def prompt(self, words: str) -> str:
        """"all_tags": appearance, scene and style; "scene_only": nothing of her."""
        if words not in (APPEARANCE_PROMPT, SCENE_PROMPT):
            raise ValueError(f"prompt {words!r} is unknown; ask for {APPEARANCE_PROMPT} or {SCENE_PROMPT}")
        everything = words == APPEARANCE_PROMPT
        return prompt(self.person, self.scene, appearance=everything, style=everything)


def turned(hue: float) -> float:
    """A hue offset in [-1, 1] moved by exactly 1, to the side that stays inside."""
    return hue - 1 if hue >= 0 else hue + 1


def draw_cases(count: int, seed: int = 0, split: str = "heldout") -> list[Case]:
    """`count` cases of characters of `split`; the first of them are the same whatever the count.

    Characters come without the base's biases, each skin as often as the others: a base that draws only what
    was frequent in its data should show it here.
    """
    if count < 1:
        raise ValueError(f"n is {count}; at least 1 case")
    return [draw_case(np.random.default_rng((seed, index, 4)), split) for index in range(count)]


def draw_case(rng: np.random.Generator, split: str) -> Case:
    person = character(rng, split, UNBIASED)
    stranger = person
    while stranger.identity == person.identity:
        stranger = character(rng, split, UNBIASED)
    where = scene(rng)
    case = Case(person, where, neutral_scene(rng, where), stranger, neutral_scene(rng, where))
    assert split_of(case.person) == split_of(case.stranger) == split
    return case


def neutral_scene(rng: np.random.Generator, other: Scene) -> Scene:
    """Where one sees what somebody looks like: standing, eyes open, no close-up; not in `other`'s place."""
    places = [place for place in SCENE["background"] if place != other.background]
    framing = "full body" if rng.random() < 0.5 else "upper body"
    return scene(
        rng, background=str(rng.choice(places)), framing=framing, pose="standing", expression="smile"
    )
