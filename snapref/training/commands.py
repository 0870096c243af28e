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
    from snapref.training.options import refuse_unknown_task

    refuse_unknown_task(config.task, TASKS)
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
    """Train, resuming a run of that name. Ctrl-C keeps a checkpoint and ends with code 130.

    On two CPU cores: torchrun --nproc_per_node 2 -m snapref train run base, with OMP_NUM_THREADS=1.
    """
    run_and_ship(load_run_config(config, steps=steps, decay=decay, name=name), runs, until, ship)


def run_and_ship(settings: RunConfig, runs: Path, until: int | None, ship: Path | None) -> None:
    """Raises ValueError where what is to be shipped would not be finished; nothing is shipped after an interruption."""
    from snapref.training.loop import train
    from snapref.training.processes import process_state

    if ship and until is not None and until < settings.steps:
        raise ValueError(f"until is {until}, the run has {settings.steps} steps, and only a finished one is shipped; "
                         "leave out --until or --ship")
    folder = train(make_task(settings), settings, runs, until)
    if ship and process_state().is_main_process:
        ship.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "export.safetensors", ship)
        shutil.copyfile(folder / "log.csv", ship.with_suffix(".csv"))


@app.command("adapter")
def adapter(
    config: Annotated[str, typer.Option(help="v1a, v1b, v2a, nano-v1a, nano-v1b, nano-v2a, nano-lesson or a file")],
    data: Annotated[Path | None, typer.Option(help="prepared pairs; nano without: the renderer's")] = None,
    init: Annotated[Path | None, typer.Option(help="a bundle to go on from")] = None,
    unseen: Annotated[Path | None, typer.Option(help="prepared held-out pairs; nano without: the renderer's")] = None,
    base: Annotated[Path | None, typer.Option(help="the frozen base's file; nano has its own")] = None,
    vae: Annotated[Path | None, typer.Option(help="anima: for the previews; without, only the gap")] = None,
    weights: Annotated[Path | None, typer.Option(help="folder of nano's files, instead of the shipped ones")] = None,
    steps: Annotated[int | None, typer.Option(help="length of the run, instead of the config's")] = None,
    decay: Annotated[int | None, typer.Option(help="last steps of falling learning rate")] = None,
    until: Annotated[int | None, typer.Option(help="stop early at this step; running again continues")] = None,
    batch: Annotated[int | None, typer.Option(help="pairs a step, over all processes")] = None,
    accumulate: Annotated[int | None, typer.Option(help="parts in which a process computes its share")] = None,
    precision: Annotated[str | None, typer.Option(help="no, bf16 or fp16")] = None,
    optimizer: Annotated[str | None, typer.Option(help="muon, adamw or adamw8bit")] = None,
    recompute: Annotated[bool | None, typer.Option(help="gradient checkpointing, or not")] = None,
    save_every: Annotated[int | None, typer.Option(help="steps between checkpoints")] = None,
    seed: Annotated[int | None, typer.Option(help="of data order and noise")] = None,
    tensorboard: Annotated[bool | None, typer.Option(help="TensorBoard events besides log.csv")] = None,
    name: Annotated[str | None, typer.Option(help="of the run's folder")] = None,
    runs: Annotated[Path, typer.Option(help="folder of all runs")] = Path("runs"),
    ship: Annotated[Path | None, typer.Option(help="copy the exported bundle and the log to these names")] = None,
) -> None:
    """Train an adapter's two branches, resuming a run of that name. Ctrl-C keeps a checkpoint, and code is 130.

    On several GPUs: accelerate launch -m snapref train adapter --config v1a --data FOLDER --base FILE.
    """
    files = {"data": data, "init": init, "unseen": unseen, "base": base, "vae": vae, "weights": weights}
    options = {key: None if path is None else str(path) for key, path in files.items()} | {"recompute": recompute}
    settings = load_run_config(
        config, options, steps=steps, decay=decay, batch=batch, accumulate=accumulate, precision=precision,
        optimizer=optimizer, save_every=save_every, seed=seed, tensorboard=tensorboard, name=name,
    )
    if settings.task != "adapter":
        raise ValueError(f"config {config} trains {settings.task}, no adapter; run `snapref train run {config}`")
    run_and_ship(settings, runs, until, ship)


