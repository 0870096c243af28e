"""What a character does, where, and how the camera sees it."""

from dataclasses import dataclass, replace

from .characters import as_rng, pick
from .vocabulary import OUTDOORS, SCENE

# Poses that a framing lets one see; legs decide the last two.
POSES_IN = {
    "full body": SCENE["pose"],
    "upper body": ("standing", "waving", "arms up", "hands on hips"),
    "portrait": ("standing", "waving", "arms up"),
}
FRAMING_SHARES = {"full body": 0.5, "upper body": 0.3, "portrait": 0.2}


@dataclass(frozen=True)
class Scene:
    """One picture's tags, then what no tag says: small continuous jitters in figure units."""

    background: str = "beach"
    pose: str = "standing"
    framing: str = "full body"
    expression: str = "smile"
    white_floor: bool = False  # the bias: the ground is missing
    shift_x: float = 0.0  # figure, in 1/128 of the picture's height
    shift_y: float = 0.0
    zoom: float = 1.0
    warmth: float = 0.0  # -1..1, turns the background's hues a little
    swing: float = 0.0  # radians added to the raised or hanging arms
    blink: bool = False  # eyes shut for this frame, whatever the expression

    @property
    def outdoors(self) -> bool:
        return self.background in OUTDOORS


def scene(seed_or_rng, **fixed) -> Scene:
    """A scene whose pose its framing shows; `fixed` sets fields."""
    rng = as_rng(seed_or_rng)
    framing = fixed.get("framing")
    if framing is None:
        framing = rng.choice(list(FRAMING_SHARES), p=list(FRAMING_SHARES.values())).item()
    values = {
        "background": pick(rng, SCENE["background"]),
        "framing": framing,
        "pose": pick(rng, POSES_IN[framing]),
        "expression": pick(rng, SCENE["expression"]),
    }
    x, y, zoom, warmth, swing = rng.uniform(-1, 1, 5).tolist()
    values |= {"shift_x": 2.0 * x, "shift_y": y, "zoom": 1 + 0.02 * zoom}
    values |= {"warmth": warmth, "swing": 0.06 * swing}
    return Scene(**{**values, **fixed})


def next_frame(seed_or_rng, first: Scene) -> Scene:
    """The same scene a moment later: the figure shifts, the arms swing, sometimes she blinks."""
    rng = as_rng(seed_or_rng)
    sign = 1.0 if rng.random() < 0.5 else -1.0
    x, y, swing = rng.uniform((-4.0, -3.0, 0.15), (4.0, 2.0, 0.35)).tolist()
    return replace(first, shift_x=first.shift_x + x, shift_y=first.shift_y + y,
                   swing=first.swing + sign * swing, blink=bool(rng.random() < 0.25))


def horizon(size: tuple[int, int]) -> float:
    """Where the ground begins, in pixels from the top."""
    return 0.70 * size[0]


