"""What each control of the adapter does: identity and scene kept, colour, and time against the plain run.

Every row draws the same held-out cases from the same noise with one thing changed. Prompts name the scene alone;
what the character looks like comes from the reference.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from tqdm.auto import tqdm

from snapref.evaluation.attributes import APPEARANCE, ATTRIBUTES, marks, part_means
from snapref.evaluation.cases import SCENE_PROMPT, SIZE, Case
from snapref.evaluation.eight_bits import in_eight_bits
from snapref.evaluation.flatness import clipped
from snapref.evaluation.samples import starting_noise
from snapref.evaluation.stats import estimate, rounded
from snapref.lab.guidance_view import saturation as saturation_of
from snapref.sampling.pipeline import Pipeline
from snapref.training.pairs import STYLES
from snapref.world import prompt, render

TIMED, ROUNDS = 8, 3  # pictures of a batch that is timed, and how often

Pictures = Callable[[Case], list[np.ndarray]]


@dataclass(frozen=True)
class Control:
    """One row of the table."""

    group: str
    name: str
    settings: dict = field(default_factory=dict)  # fields of Settings
    pictures: Pictures | None = None  # what is read of a case; None: nothing
    weights: tuple[float, ...] | None = None  # one per picture
    eight_bits: str = ""  # "adapter", or "adapter and base": what is stored in fp8
    other_style: bool = False  # the prompt names another art style than the reference's, and it is the one scored


def own(case: Case) -> list[np.ndarray]:
    return [case.reference]


def framed(*framings: str) -> Pictures:
    """Pictures of the character as her reference shows her, in these framings."""
    return lambda case: [render(case.person, replace(case.shown_in, framing=f), SIZE) for f in framings]


DEFAULT = "reference", "default"
CONTROLS = (
    Control("plain", "no reference"),
    Control(*DEFAULT, {}, own),
    *(Control("strength", f"{s:g}", {"strength": s}, own) for s in (0.25, 0.5, 1.5, 2.0)),
    *(Control("fidelity", f"{f:g}", {"fidelity": f}, own) for f in (0.75, 0.5, 0.0)),
    *(Control("ref_guidance", f"{r:g}", {"ref_guidance": r}, own) for r in (1.0, 2.5, 4.5, 6.0)),
    *(Control("ref_guidance with APG", f"{r:g}", {"ref_guidance": r, "apg_eta": 0.0}, own)
      for r in (1.0, 2.5, 4.5, 6.0)),
    *(Control("ref_guidance with rescale 0.7", f"{r:g}", {"ref_guidance": r, "cfg_rescale": 0.7}, own)
      for r in (1.0, 2.5, 4.5, 6.0)),
    Control("guidance", "4.5", {"guidance": 4.5}, own),
    Control("guidance", "4.5, APG eta 0", {"guidance": 4.5, "apg_eta": 0.0}, own),
    Control("window", "first half of the steps", {"ref_end": 0.5}, own),
    Control("window", "second half of the steps", {"ref_start": 0.5}, own),
    Control("mode, another style named", "cs", {"mode": "cs"}, own, other_style=True),
    Control("mode, another style named", "char", {"mode": "char"}, own, other_style=True),
    Control("pictures", "upper body", {}, framed("upper body")),
    Control("pictures", "full body", {}, framed("full body")),
    Control("pictures", "upper + full body", {}, framed("upper body", "full body")),
    Control("pictures", "upper + full body, weights ½", {}, framed("upper body", "full body"), (0.5, 0.5)),
    Control("pictures", "portrait + upper + full body", {}, framed("portrait", "upper body", "full body")),
    Control("pictures", "upper + full body stitched", {"layout": "stitch", "ref_megapixels": 0.025},
            framed("upper body", "full body")),
    Control("cache", "fp8", {"cache_form": "fp8"}, own),
    Control("cache", "half the tokens", {"cache_form": "thin:0.5"}, own),
    Control("cache", "a third of the tokens", {"cache_form": "thin:0.333"}, own),
    Control("cache", "a quarter of the tokens", {"cache_form": "thin:0.25"}, own),
    Control("file", "fp8 adapter", {}, own, eight_bits="adapter"),
    Control("file", "fp8 adapter on an fp8 base", {}, own, eight_bits="adapter and base"),
)


def asked(case: Case, control: Control, rng: np.random.Generator) -> tuple[str, Case]:
    """(prompt, the case to score against): with another style named, the sample is to have that one."""
    if not control.other_style:
        return case.prompt(SCENE_PROMPT), case
    style = str(rng.choice([artist for artist in STYLES if artist != case.person.artist]))
    person = replace(case.person, artist=style)
    return prompt(person, case.scene, appearance=False, style=True), replace(case, person=person)


def draw_control(
    pipe: Pipeline, cases: list[Case], control: Control, seed: int = 0, steps: int | None = None, batch: int = 16
) -> tuple[np.ndarray, list[Case]]:
    """(samples uint8 (n, h, w, 3), cases to score them against)."""
    noise = starting_noise(pipe, len(cases), seed)
    asks = [asked(case, control, np.random.default_rng((seed, i, 9))) for i, case in enumerate(cases)]
    pictures = []
    for start in range(0, len(cases), batch):
        part = slice(start, start + batch)
        references = [control.pictures(case) for case in cases[part]] if control.pictures else None
        if references and control.weights:
            references = [pipe.encode(some, weights=control.weights) for some in references]
        drawn = pipe([words for words, _ in asks[part]], references=references, noise=noise[part], size=SIZE,
                     steps=steps, quiet=True, **control.settings)  # fmt: skip
        pictures += [np.asarray(image) for image in drawn.images]
        pipe.free()  # the next row reads its pictures itself
    return np.stack(pictures), [case for _, case in asks]


def control_times(
    pipes: dict[str, Pipeline], cases: list[Case], controls, steps: int | None = None, rounds: int = ROUNDS,
    quiet: bool = False,
) -> dict[tuple[str, str], float | None]:
    """{(group, name): CPU time of a batch over a plain one's}, reading its references included; None for plain rows.

    pipes: by `Control.eight_bits`. Rows take turns, plain batches among them, and of each the quickest round counts.
    CPU time, for a clock also counts what else the machine does.
    """
    cases, spent, plain = cases[:TIMED], {}, []

    def seconds(control: Control) -> float:
        begun = time.process_time()
        draw_control(pipes[control.eight_bits], cases, control, steps=steps)
        return time.process_time() - begun

    for _ in tqdm(range(rounds), desc="times", unit="round", disable=quiet):
        for number, control in enumerate(control for control in controls if control.pictures):
            if number % 4 == 0:
                plain.append(seconds(Control("plain", "")))
            spent.setdefault((control.group, control.name), []).append(seconds(control))
    return {(one.group, one.name): rounded(min(spent[one.group, one.name]) / min(plain)) if one.pictures else None
            for one in controls}  # fmt: skip


def saturation(pictures: np.ndarray) -> np.ndarray:
    """(n,): mean CIELAB chroma of pictures uint8 (n, h, w, 3)."""
    return np.array([saturation_of(picture) for picture in pictures])


def control_report(
    pipe: Pipeline, tagger, cases: list[Case], controls=CONTROLS, seed: int = 0, steps: int | None = None,
    quiet: bool = False,
) -> dict:
    """One JSON object: {"n", "rows": [{group, name, identity, change, style, scene, saturation, clipped, time}]}.

    identity: share of the seen identity attributes, art style apart; change: of it, against the default row, case by
    case; saturation: chroma over the true picture's; time: over the plain run's, as `control_times` gives it.
    """
    true = saturation(np.stack([case.picture for case in cases]))
    artist = ATTRIBUTES.index("artist")
    pipes = {"": pipe}
    rows, default = [], None
    for control in tqdm(controls, desc="controls", unit="row", disable=quiet):
        if control.eight_bits not in pipes:
            pipes[control.eight_bits] = in_eight_bits(pipe, base=control.eight_bits.endswith("base"))
        pictures, scored = draw_control(pipes[control.eight_bits], cases, control, seed, steps)
        found = marks(tagger, pictures, scored)
        looks = np.delete(found, artist, axis=1)
        identity = np.nanmean(looks[:, : len(APPEARANCE) - 1], axis=1)
        default = identity if (control.group, control.name) == DEFAULT else default
        rows.append({
            "group": control.group,
            "name": control.name,
            "identity": estimate(identity),
            "change": None if default is None else estimate(identity - default),
            "style": estimate(found[:, artist]),
            "scene": estimate(part_means(found)["scene"]),
            "saturation": estimate(saturation(pictures) / true),
            "clipped": estimate(clipped(pictures)),
        })
    times = control_times(pipes, cases, controls, steps, quiet=quiet)
    rows = [row | {"time": times[row["group"], row["name"]]} for row in rows]
    return {"rows": rows, "n": len(cases), "seed": seed}
