"""A training run to be watched: its loss and its held-out gap, redrawn in one output while the cell runs.

Nothing is kept here. Every picture is drawn from the run's own files, so a run that is gone on with shows its past.
"""

import csv
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from snapref.lab import plots
from snapref.lab.screen import Screen
from snapref.training.adapter_task import AdapterTask
from snapref.training.config import RunConfig
from snapref.training.loop import train
from snapref.training.stopping import Interrupted
from snapref.training.unseen import Unseen

READS = {"wrong": plots.RED, "none": plots.BLACK, "right": plots.GREEN}
NAMES = {"wrong": "another's picture", "none": "no picture", "right": "the right picture"}


@dataclass(frozen=True)
class Course:
    """What a run has written so far. losses: (step, training loss); gaps: rows of gaps.csv, step 0 the first."""

    losses: list[tuple[int, float]]
    gaps: list[dict[str, float]]

    @property
    def last(self) -> dict[str, float] | None:
        return self.gaps[-1] if self.gaps else None


def course(run: Path) -> Course:
    """Reads a run's folder; empty where nothing has been written yet."""
    losses = [(int(row["step"]), float(row["loss"])) for row in rows(run / "log.csv")]
    gaps = [{name: float(value) for name, value in row.items()} for row in rows(run / "gaps.csv")]
    return Course(losses, gaps)


def rows(path: Path) -> list[dict[str, str]]:
    """The whole rows of a CSV file that may be growing."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]


def curves(found: Course, steps: int) -> Figure:
    """Left the loss of every step, right the held-out losses with the gap between them. steps: of the whole axis."""
    figure = plots.figure(8.4, 3.3)
    left, right = figure.subplots(1, 2)
    draw_losses(left, found.losses)
    draw_gaps(right, found.gaps)
    for axes in (left, right):
        axes.set(xlabel="step", xlim=(-0.03 * steps, 1.03 * steps))
        axes.spines[["top", "right"]].set_visible(False)
    left.set(ylabel="flow-matching loss", title="training, a batch at a time")
    right.set(ylabel="loss, held-out pairs", title=told(found.last))
    for axes in (left, right):
        axes.title.set_fontsize(10)
    return figure


def draw_losses(axes: Axes, losses: list[tuple[int, float]], window: int = 8) -> None:
    """A dot a step, and a line through the means of the last `window`."""
    if not losses:
        return
    steps, values = np.array(losses).T
    axes.plot(steps, values, ".", color=plots.SKY, markersize=4, label="a step")
    means = [values[max(0, i + 1 - window) : i + 1].mean() for i in range(len(values))]
    axes.plot(steps, means, color=plots.BLUE, label=f"mean of the last {window}")
    axes.legend(frameon=False, fontsize=8)


def draw_gaps(axes: Axes, gaps: list[dict[str, float]]) -> None:
    """The three held-out losses; the gap is what lies between two of them."""
    if not gaps:
        return
    at = [row["step"] for row in gaps]
    lines = {name: [row[name] for row in gaps] for name in READS}
    axes.fill_between(at, lines["right"], lines["wrong"], color=plots.YELLOW, alpha=0.35, linewidth=0)
    for name, colour in READS.items():
        axes.plot(at, lines[name], "o-", color=colour, markersize=4, label=NAMES[name])
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    lowest, highest = min(map(min, lines.values())), max(map(max, lines.values()))
    axes.set_ylim(lowest - 0.1 * (highest - lowest), highest + 0.5 * (highest - lowest))  # room for the legend


def told(row: dict[str, float] | None) -> str:
    """The gap of a row of gaps.csv, in words."""
    if row is None:
        return "no gap measured yet"
    return f"gap {row['gap']:.3f} (95 %: {row['low']:.3f} to {row['high']:.3f})"


class WatchedTask(AdapterTask):
    """An adapter's training that calls `look` before each step and after each measurement.

    unseen: the held-out pairs of the gap, where they have been made already.
    """

    def __init__(self, config: RunConfig, look: Callable[[], None], unseen: Unseen | None = None):
        super().__init__(config)
        self.look, self._unseen = look, unseen

    def batch(self, step: int, rank: int, world: int):
        self.look()
        return super().batch(step, rank, world)

    def watch(self, model, run: Path, step: int) -> dict[str, float]:
        numbers = super().watch(model, run, step)
        self.look()
        return numbers


def follow(config: RunConfig, runs: Path, until: int, unseen: Unseen | None = None) -> Path:
    """Train to step `until` as `train` does, with the curves shown and redrawn in one output; returns the run's folder.

    The gap is also measured at step 0, before anything was learnt. Interrupting the cell keeps a checkpoint, and
    calling this again goes on from there, to a larger `until` too.
    """
    run = runs / config.name
    with Screen(lambda: curves(course(run), until), f"Loss and held-out gap of {config.name}") as screen:
        task = WatchedTask(config, screen.look, unseen)
        if not (run / "gaps.csv").exists():
            run.mkdir(parents=True, exist_ok=True)
            task.watch(task.model, run, 0)
        with suppress(Interrupted):
            train(task, config, runs, until)
    return run


def shortened(config: RunConfig, **changes) -> RunConfig:
    """The same run with some things changed: fields of the config, and options of its task for all other names."""
    fields = {name: changes.pop(name) for name in [*changes] if name in RunConfig.__dataclass_fields__}
    return replace(config, **fields, options={**config.options, **changes})
