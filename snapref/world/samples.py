"""Reference pictures for people who have none: a dozen strangers to every model we train.

`python -m snapref.world.samples [folder]` writes data_samples/ anew.
"""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from .characters import HELD_BACK, UNBIASED, Character, character, pick
from .prompts import prompt
from .render import render
from .scenes import Scene
from .vocabulary import IDENTITY

COUNT = 12
PLACES = ("bedroom", "city", "classroom", "forest")
SCENE_PROMPTS = (
    "1girl, beach, waving, full body",
    "1girl, snow, jumping, open mouth, full body",
    "1girl, night, hands on hips, angry, upper body",
    "1girl, forest, sitting, closed eyes, full body",
    "1girl, city, arms up, open mouth, upper body",
    "1girl, sunset, standing, smile, portrait",
    "1girl, classroom, waving, open mouth, upper body",
    "1girl, beach, sand, arms up, smile, full body",
)
README = """# Reference pictures

{count} characters of the drawn world, {width} × {height} pixels, drawn by `snapref.world` alone.
They are held out: no model in this repository was trained on any of these attribute sets.
`prompts.txt` names each picture's tags, then scenes to put its character in.

```
snapref generate --reference data_samples/{first} --prompt "{scene}" --out out.png
```

Licence: CC0 1.0. The pictures are ours, and anyone may use them for anything.
Written by `python -m snapref.world.samples`.

| file | sha256 |
|---|---|
{rows}
"""


@dataclass(frozen=True)
class Reference:
    """One shipped picture: who, where, and under which file name."""

    person: Character
    scene: Scene
    name: str

    def picture(self, scale: float = 1) -> np.ndarray:
        return render(self.person, self.scene, scale=scale)


def references(count: int = COUNT) -> list[Reference]:
    """The shipped held-out characters, each hair style, outfit and art style of the adapter's in turn."""
    turns = {name: [v for v in IDENTITY[name] if v != HELD_BACK[name]] for name in HELD_BACK}
    turns["outfit"].remove("swimsuit")  # it would be in place on one of the backgrounds only
    turns["hair_colour"] = IDENTITY["hair_colour"]
    turns["skin"] = ("fair skin", "pale skin", "tan skin", "fair skin", "dark skin")
    found = []
    for i in range(count):
        rng = np.random.default_rng((2026, i))
        # Steps that share no factor with the lists' lengths, so that the attributes do not go in lockstep.
        fixed = {name: values[(i * step + i // len(values)) % len(values)] for (name, values), step
                 in zip(turns.items(), (1, 2, 1, 7, 1), strict=True)}
        person = character(rng, "heldout", UNBIASED, **fixed)
        where = Scene(background=PLACES[i % len(PLACES)], framing=pick(rng, ("full body", "upper body")))
        look = f"{person.hair_colour.split()[0]}_{person.hair_style}_{person.outfit}".replace(" ", "_")
        found.append(Reference(person, where, f"{i + 1:02}_{look}.png"))
    return found


def write_samples(folder: str | Path) -> list[Path]:
    """Write the pictures, prompts.txt and README.md; the paths of the pictures."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("[0-9][0-9]_*.png"):
        old.unlink()
    shipped, rows, lines = references(), [], ["# file: all tags of its picture"]
    for reference in shipped:
        path = folder / reference.name
        Image.fromarray(reference.picture()).save(path, optimize=True)
        rows.append(f"| {path.name} | `{hashlib.sha256(path.read_bytes()).hexdigest()}` |")
        lines.append(f"# {path.name}: {prompt(reference.person, reference.scene)}")
    lines += ["", "# scenes: one prompt per line", *SCENE_PROMPTS]
    (folder / "prompts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    height, width, _ = shipped[0].picture().shape
    text = README.format(count=len(shipped), width=width, height=height, first=shipped[0].name,
                         scene=SCENE_PROMPTS[0], rows="\n".join(rows))
    (folder / "README.md").write_text(text, encoding="utf-8")
    return [folder / reference.name for reference in shipped]


if __name__ == "__main__":
    for written in write_samples(sys.argv[1] if len(sys.argv) > 1 else "data_samples"):
        print(written)