@app.command("family")
def family(
    ship: Annotated[Path, typer.Argument(help="folder for adapter_v1a.safetensors, …_v1b, …_v2a and their logs")],
    data: Annotated[Path | None, typer.Option(help="prepared pairs of v1a and v1b; without: the renderer's")] = None,
    mix: Annotated[Path | None, typer.Option(help="prepared pairs of v2a; without: as --data")] = None,
    unseen: Annotated[Path | None, typer.Option(help="prepared held-out pairs; without: the renderer's")] = None,
    weights: Annotated[Path | None, typer.Option(help="folder of nano's files, instead of the shipped ones")] = None,
    only: Annotated[list[str] | None, typer.Option(help="of nano-v1a, nano-v1b, nano-v2a; all without")] = None,
    processes: Annotated[int, typer.Option(help="each on its own cores")] = 2,
    runs: Annotated[Path, typer.Option(help="folder of all runs")] = Path("runs"),
) -> None:
    """Train nano's adapters one after the other: v1a, v1b, and v2a onward from v1a."""
    from snapref.training.family import FAMILY, train_family

    chosen = tuple(only or FAMILY)
    paths = {"data": data, "mix": mix, "unseen": unseen, "weights": weights}
    for path in train_family(ship, runs, processes=processes, names=chosen, **paths):
        typer.echo(path)


Cards = Annotated[int | None, typer.Option(help="training: how many cards; 1 when not given")]
Tflops = Annotated[float | None, typer.Option(help="training: what a card reaches; else 40 % of its published rate")]
Accumulate = Annotated[int | None, typer.Option(help="training: parts in which a card computes its share")]
Optimizer = Annotated[str | None, typer.Option(help="training: muon, adamw or adamw8bit")]
Recompute = Annotated[bool | None, typer.Option(help="training: gradient checkpointing, or not")]
Pictures = Annotated[int | None, typer.Option(help="training: also plan drawing and preparing so many of its own")]


