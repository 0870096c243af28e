"""`snapref plan`: what drawing, or with --train a training, would hold in memory, before anything is loaded."""

import json
from collections.abc import Iterable
from typing import Annotated

import typer

from snapref.sampling.typed import height_width
from snapref.training import commands as training

Model = Annotated[str, typer.Option(help="anima or nano.")]
Card = Annotated[float | None, typer.Option(help="The card's memory in GB; this machine's when not given.")]
Dtype = Annotated[str, typer.Option(help="bf16, fp16, fp32, or fp8: an fp8 file, computed with in bf16.")]
Size = Annotated[str | None, typer.Option(help="WIDTHxHEIGHT in pixels; the model's own when not given.")]
Blocks = Annotated[int | None, typer.Option(help="Blocks of the base; 28, unless it is a larger one.")]
Offload = Annotated[bool, typer.Option("--offload", help="Weights in host memory, visiting block by block.")]
References = Annotated[int, typer.Option(help="Pictures that are read; 0: none, and no adapter.")]
Megapixels = Annotated[float | None, typer.Option("--ref-megapixels", help="Largest area of a reference.")]
Batch = Annotated[int | None, typer.Option(help="Prompts drawn together; with --train, pairs a step.")]
Train = Annotated[str | None, typer.Option(help="A training config: v1a, v1b, v2a, … or a JSON file; plan that.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

DTYPES = ("bf16", "fp16", "fp32", "fp8")
DRAWING = ("model", "dtype", "size", "blocks", "offload", "references", "ref_megapixels")  # options of drawing alone


def plan(
    ctx: typer.Context,
    model: Model = "anima",
    card: Card = None,
    dtype: Dtype = "bf16",
    size: Size = None,
    blocks: Blocks = None,
    offload: Offload = False,
    references: References = 1,
    ref_megapixels: Megapixels = None,
    batch: Batch = None,
    train: Train = None,
    cards: training.Cards = None,
    tflops: training.Tflops = None,
    accumulate: training.Accumulate = None,
    optimizer: training.Optimizer = None,
    recompute: training.Recompute = None,
    pictures: training.Pictures = None,
    as_json: AsJson = False,
) -> None:
    """What is where, how many GB, and whether a card has room for it. Nothing is loaded."""
    given = {"cards": cards, "tflops": tflops, "accumulate": accumulate, "optimizer": optimizer,
             "recompute": recompute, "pictures": pictures}
    refuse_idle(ctx, "--train", train is None, given)
    refuse_idle(ctx, "drawing, not --train", train is not None, DRAWING)
    if train is not None:
        training.plan(train, card, batch=batch, as_json=as_json, **given)
        return
    import dataclasses

    import torch

    from snapref.config import BASE, NANO
    from snapref.sampling.advice import advice
    from snapref.sampling.memory import GB, Ask, make_plan

    configs = {"anima": BASE, "nano": NANO}
    if model not in configs:
        raise ValueError(f"there is no model {model!r}; plan for anima or nano")
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; give one of {', '.join(DTYPES)}")
    batch = 1 if batch is None else batch
    if references < 0 or batch < 1 or (card is not None and card <= 0) or (blocks is not None and blocks < 1):
        raise ValueError("references must be at least 0, batch and blocks at least 1, and card above 0 GB")
    config = configs[model]
    if blocks is not None:
        config = dataclasses.replace(config, dit=dataclasses.replace(config.dit, blocks=blocks))
    computed = {"fp16": torch.float16, "fp32": torch.float32}.get(dtype, torch.bfloat16)
    drawn = height_width(size, step=config.size_step) if size else config.default_size
    ask = Ask(
        config, computed, drawn, batch, references=references,
        ref_megapixels=config.default_ref_megapixels if ref_megapixels is None else ref_megapixels,
        fp8=dtype == "fp8", offload=offload, adapter=references > 0,
    )  # fmt: skip
    found = make_plan(ask)
    if card is None and torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0).total_memory / GB
    fits = None if card is None else found.peak <= card * GB
    said = None if fits is not False else advice(ask, int(card * GB)).removeprefix("out of memory: ")
    if as_json:
        typer.echo(json.dumps({**found.to_json(), "card": card, "fits": fits, "advice": said}))
        return
    typer.echo(str(found))
    if card is None:
        typer.echo(f"It needs {found.peak / GB:.1f} GB; give --card to compare.")
    else:
        typer.echo(said or f"It fits: {found.peak / GB:.1f} of {card:.1f} GB.")


def refuse_idle(ctx: typer.Context, user: str, idle: bool, names: Iterable[str]) -> None:
    """Raises ValueError for options given to a plan that makes no use of them."""
    stated = [n for n in names if ctx.get_parameter_source(n).name == "COMMANDLINE"]
    if idle and stated:
        raise ValueError(f"{', '.join('--' + n.replace('_', '-') for n in stated)} is for {user}; leave it out")
