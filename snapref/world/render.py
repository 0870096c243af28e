"""Pictures of the drawn world: one character, two, two frames, and where the colours are."""

from dataclasses import replace

import numpy as np

from .accessories import draw_behind, draw_in_front, draw_on_top
from .backgrounds import draw_background, glow_colour
from .characters import Character
from .figure import POSES, draw_earrings, draw_face
from .hair import draw_back_hair, draw_front_hair
from .outfits import draw_arms, draw_clothes
from .palette import Colours, colours_of
from .pen import Pen, ellipse, place
from .scenes import Scene, next_frame
from .styles import STYLES

# Figure units per 1/128 of the height, and the picture row (share) where her chin is.
FRAMINGS = {"full body": (1.0, None), "upper body": (1.24, 0.61), "portrait": (1.62, 0.77)}
PAIR_PLACES = (0.26, 0.74)  # where two stand, as shares of the width
SOLES = 0.955  # row where she stands in full body, as a share of the height


def render(character: Character, scene: Scene, size: tuple[int, int] = (128, 96),
           scale: float = 1) -> np.ndarray:
    """The character in the scene: uint8 (h, w, 3), `size` = (h, w) times `scale`.

    Raises ValueError for a size below 64 pixels.
    """
    return _render([(character, colours_of(character), 0.5)], scene, size, scale)


def render_pair(left: Character, right: Character, scene: Scene, size: tuple[int, int] = (96, 128),
                scale: float = 1) -> np.ndarray:
    """Both characters side by side, in the left one's art style."""
    people = [(person, colours_of(person), share) for person, share in zip((left, right), PAIR_PLACES, strict=True)]
    return _render(people, scene, size, scale)


def render_clip(character: Character, scene: Scene, seed=0, size: tuple[int, int] = (128, 96),
                scale: float = 1) -> tuple[np.ndarray, np.ndarray]:
    """Two frames of one moment: the scene, and the scene with a small motion drawn from `seed`."""
    return (render(character, scene, size, scale), render(character, next_frame(seed, scene), size, scale))


def render_regions(character: Character, scene: Scene,
                   size: tuple[int, int] = (128, 96)) -> dict[str, np.ndarray]:
    """Where each of her colours is seen undarkened: "hair", "outfit", "eyes", "skin" → bool (h, w).

    The picture is drawn in two versions of one colour; where they differ most, that colour is seen.
    """
    return _regions([character], (0.5,), scene, size)[0]


def render_pair_regions(left: Character, right: Character, scene: Scene,
                        size: tuple[int, int] = (96, 128)) -> list[dict[str, np.ndarray]]:
    """`render_regions` of both characters of a `render_pair` picture, left and right."""
    return _regions([left, right], PAIR_PLACES, scene, size)


def _regions(people: list[Character], shares, scene: Scene, size: tuple[int, int]) -> list[dict[str, np.ndarray]]:
    people = [replace(person, artist="@flatline", pattern="plain") for person in people]
    own, found = [colours_of(person) for person in people], []
    for i in range(len(people)):
        found.append({})
        for name in ("hair", "outfit", "eyes", "skin"):
            drawn = []
            for colour in ((0.35, 0.10, 30.0), (0.90, 0.10, 200.0)):
                shown = [replace(c, **{name: colour}) if j == i else c for j, c in enumerate(own)]
                drawn.append(_render(list(zip(people, shown, shares, strict=True)), scene, size, 1).astype(np.int16))
            change = np.abs(drawn[0] - drawn[1]).sum(axis=-1)
            found[i][name] = change > 0.8 * max(int(change.max()), 200)
    return found


def _render(people, scene: Scene, size: tuple[int, int], scale: float) -> np.ndarray:
    """`people` are (character, her colours, where she stands as a share of the width)."""
    height, width = size
    if min(height, width) < 64:
        raise ValueError(f"a picture of {height}×{width} pixels is too small; at least 64 each way")
    pen = Pen(size, STYLES[people[0][0].artist], scale)
    draw_background(pen, scene)
    zoom, chin = FRAMINGS[scene.framing]
    pixel = height / 128
    unit = min(pixel, width / len(people) / 62) * zoom * scene.zoom
    row = chin * height if chin else SOLES * height + (POSES[scene.pose].drop - 58) * unit
    places = [(share * width + scene.shift_x * pixel, row + scene.shift_y * pixel) for *_, share in people]
    pen.line_scale = unit
    for x, y in places:  # all light and shadow before any figure
        if pen.style.halo:
            pen.glow(x, y - 12 * unit, 74 * unit, glow_colour(scene), pen.style.halo)
        if chin is None:
            pen.move(place(x, SOLES * height, unit))
            _ground_shadow(pen, scene)
    for (x, y), (character, colours, _) in zip(places, people, strict=True):
        pen.move(place(x, y, unit))
        _draw_figure(pen, character, colours, scene)
    return pen.pixels()


def _ground_shadow(pen: Pen, scene: Scene) -> None:
    reach = {"sitting": 26.0, "jumping": 13.0}.get(scene.pose, 18.0)
    pen.patch(ellipse(0, -1.0, reach, 3.6), (0.30, 0.04, 285.0), alpha=0.30)


def _draw_figure(pen: Pen, character: Character, colours: Colours, scene: Scene) -> None:
    """From back to front."""
    draw_back_hair(pen, character.hair_style, colours.hair)
    draw_clothes(pen, scene, character.outfit, character.pattern, colours)
    draw_behind(pen, character.accessory, colours)
    draw_face(pen, scene, colours.skin, colours.eyes, character.detail)
    draw_front_hair(pen, character.hair_style, colours.hair)
    draw_in_front(pen, character.accessory)
    if character.detail == "earrings":
        draw_earrings(pen)
    draw_arms(pen, scene, character.outfit, colours, raised=True)
    draw_on_top(pen, character.accessory)
