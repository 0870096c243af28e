"""What the controls do, as a table and as a figure."""

from snapref.evaluation.tables import markdown, percent


def control_table(report: dict) -> str:
    """The report in Markdown, a row a control."""
    head = ["control", "identity, %", "style, %", "scene, %", "saturation, % of true", "clipped, %", "time × plain"]
    lines = []
    for row in report["rows"]:
        spent = "1" if row["time"] is None else f"{row['time']:.2f}"
        cells = [span(row[name]) for name in ("identity", "style", "scene", "saturation", "clipped")]
        lines.append([f"{row['group']}: {row['name']}", *cells, spent])
    table = markdown(head, lines)
    if two := report.get("two_characters"):
        table += "\n\n" + two_table(two)
    table += "".join(
        f"\n\n{row['name'].capitalize()}: identity {points(row['change'])} against the default, case by case."
        for row in report["rows"]
        if row["group"] == "file" and row["change"]
    )
    return (
        f"{table}\n\nn = {report['n']} held-out characters, scene-only prompts, the same noise in every row; in "
        "brackets 95 % intervals. Time: CPU seconds of a batch of 8 with the reading of its references, over a plain "
        "batch's; the quickest of three rounds of each."
    )


def two_table(two: dict) -> str:
    """Two characters in one picture: what each half shows."""
    rows = [
        [name, *(span(found[part]) for part in ("right", "mixed", "saturation"))]
        for name, found in two["conditions"].items()
    ]
    head = ["two characters", "colour nearer to her own, %", "nearer to the other's, %", "saturation, % of true"]
    table = markdown(head, rows)
    return (
        f"{table}\n\nHair and outfit colour of both characters of {two['n']} pairs; the prompt names the cut of hair "
        "and clothes on each side, no colour. Stitched: both pictures are read as one."
    )


def points(change: dict) -> str:
    """A difference in points: "+0.3 points (-0.2 to +0.8)"."""
    low, high = (100 * end for end in change["ci95"])
    return f"{100 * change['mean']:+.1f} points ({low:+.1f} to {high:+.1f})"


def span(found: dict) -> str:
    """An estimate in percent: "83 (79–87)"."""
    return percent(found["mean"], found["ci95"])


def draw_controls(report: dict):
    """A figure of every row: identity and scene kept with their intervals, saturation beside them."""
    import matplotlib.pyplot as plt

    rows = report["rows"]
    figure, axes = plt.subplots(1, 3, figsize=(11, 0.27 * len(rows) + 1.2), sharey=True, layout="constrained")
    places = range(len(rows))
    columns = (
        (axes[0], (("identity", "identity", "#4c6ef5"), ("style", "art style", "#e8590c"))),
        (axes[1], (("scene", "scene", "#2b8a3e"),)),
        (axes[2], (("saturation", "saturation, of the true picture", "#9c36b5"), ("clipped", "clipped", "#868e96"))),
    )
    for axis, series in columns:
        for key, label, colour in series:
            middle = [100 * row[key]["mean"] for row in rows]
            low, high = ([100 * row[key]["ci95"][end] for row in rows] for end in (0, 1))
            axis.hlines(places, low, high, color=colour, alpha=0.45, linewidth=3)
            axis.plot(middle, places, "o", color=colour, markersize=4.5, label=label)
        axis.set_xlabel("%")
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
        axis.grid(axis="x", alpha=0.25)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    for before, after in zip(places, places[1:], strict=False):
        if rows[before]["group"] != rows[after]["group"]:
            for axis in axes:
                axis.axhline(before + 0.5, color="#dee2e6", linewidth=0.8)
    axes[0].set_yticks(places, [f"{row['group']}: {row['name']}" for row in rows])
    axes[0].invert_yaxis()
    return figure
