"""The numbers of an evaluation as Markdown tables, and the way into the marked places of a page.

    <!-- table:attributes -->
    …
    <!-- /table -->
"""

import re

MARK = re.compile(r"(<!-- table:(?P<name>[\w-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)

COLUMNS = {
    "all_tags": "all tags",
    "scene_only": "scene tags only",
    "reference": "scene tags + picture",
    "wrong_reference": "scene tags + wrong picture",
}


def fill(page: str, tables: dict[str, str]) -> str:
    """The page with the marked places of `tables` filled. Raises ValueError for a mark that is nobody's."""
    def filled(mark: re.Match) -> str:
        if mark["name"] not in {*tables, *TABLES, *OTHERS}:
            known = ", ".join({*tables, *TABLES, *OTHERS})
            raise ValueError(f"the page marks a table {mark['name']!r}; there are {known}")
        if mark["name"] not in tables:
            return mark[0]
        return f"{mark[1]}\n{tables[mark['name']]}\n\n{mark[3]}"

    return MARK.sub(filled, page)


def all_tables(evaluation: dict) -> dict[str, str]:
    """Every table of a figures/evaluation.json, by the name of its mark."""
    return {name: table(evaluation) for name, table in TABLES.items()}


def attributes_table(report: dict) -> str:
    """Appearance, scene and every attribute, in percent, against the tagger's ceiling and chance."""
    shown = [condition for condition in COLUMNS if condition in report["appearance"]]
    head = ["read right, %", *(COLUMNS[c] for c in shown), "ceiling", "chance"]
    rows = []
    for part in ("appearance", "scene"):
        cells = [percent(report[part][c], report["intervals"][part][c]) for c in shown]
        edges = [percent(report[edge][part]) for edge in ("ceiling", "chance")]
        rows.append([f"**{part}**", *cells, *edges])
    for name, values in report["per_attribute"].items():
        spans = report["intervals"]["per_attribute"][name]
        edges = [percent(report[edge]["per_attribute"][name]) for edge in ("ceiling", "chance")]
        rows.append([name.replace("_", " "), *(percent(values[c], spans[c]) for c in shown), *edges])
    for name, found in report.get("held_back", {}).items():
        cells = [percent(found[c]["share"], found[c]["ci95"]) for c in shown]
        count = found[shown[0]]["n"]
        rows.append([f"{name.replace('_', ' ')}: {found['value']} (n = {count})", *cells, "", ""])
    return f"{markdown(head, rows)}\n\n{drawn_with(report)}"


def heldout_table(report: dict) -> str:
    head = ["loss", "right picture", "wrong picture", "none", "wrong − right", "n"]
    rows = []
    for name, part in {"all": report, **report["bands"]}.items():
        if part is None:
            continue
        gap = f"{part['gap']:+.4f} ({part['ci95'][0]:+.4f} to {part['ci95'][1]:+.4f})"
        losses = [f"{part[kind]:.4f}" for kind in ("right", "wrong", "none")]
        rows.append([f"σ {name}" if part is not report else name, *losses, gap, str(part["n"])])
    line = f"The same noise and σ in a row; prompts name the scene alone. Seed {report['seed']}."
    return f"{markdown(head, rows)}\n\n{line}"


def colours_table(report: dict) -> str:
    names = {
        "all_tags": "all tags", "reference": "right picture", "twin_reference": "same tags, other hue",
        "wrong_reference": "wrong picture",
    }
    shown = [condition for condition in names if condition in report["hair"]]
    head = ["ΔE to the true colour", *(names[c] for c in shown), "other hue − right"]
    rows = [
        [part, *(amount(report[part][c]) for c in shown), amount(report[part]["gap"])]
        for part in ("hair", "outfit")
    ]
    return f"{markdown(head, rows)}\n\n{drawn_with(report)}"


def pictures_table(codec: dict, pictures: dict, speed: dict) -> str:
    names = {"renderer": "the drawn world", "codec": "through the codec", "all_tags": "samples, all tags",
             "reference": "samples, with a picture"}
    shown = [name for name in names if name in pictures["flatness"]]
    head = ["share of pixels, %", *(names[n] for n in shown)]
    rows = [
        [title, *(percent(pictures[key][n]["mean"], pictures[key][n]["ci95"]) for n in shown)]
        for key, title in (("flatness", "flat: like their neighbours"), ("clipped", "clipped"))
    ]
    return (
        f"{markdown(head, rows)}\n\n{codec_line(codec)} "
        f"One picture, its reference read anew, takes {speed['seconds']:.2f} s; threads: {speed['threads']}."
    )


def codec_line(codec: dict) -> str:
    low, high = codec["ci95"]
    return f"The codec keeps {codec['psnr']:.1f} dB ({low:.1f} to {high:.1f}; n = {codec['n']})."


def drawn_with(report: dict) -> str:
    """The line under a table of samples."""
    kind = {"heldout": "held-out", "held_back": "held-back"}[report["split"]]
    return (
        f"n = {report['n']} {kind} characters, {report['steps']} steps, guidance {report['guidance']:g}, "
        f"seed {report['seed']}; in brackets 95 % intervals."
    )


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float | None, interval=None) -> str:
    """"83 (79–87)"; a dash where nothing was to be seen."""
    if share is None:
        return "–"
    span = "" if interval is None else f" ({100 * interval[0]:.0f}–{100 * interval[1]:.0f})"
    return f"{100 * share:.0f}{span}"


def amount(estimate: dict) -> str:
    """"4.1 (3.8–4.4)"."""
    low, high = estimate["ci95"]
    return f"{estimate['mean']:.1f} ({low:.1f} to {high:.1f})"


# Name of a mark → its table, from all that `snapref evaluate all` found.
TABLES = {
    "attributes": lambda found: attributes_table(found["attributes"]),
    "held-back": lambda found: attributes_table(found["held_back"]),
    "heldout": lambda found: heldout_table(found["heldout"]),
    "colours": lambda found: colours_table(found["colours"]),
    "pictures": lambda found: pictures_table(found["codec"], found["pictures"], found["speed"]),
}
OTHERS = ("controls",)  # marks that other commands fill
