"""`snapref train …`: one command a part, each with its config file, progress bar, CSV log and exact resume."""

import importlib
import shutil
from pathlib import Path
from typing import Annotated

import typer

from snapref.training.config import RunConfig, load_run_config

app = typer.Typer(help="Train a part of nano, or an adapter, from scratch or onward.", no_args_is_help=True)

TASKS = {  # imported only when asked for
    "codec": ("snapref.training.codec_task", "CodecTask"),
    "text": ("snapref.training.text_task", "TextTask"),
    "base": ("snapref.training.base_task", "BaseTask"),
    "tagger": ("snapref.training.tagger_task", "TaggerTask"),
    "adapter": ("snapref.training.adapter_task", "AdapterTask"),
}


def make_task(config: RunConfig):
    module, name = TASKS[config.task]
    return getattr(importlib.import_module(module), name)(config)


@app.command("run")
def run(
    config: Annotated[str, typer.Argument(help="a config's name (codec, text, base, tagger, …) or a JSON file")],
    steps: Annotated[int | None, typer.Option(help="length of the run, instead of the config's")] = None,
    decay: Annotated[int | None, typer.Option(help="last steps of falling learning rate")] = None,
    until: Annotated[int | None, typer.Option(help="stop early at this step; running again continues")] = None,
    name: Annotated[str | None, typer.Option(help="of the run's folder")] = None,
    runs: Annotated[Path, typer.Option(help="folder of all runs")] = Path("runs"),
    ship: Annotated[Path | None, typer.Option(help="copy the exported weights and the log to these names")] = None,
) -> None:
    """Train, resuming a run of that name. Ctrl-C keeps a checkpoint.

    On two CPU cores: torchrun --nproc_per_node 2 -m snapref train run base, with OMP_NUM_THREADS=1.
    """
    from snapref.training.loop import train

    settings = load_run_config(config, steps=steps, decay=decay, name=name)
    folder = train(make_task(settings), settings, runs, until)
    if ship:
        ship.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "export.safetensors", ship)
        shutil.copyfile(folder / "log.csv", ship.with_suffix(".csv"))


@app.command("tokenizers")
def tokenizers(
    captions: Annotated[int, typer.Option(help="captions to learn from")] = 20_000,
    out: Annotated[Path, typer.Option(help="folder for the two JSON files")] = Path("snapref/weights/nano"),
    seed: int = 2,
) -> None:
    """Train nano's two tokenizers on captions of the drawn world."""
    from snapref.config import NANO
    from snapref.training.draws import caption_of
    from snapref.training.tokenizers import train_tokenizers

    train_tokenizers([caption_of(seed, i) for i in range(captions)], NANO.text, out)
