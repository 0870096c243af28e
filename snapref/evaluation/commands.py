"""`snapref evaluate …`: each command prints a table for a person, or with --json an object for a program."""

import json
from pathlib import Path
from typing import Annotated

import typer

from snapref.sampling.typed import height_width

app = typer.Typer(help="Score nano on characters it never saw.", no_args_is_help=True)
bench = typer.Typer(help="Time one thing against another, as a ratio within one run.", no_args_is_help=True)

Count = Annotated[int, typer.Option("--n", help="Cases.")]
Seed = Annotated[int, typer.Option(help="Of the cases and of the noise.")]
Steps = Annotated[int | None, typer.Option(help="Of the sampler; nano's default when not given.")]
Split = Annotated[str, typer.Option(help="heldout, or held_back: what no adapter was ever trained on.")]
Folder = Annotated[Path | None, typer.Option(help="nano's files, instead of the shipped ones.")]
Adapter = Annotated[Path | None, typer.Option(help="A bundle, instead of nano's own.")]
BaseOnly = Annotated[bool, typer.Option("--base-only", help="Without an adapter: what needs no picture.")]
Pairs = Annotated[int, typer.Option(help="Pairs of the held-out loss.")]
Readme = Annotated[Path, typer.Option(help="The page whose marked tables are filled.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Out = Annotated[Path | None, typer.Option(help="Also write the JSON object here.")]


@app.command()
def attributes(
    n: Count = 256,
    seed: Seed = 0,
    steps: Steps = None,
    split: Split = "heldout",
    folder: Folder = None,
    adapter: Adapter = None,
    base_only: BaseOnly = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """How many attributes of character and scene a tagger reads from samples, by what the model was told."""
    from snapref.evaluation.runs import Evaluator
    from snapref.evaluation.tables import attributes_table

    evaluator = Evaluator(folder, False if base_only else adapter, seed, steps, quiet=as_json)
    tell(evaluator.attributes(n, split), attributes_table, as_json, out)


@app.command()
def heldout(
    n: Count = 512,
    seed: Seed = 0,
    folder: Folder = None,
    adapter: Adapter = None,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """The loss of a held-out picture with the right reference, a wrong one, and none."""
    from snapref.evaluation.runs import Evaluator
    from snapref.evaluation.tables import heldout_table

    evaluator = Evaluator(folder, adapter, seed, quiet=as_json)
    tell(evaluator.heldout(n), heldout_table, as_json, out)


@app.command()
def colours(
    n: Count = 128,
    seed: Seed = 0,
    steps: Steps = None,
    folder: Folder = None,
    adapter: Adapter = None,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """How near samples come to a character's own hues, which no tag can say."""
    from snapref.evaluation.runs import Evaluator
    from snapref.evaluation.tables import colours_table

    evaluator = Evaluator(folder, adapter, seed, steps, quiet=as_json)
    tell(evaluator.colours(n), colours_table, as_json, out)


@app.command()
def codec(
    n: Count = 256, seed: Seed = 0, folder: Folder = None, as_json: AsJson = False, out: Out = None
) -> None:
    """What encoding and decoding a picture loses."""
    from snapref.evaluation.runs import Evaluator
    from snapref.evaluation.tables import codec_line

    tell(Evaluator(folder, seed=seed).codec(n), codec_line, as_json, out)


@app.command()
def controls(
    model: Annotated[str, typer.Option(help="nano: the only model whose characters have a ground truth.")] = "nano",
    n: Annotated[int, typer.Option("--n", help="Held-out characters.")] = 96,
    pairs: Annotated[int, typer.Option(help="Pictures of two characters.")] = 48,
    seed: Seed = 0,
    steps: Steps = None,
    folder: Folder = None,
    adapter: Adapter = None,
    as_json: AsJson = False,
    out: Out = Path("figures/controls.json"),
    figure: Annotated[Path, typer.Option(help="The picture of the table.")] = Path("figures/controls.png"),
    readme: Readme = Path("README.md"),
) -> None:
    """Every control: identity, style and scene kept, colour, time; writes the table and figure of the README."""
    from snapref.evaluation.control_tables import control_table, draw_controls
    from snapref.evaluation.controls import control_report
    from snapref.evaluation.runs import Evaluator
    from snapref.evaluation.tables import fill
    from snapref.evaluation.two_characters import two_report

    if model != "nano":
        raise ValueError(f"model is {model!r}; only nano draws a world in which every attribute is known")
    page = readme.read_text(encoding="utf-8")
    fill(page, {"controls": ""})
    evaluator = Evaluator(folder, adapter, seed, steps, quiet=as_json)
    report = control_report(evaluator.pipe, evaluator.tagger, evaluator.cases(n), seed=seed, steps=steps, quiet=as_json)
    report |= {"two_characters": two_report(evaluator.pipe, pairs, seed, steps), "weights": evaluator.weights}
    tell(report, control_table, as_json, out)
    draw_controls(report).savefig(figure, dpi=110)
    page = readme.read_text(encoding="utf-8")  # anew: the run was long, and somebody may have written on it
    readme.write_text(fill(page, {"controls": control_table(report)}), encoding="utf-8")


@app.command()
def thinning(
    n: Annotated[int, typer.Option("--n", help="Held-out characters.")] = 96,
    seed: Seed = 0,
    steps: Steps = None,
    folder: Folder = None,
    adapter: Adapter = None,
    as_json: AsJson = False,
    out: Out = Path("figures/thinning.json"),
    figure: Annotated[Path, typer.Option(help="The curves.")] = Path("figures/thinning.png"),
) -> None:
    """Identity against bytes and time when a reference keeps a share of its tokens, by ways of choosing them."""
    from snapref.evaluation.runs import Evaluator
    from snapref.evaluation.thinning import draw_thinning, thinning_report, thinning_table

    evaluator = Evaluator(folder, adapter, seed, steps, quiet=as_json)
    tagger, pipe = evaluator.tagger, evaluator.pipe
    report = thinning_report(pipe, tagger, evaluator.cases(n), seed=seed, steps=steps, quiet=as_json)
    report["weights"] = evaluator.weights
    tell(report, thinning_table, as_json, out)
    draw_thinning(report).savefig(figure, dpi=110)


@app.command("all")
def everything(
    n: Count = 256,
    pairs: Pairs = 512,
    seed: Seed = 0,
    steps: Steps = None,
    folder: Folder = None,
    adapter: Adapter = None,
    as_json: AsJson = False,
    out: Out = Path("figures/evaluation.json"),
    readme: Readme = Path("README.md"),
) -> None:
    """All of it, from the same samples; writes the JSON file and the tables of the README."""
    from snapref.evaluation.runs import Evaluator
    from snapref.evaluation.tables import TABLES, all_tables, fill

    page = readme.read_text(encoding="utf-8")
    fill(page, dict.fromkeys(TABLES, ""))  # a wrong page should not cost the long run
    report = Evaluator(folder, adapter, seed, steps, quiet=as_json).everything(n, pairs)
    tell(report, lambda found: "\n\n".join(all_tables(found).values()), as_json, out)
    page = readme.read_text(encoding="utf-8")  # anew: the run was long, and somebody may have written on it
    readme.write_text(fill(page, all_tables(report)), encoding="utf-8")


@bench.command("forward")
def forward(as_json: AsJson = False) -> None:
    """Our forward against diffusers' on the same weights, interleaved in one run; needs diffusers."""
    from dataclasses import asdict

    from snapref.evaluation.bench_forward import bench_both

    results = bench_both()
    if as_json:
        typer.echo(json.dumps([asdict(result) for result in results]))
        return
    for r in results:
        typer.echo(
            f"width {r.width}, {r.blocks} blocks, {r.tokens} tokens: {r.ours_ms:.1f} ms, diffusers "
            f"{r.diffusers_ms:.1f} ms, ratio {r.ratio:.3f} (quartiles {r.ratio_low:.3f} to {r.ratio_high:.3f} "
            f"of {r.rounds} rounds, {r.threads} threads)"
        )


@bench.command("attention")
def attention(
    width: Annotated[int, typer.Option(help="Features per token.")] = 2048,
    heads: Annotated[int, typer.Option(help="Heads that share the width.")] = 16,
    blocks: Annotated[int, typer.Option(help="Blocks that are timed.")] = 1,
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT of the picture being made.")] = "832x1216",
    ref_size: Annotated[str, typer.Option(help="WIDTHxHEIGHT of the reference.")] = "832x1216",
    steps: Annotated[int, typer.Option(help="Over which reading the reference is spread.")] = 28,
    rounds: Annotated[int, typer.Option(help="In which each row is timed once.")] = 5,
    minutes: Annotated[float, typer.Option(help="After which no further round begins.")] = 60.0,
    bf16: Annotated[bool, typer.Option("--bf16", help="Instead of fp32.")] = False,
    row: Annotated[list[str] | None, typer.Option(help="Only this row, by its name; again for more.")] = None,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """What reading a reference costs a step, row by row, against the plain step and its arithmetic floor."""
    from snapref.evaluation.bench_attention import bench_attention, bench_text
    from snapref.evaluation.reading_rows import job_of, rows_named

    sides = [height_width(text, name, 16) for name, text in (("size", size), ("ref-size", ref_size))]
    job = job_of(width, heads, blocks, *sides, steps=steps, rounds=rounds, minutes=minutes, bf16=bf16)
    tell(bench_attention(job, rows_named(row or ()), quiet=as_json), bench_text, as_json, out)


@bench.command("train")
def train(
    blocks: Annotated[int, typer.Option(help="Full-width blocks that are timed.")] = 2,
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT of target and reference.")] = "832x1216",
    steps: Annotated[int, typer.Option(help="Of the loop; the first and the last are not counted.")] = 5,
    memory: Annotated[bool, typer.Option(help="Also measure the peak memory of 2 and 4 blocks.")] = True,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """The training loop against the time of its matrix products alone, its memory against the plan's."""
    from snapref.evaluation.bench_train import Job, bench_train

    sides = height_width(size, step=16)
    if steps < 3:
        raise ValueError(f"steps is {steps}; give at least 3, for the first and the last are not counted")
    found = bench_train(Job(blocks=blocks, size=sides, ref_size=sides, steps=steps), (2, 4) if memory else ())
    tell(found.to_dict(), lambda _: str(found), as_json, out)


def compare_checkpoints(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or bundle files.")],
    n: Count = 256,
    seed: Seed = 0,
    last: Annotated[int | None, typer.Option(help="Only so many last checkpoints of each run.")] = None,
    base: Annotated[Path | None, typer.Option(help="The base's file, instead of the run's.")] = None,
    weights: Annotated[Path | None, typer.Option(help="nano's files, instead of the run's.")] = None,
    unseen: Annotated[Path | None, typer.Option(help="Prepared held-out pairs, instead of the run's.")] = None,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Rank the checkpoints of training runs by their held-out gap, with intervals."""
    from snapref.evaluation.compare import compare, comparison_text

    report = compare(runs, n, seed, base=base, weights=weights, unseen=unseen, last=last, quiet=as_json)
    tell(report, comparison_text, as_json, out)


@bench.command("full-size")
def full_size(
    folder: Annotated[Path | None, typer.Option(help="Where 7 GB of files lie for that time.")] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="The same in miniature.")] = False,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Random files of the published names and sizes, through the loader and two steps on this CPU."""
    from snapref.evaluation.full_size import as_text
    from snapref.evaluation.full_size import full_size as run

    tell(run("tiny" if tiny else "full", folder), as_text, as_json, out)


def tell(report: dict, as_text, as_json: bool, out: Path | None) -> None:
    """Prints the report, as text by `as_text`, and writes it as JSON to `out` if given."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    typer.echo(json.dumps(report) if as_json else as_text(report))