@app.command("plan")
def plan(
    config: Annotated[str, typer.Argument(help="v1a, v1b, v2a, their nano versions, or a JSON file")],
    card: Annotated[float | None, typer.Option(help="GB of memory of a card: 16, 24, 40, 48, 80 (usual), 141")] = None,
    cards: Cards = None,
    tflops: Tflops = None,
    batch: Annotated[int | None, typer.Option(help="pairs a step, over all cards")] = None,
    accumulate: Accumulate = None,
    optimizer: Optimizer = None,
    recompute: Recompute = None,
    pictures: Pictures = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Parameters, memory by part and time of an adapter's training, computed before anything starts.

    `snapref plan --train CONFIG` is the same.
    """
    import json
    from dataclasses import asdict

    from snapref.training.data_plan import plan_data
    from snapref.training.options import MODELS
    from snapref.training.train_plan import plan_training

    settings = load_run_config(
        config, {"recompute": recompute}, batch=batch, accumulate=accumulate, optimizer=optimizer
    )
    found = plan_training(settings, 80 if card is None else card, 1 if cards is None else cards, tflops)
    data = None if pictures is None else plan_data(MODELS[found.model], pictures, found.tflops)
    if as_json:
        typer.echo(json.dumps({**found.to_dict(), "data": data and asdict(data)}))
        return
    typer.echo(str(found) if data is None else f"{found}\n{data}")


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


def datagen(
    out: Annotated[Path, typer.Option(help="folder of the set; running again goes on")],
    pictures: Annotated[int, typer.Option(help="how many")] = 1500,
    model: Annotated[str, typer.Option(help="nano or anima: who draws, and whose tags")] = "nano",
    per_character: Annotated[int | None, typer.Option(help="pictures of each; nano 6, anima 24")] = None,
    styles: Annotated[int, typer.Option(help="art styles of a character; 3 for pairs that do not share theirs")] = 1,
    seed: Annotated[int, typer.Option(help="of characters, scenes and noise")] = 0,
    heldout: Annotated[bool, typer.Option("--heldout", help="characters that no training may see")] = False,
    renderer: Annotated[bool, typer.Option("--renderer", help="nano: drawn by the world itself")] = False,
    steps: Annotated[int | None, typer.Option(help="of the sampler; nano 12, anima 28")] = None,
    guidance: Annotated[float | None, typer.Option(help="classifier-free guidance")] = None,
    batch: Annotated[int | None, typer.Option(help="pictures drawn together; nano 32, anima 4")] = None,
    catalog: Annotated[Path | None, typer.Option(help="tags of your own, a JSON file as catalogs/anima.json")] = None,
    folder: Annotated[Path | None, typer.Option(help="of the model's files")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress bar")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Draw training pictures of made-up characters, with their tags.

    On several GPUs, or two CPU processes: accelerate launch --num_processes N -m snapref datagen --out FOLDER.
    """
    import json
    import time

    import snapref
    from snapref.training import datagen as drawing
    from snapref.training.catalog import open_catalog
    from snapref.training.processes import process_state

    tags = open_catalog(model, catalog)  # before the model, which takes its time
    state, began = process_state(), time.monotonic()
    pipe = None if renderer else snapref.load(model, adapter=False, folder=folder, device=str(state.device))
    manifest = drawing.new_manifest(
        model, tags, pictures, per_character=per_character, styles=styles, seed=seed,
        split="heldout" if heldout else "train", batch=batch, steps=steps, guidance=guidance, pipe=pipe,
    )
    if state.is_main_process:
        manifest.write(out)
        drawing.clear(out)
    state.wait_for_everyone()
    rank, world = state.process_index, state.num_processes
    drawn = drawing.datagen(manifest, out, pipe, rank=rank, world=world, quiet=quiet or as_json)
    state.wait_for_everyone()
    if state.is_main_process:
        found = {"out": str(out), "pictures": pictures, "characters": manifest.characters, "drawn_here": drawn,
                 "missing": len(drawing.missing(manifest, out)), "seconds": round(time.monotonic() - began, 1)}
        sentence = f"{out}: {pictures} pictures of {manifest.characters} characters, {found['seconds']} s"
        typer.echo(json.dumps(found) if as_json else sentence)


def prepare(
    pictures: Annotated[Path, typer.Argument(help="a folder of datagen, or your own with a pictures.jsonl")],
    out: Annotated[Path, typer.Option(help="folder of the prepared set; running again goes on")],
    model: Annotated[str, typer.Option(help="nano or anima: for whose training")] = "nano",
    each: Annotated[int, typer.Option(help="pairs of a target, each with its own prompt")] = 4,
    seed: Annotated[int, typer.Option(help="of pairs and prompts")] = 0,
    heldout: Annotated[bool, typer.Option("--heldout", help="your own pictures: only the held-out characters")] = False,
    catalog: Annotated[Path | None, typer.Option(help="your own pictures: which tags are appearance")] = None,
    folder: Annotated[Path | None, typer.Option(help="of the model's files")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="compare all bytes with the index at the end")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress bar")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Turn pictures into pairs for training: latents and contexts in shards, with an index.

    On several GPUs: accelerate launch --num_processes N -m snapref prepare PICTURES --out FOLDER.
    """
    import json
    import time

    import snapref
    from snapref.training import prepare as preparing
    from snapref.training.catalog import open_catalog
    from snapref.training.origin import origin
    from snapref.training.prepared import PreparedPairs
    from snapref.training.processes import process_state
    from snapref.training.records import read_pictures

    state, began = process_state(), time.monotonic()
    found = read_pictures(pictures, open_catalog(model, catalog), "heldout" if heldout else "train", model)
    pipe = snapref.load(model, adapter=False, folder=folder, device=str(state.device))
    plan = preparing.new_plan(found, pictures, pipe.config, each, seed)
    if state.is_main_process:
        plan.write(out, origin(pipe)[0])
    state.wait_for_everyone()
    preparing.prepare(
        plan, out, pipe, rank=state.process_index, world=state.num_processes, quiet=quiet or as_json
    )
    state.wait_for_everyone()
    if state.is_main_process:
        preparing.finish(plan, out, pipe)
        ready = PreparedPairs(out, allow=found.split == "heldout")
        if verify:
            ready.verify()
        size = sum(path.stat().st_size for path in out.glob("*.safetensors")) / 1e6
        report = {"out": str(out), "pictures": len(found.records), "pairs": len(ready), "prompts": len(plan.prompts),
                  "buckets": len(ready.buckets), "megabytes": round(size, 1),
                  "seconds": round(time.monotonic() - began, 1)}
        sentence = (f"{out}: {len(ready)} pairs of {len(found.records)} pictures in {len(ready.buckets)} buckets, "
                    f"{size:.1f} MB, {report['seconds']} s")
        typer.echo(json.dumps(report) if as_json else sentence)


def merge(
    sets: Annotated[list[str], typer.Argument(help="prepared folders with weights: real:0.8 generated:0.2")],
    out: Annotated[Path, typer.Option(help="folder of the mix")],
) -> None:
    """Join prepared sets, each with its share of the pairs. Nothing is copied."""
    from snapref.training.merge import folder_and_weight
    from snapref.training.merge import merge as join

    named = [folder_and_weight(text) for text in sets]
    join(named, out)
    typer.echo(f"{out}: a mix of {', '.join(f'{folder} {weight:g}' for folder, weight in named)}")
