"""`snapref inspect`, `snapref download` and `snapref convert`."""

import json
from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def inspect(files: Annotated[list[Path], typer.Argument(help="Safetensors files.")], as_json: AsJson = False) -> None:
    """Say what a weight file is, from its header alone."""
    from snapref.files.broken import WeightsError
    from snapref.files.inspect import inspect as look

    report, failed = [], False
    for file in files:
        try:
            found = look(file)
        except WeightsError as error:
            failed = True
            report.append({"file": str(file), "kind": None, "error": str(error)})
            if not as_json:
                typer.echo(f"snapref: {error}", err=True)
            continue
        report.append({"file": str(file), "kind": found.kind, "words": found.words, "slot": found.slot, **found.facts})
        if not as_json:
            size = f"{found.facts['parameters']:,} parameters, {found.facts['bytes']:,} bytes"
            typer.echo(f"{file} is {found.words}; {size}")
    if as_json:
        typer.echo(json.dumps(report if len(files) > 1 else report[0]))
    if failed:
        raise typer.Exit(2)


def download(
    folder: Annotated[Path | None, typer.Option(help="Where to (~/.cache/snapref/anima).")] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch Anima's published files (5.6 GB), checked and resumable."""
    from snapref.files.download import download_anima

    places = download_anima(folder)
    report = {
        part: [*map(str, place)] if isinstance(place, tuple) else str(place) for part, place in vars(places).items()
    }
    typer.echo(json.dumps(report) if as_json else "\n".join(f"{part}: {place}" for part, place in report.items()))


def convert(
    adapter: Annotated[Path, typer.Argument(help="The file of an adapter.")],
    out: Annotated[Path, typer.Argument(help="The file to write.")],
    to: Annotated[str, typer.Option(help="fp8 (half of 16 bits), fp16, bf16 or fp32.")] = "fp8",
    as_json: AsJson = False,
) -> None:
    """Write an adapter in another number format; its header stays as it is."""
    from snapref.files.convert import convert_adapter

    before, after = convert_adapter(adapter, out, to)
    report = {"out": str(out), "format": to, "bytes": after, "bytes_before": before, "ratio": round(after / before, 4)}
    sentence = f"{out}: {after:,} bytes, {after / before:.3f} of {adapter}'s"
    typer.echo(json.dumps(report) if as_json else sentence)
