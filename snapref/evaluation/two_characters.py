"""Two characters in one picture, each from her own reference: does each keep her colours, or do they mix?

The prompt says who stands where by the cut of hair and clothes alone ("left kimono"): nano never saw two figures
without a word about either, and draws one. Their colours come from the references.

For every character of a pair the colour of her hair and of her outfit, where the true picture shows it, is either
nearer to her own or to the other one's. Both at once, one reference unmasked for all, is what a mix-up looks like.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from snapref.evaluation.cases import LEAST_SEEN
from snapref.evaluation.samples import to_pixels
from snapref.evaluation.stats import estimate
from snapref.lab.guidance_view import saturation
from snapref.sampling.pipeline import Pipeline
from snapref.world import (
    SIZES,
    UNBIASED,
    Character,
    Scene,
    character,
    delta_e,
    prompt,
    render,
    render_pair,
    render_pair_regions,
    scene,
)

SIZE = SIZES["landscape"]
APART = 25.0  # ΔE by which two characters' colours must differ to tell a mix-up
PARTS = ("hair", "outfit")
NAMED = ("hair_style", "outfit")
CONDITIONS: dict[str, dict] = {  # further arguments of a run
    "without regions": {},
    "stitched": {"layout": "stitch"},
    "with regions": {"regions": ("left", "right")},
}


@dataclass(frozen=True)
class PairCase:
    left: Character
    right: Character
    scene: Scene
    shown_in: Scene

    @cached_property
    def picture(self) -> np.ndarray:
        return render_pair(self.left, self.right, self.scene, SIZE)

    @cached_property
    def regions(self) -> list[dict[str, np.ndarray]]:
        return render_pair_regions(self.left, self.right, self.scene, SIZE)

    @cached_property
    def references(self) -> list[np.ndarray]:
        return [render(person, self.shown_in) for person in (self.left, self.right)]

    def colour(self, picture: np.ndarray, side: int, part: str) -> np.ndarray | None:
        """Median colour of a part, (3,); None where the true picture hardly shows it."""
        region = self.regions[side][part]
        return np.median(picture[region], axis=0) if region.sum() >= LEAST_SEEN else None


def draw_pair_cases(count: int, seed: int = 0) -> list[PairCase]:
    """Pairs of held-out characters in one art style whose hair and outfit colours are far apart."""
    return [draw_pair_case(np.random.default_rng((seed, index, 6))) for index in range(count)]


def draw_pair_case(rng: np.random.Generator) -> PairCase:
    while True:
        left = character(rng, "heldout", UNBIASED)
        right = character(rng, "heldout", UNBIASED, artist=left.artist)
        where = scene(rng, framing=str(rng.choice(["full body", "upper body"])))
        shown = scene(rng, framing="upper body", pose="standing", expression="smile")
        case = PairCase(left, right, where, shown)
        colours = {part: [case.colour(case.picture, side, part) for side in (0, 1)] for part in PARTS}
        if all(a is not None and b is not None and delta_e(a, b) > APART for a, b in colours.values()):
            return case


def kept(picture: np.ndarray, case: PairCase) -> float:
    """Share of the four colours (two characters, hair and outfit) that are nearer to her own than to the other's."""
    right = []
    for part in PARTS:
        true = [case.colour(case.picture, side, part) for side in (0, 1)]
        for side in (0, 1):
            shown = case.colour(picture, side, part)
            right.append(delta_e(shown, true[side]) < delta_e(shown, true[1 - side]))
    return float(np.mean(right))


def two_report(pipe: Pipeline, count: int, seed: int = 0, steps: int | None = None) -> dict:
    """{"conditions": name → {"right", "mixed", "saturation": estimates}, "n"}; chance is one half.

    saturation: chroma over the true picture's.
    """
    cases, found = draw_pair_cases(count, seed), {}
    true = np.stack([case.picture for case in cases])

    def scores(pictures: np.ndarray) -> dict:
        shares = np.array([kept(picture, case) for picture, case in zip(pictures, cases, strict=True)])
        chroma = np.array([saturation(a) / saturation(b) for a, b in zip(pictures, true, strict=True)])
        return {"right": estimate(shares), "mixed": estimate(1 - shares), "saturation": estimate(chroma)}

    for name, how in CONDITIONS.items():
        drawn = []
        for index, case in enumerate(cases):
            words = prompt(case.left, case.right, case.scene, appearance=NAMED, style=True)
            result = pipe(words, case.references, size=SIZE, seed=seed + index, steps=steps, quiet=True, **how)
            drawn.append(np.asarray(result.image))
        found[name] = scores(np.stack(drawn))
    decoded = pipe.codec.decode(pipe.codec.encode(to_pixels(true)))
    through = (decoded * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return {"conditions": found | {"the true picture, through the codec": scores(through)}, "n": count}
