"""Which pictures of a set make a pair, and what the prompt of a pair says: one rule for both scales.

A pair is ordered: a reference and a target of one character. The prompt leaves out what the reference supplies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from snapref.training.manifest import escaped
from snapref.training.pairs import CHAR, SILENT
from snapref.training.sources import ALONE_SHARE, EMPTY_SHARE

KEPT = 0.4  # of the appearance tags of a prompt that is not silent, at least one
STYLE_NAMED = 0.3  # of prompts whose pair shares the style; where it does not, the style is always named
MODES = ("cs", "char")


@dataclass(frozen=True)
class Record:
    """What a pair has to know of a picture."""

    file: str  # relative to its set's folder
    character: str
    identity: str  # sha256 of its attribute set
    style: str
    appearance: tuple[str, ...]  # tags of who is seen
    scene: tuple[str, ...]  # all others
    hidden: int = 0  # attributes of the character that this picture does not show
    size: tuple[int, int] = (0, 0)  # (h, w) in pixels, for records that know it
    world: str = ""  # sha256 of its attribute set in the drawn world's language; "" where its tags contain none


@dataclass(frozen=True)
class PairOf:
    """A pair by the numbers of its pictures."""

    target: int
    reference: int
    prompt: str
    mode: str
    reads: bool  # False: trained without the reference


def training_prompt(
    rng: np.random.Generator, record: Record, mode: str, count: Sequence[str], always_silent: bool = False
) -> str:
    """The prompt of a target. 70 % name no appearance and no outfit, the others some of it; "char" names the style."""
    silent, choice, style = rng.random(), rng.random(len(record.appearance)), rng.random()
    named: list[str] = []
    if silent >= SILENT and not always_silent and record.appearance:
        named = [tag for tag, drawn in zip(record.appearance, choice, strict=True) if drawn < KEPT]
        named = named or [record.appearance[int(choice.argmin())]]
    shown = mode == "char" or (style < STYLE_NAMED and not always_silent)
    words = [*count, *named, *record.scene, *([record.style] if shown and record.style else [])]
    return ", ".join(map(escaped, words))


def make_pairs(
    records: Sequence[Record], count: Sequence[str], each: int, seed: int, heldout: bool = False
) -> list[PairOf]:
    """Up to `each` pairs for every picture as a target, sorted by character; the same for the same seed.

    "cs" pairs share the style, "char" pairs do not. A picture that shows more of its character is the likelier
    reference. heldout: pairs to watch a training by: all read, all silent, no empty prompt.
    """
    groups: dict[str, list[int]] = {}
    for number, record in enumerate(records):
        groups.setdefault(record.character, []).append(number)
    pairs = []
    for numbers in groups.values():
        for target in numbers:
            rng = np.random.default_rng((seed, target, 41))
            own = records[target].style
            left = {
                "cs": [n for n in numbers if n != target and records[n].style == own],
                "char": [n for n in numbers if records[n].style != own],
            }
            for _ in range(each):
                wish = "char" if rng.random() < CHAR else "cs"
                mode = wish if left[wish] else MODES[1 - MODES.index(wish)]
                if not left[mode]:
                    break
                weights = np.array([1 / (1 + records[n].hidden) ** 2 for n in left[mode]])
                reference = left[mode].pop(int(rng.choice(len(weights), p=weights / weights.sum())))
                prompt = training_prompt(rng, records[target], mode, count, heldout)
                empty, alone = rng.random(2)
                if empty < EMPTY_SHARE and not heldout:
                    prompt = ""
                pairs.append(PairOf(target, reference, prompt, mode, heldout or alone >= ALONE_SHARE))
    return pairs
