"""`snapref evaluate …`: each command prints a table for a person, or with --json an object for a program."""

import json
from pathlib import Path
from typing import Annotated

import typer

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


def tell(report: dict, as_text, as_json: bool, out: Path | None) -> None:
    """Prints the report, as text by `as_text`, and writes it as JSON to `out` if given."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    typer.echo(json.dumps(report) if as_json else as_text(report))
