"""The command line. Every command prints a sentence for a person, or with --json an object for a program."""

import json
import platform
import time
import warnings
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

import snapref
from snapref.evaluation.commands import app as evaluate
from snapref.evaluation.commands import bench, compare_checkpoints
from snapref.files.commands import convert, download, inspect
from snapref.sampling.commands import plan
from snapref.sampling.typed import fields, height_width, modes, numbers
from snapref.training.commands import app as train
from snapref.training.commands import datagen, merge, prepare
from snapref.training.stopping import Interrupted


class OneSentence(TyperGroup):
    """What a user can mend is told in one sentence, with exit code 2 and no traceback."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except Interrupted as stop:  # nothing is wrong, but whoever waits must not take it for finished
            typer.echo(f"snapref: {stop}", err=True)
            raise typer.Exit(stop.code) from stop
        except BrokenPipeError:  # the reader of a pipe left, as `head` does: typer ends quietly
            raise
        except (ValueError, ArithmeticError, OSError, MemoryError) as error:
            typer.echo(f"snapref: {error}", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=OneSentence,
    help="Show Anima a character once, and draw it anywhere.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(train, name="train")
app.add_typer(evaluate, name="evaluate")
app.add_typer(bench, name="bench")
app.command()(plan)
app.command("compare-checkpoints")(compare_checkpoints)
app.command()(inspect)
app.command()(convert)
app.command()(download)
app.command()(datagen)
app.command()(prepare)
app.command()(merge)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def option(text: str, *names: str, panel: str | None = None):
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False)


GUIDANCE, READING, FILES = "Guidance", "Reading the reference", "Model files"


@app.callback()
def main() -> None:
    # A warning is a sentence for the user, not a line of source.
    warnings.formatwarning = lambda message, *rest, **more: f"snapref: {message}\n"


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the versions that a bug report needs."""
    from importlib.metadata import version as installed

    packages = {name: installed(name) for name in ("torch", "transformers", "safetensors")}
    found = {"snapref": snapref.__version__, "python": platform.python_version(), **packages}
    typer.echo(json.dumps(found) if as_json else "\n".join(f"{name} {v}" for name, v in found.items()))


@app.command()
def generate(
    prompt: Annotated[str, option("What to draw, as tags.", "--prompt", "-p")],
    reference: Annotated[
        list[Path] | None,
        option("A picture or a saved reference; several are read together.", "--reference", "-r"),
    ] = None,
    out: Annotated[Path, option("The picture to write (out.png).", "--out", "-o")] = Path("out.png"),
    negative: Annotated[str, option("What to keep away from.")] = "",
    seed: Annotated[int | None, option("Of the noise (0).")] = None,
    steps: Annotated[int | None, option("Steps of the sampler.")] = None,
    size: Annotated[str | None, option("WIDTHxHEIGHT in pixels.")] = None,
    sampler: Annotated[str | None, option("euler, er_sde or euler_ancestral.")] = None,
    schedule: Annotated[str | None, option("simple, normal or beta.")] = None,
    image: Annotated[Path | None, option("A picture to start from, with --denoise below 1.")] = None,
    denoise: Annotated[float | None, option("Share of noise to start from (1).")] = None,
    s_noise: Annotated[float | None, option("Factor on the noise of er_sde and euler_ancestral (1).")] = None,
    noise_device: Annotated[str | None, option("cpu (the same noise everywhere) or cuda.")] = None,
    settings: Annotated[Path | None, option("A PNG written by snapref, whose settings to take.")] = None,
    guidance: Annotated[float | None, option("Classifier-free guidance.", panel=GUIDANCE)] = None,
    apg_eta: Annotated[float | None, option("APG: share of the parallel part.", panel=GUIDANCE)] = None,
    apg_momentum: Annotated[float | None, option("APG: momentum.", panel=GUIDANCE)] = None,
    apg_threshold: Annotated[float | None, option("APG: largest norm; 0: none.", panel=GUIDANCE)] = None,
    cfg_rescale: Annotated[float | None, option("Pull to plain contrast, 0 to 1.", panel=GUIDANCE)] = None,
    strength: Annotated[float | None, option("0 (off) to 2; 1 as trained.", panel=READING)] = None,
    mode: Annotated[str | None, option("cs: character and style; char: character.", panel=READING)] = None,
    ref_caption: Annotated[str | None, option("Caption instead of the mode's.", panel=READING)] = None,
    ref_in_uncond: Annotated[bool | None, option("Both branches read, or only one.", panel=READING)] = None,
    fidelity: Annotated[float | None, option("1 (default) to 0.", panel=READING)] = None,
    ref_guidance: Annotated[float | None, option("Two-scale guidance.", panel=READING)] = None,
    ref_start: Annotated[float | None, option("Share of steps before reading.", panel=READING)] = None,
    ref_end: Annotated[float | None, option("Share of steps until reading ends.", panel=READING)] = None,
    ref_megapixels: Annotated[float | None, option("Largest area of a picture.", panel=READING)] = None,
    weight: Annotated[
        list[float] | None, option("How strongly a picture is read (1); one for each.", "--weight", panel=READING)
    ] = None,
    block_weights: Annotated[
        str | None, option("Per block: 0-3:0,4-:1 or as many numbers as blocks.", panel=READING)
    ] = None,
    region: Annotated[
        list[str] | None,
        option(
            "Where a picture is read: left, right, top, bottom, all, a box 0,0,0.5,1 or a mask file; one for each.",
            "--region", panel=READING,
        ),
    ] = None,
    ref_mask: Annotated[
        list[str] | None,
        option("Which part of a picture is shown, likewise; one for each.", "--ref-mask", panel=READING),
    ] = None,
    cache_form: Annotated[
        str | None, option("How a reference is kept: whole, fp8, thin:0.5 or fp8+thin:0.5.", panel=READING)
    ] = None,
    layout: Annotated[str | None, option("separate, or stitch: on one canvas.", panel=READING)] = None,
    stitch_direction: Annotated[str | None, option("right, down, left or up.", panel=READING)] = None,
    stitch_match: Annotated[bool | None, option("The next takes the canvas's height.", panel=READING)] = None,
    stitch_spacing: Annotated[int | None, option("Pixels between pictures.", panel=READING)] = None,
    stitch_colour: Annotated[str | None, option("white, black, red, green, blue.", panel=READING)] = None,
    save_reference: Annotated[Path | None, option("Write the read reference here.", panel=READING)] = None,
    model: Annotated[str, option("nano (default) or anima.", panel=FILES)] = "nano",
    folder: Annotated[
        Path | None, option("Of the files: nano's own, a ComfyUI folder, or a diffusers one.", panel=FILES)
    ] = None,
    fetch: Annotated[bool, option("anima: fetch what is missing first.", "--download", panel=FILES)] = False,
    adapter: Annotated[str | None, option("A file, or its name: v1a, v1b, v2a; in loras.", panel=FILES)] = None,
    place: Annotated[str | None, option("t,h,w of an adapter that states none.", panel=FILES)] = None,
    caption: Annotated[
        list[str] | None, option("MODE=TEXT of an adapter that states none.", "--caption", panel=FILES)
    ] = None,
    lora: Annotated[list[str] | None, option("FILE[:STRENGTH], or a name in the loras.", panel=FILES)] = None,
    base: Annotated[Path | None, option("anima: diffusion model.", panel=FILES)] = None,
    text_encoder: Annotated[Path | None, option("anima: Qwen3 text encoder.", panel=FILES)] = None,
    vae: Annotated[Path | None, option("anima: VAE.", panel=FILES)] = None,
    qwen_tokenizer: Annotated[Path | None, option("anima: file or folder.", panel=FILES)] = None,
    t5_tokenizer: Annotated[Path | None, option("anima: file or folder.", panel=FILES)] = None,
    device: Annotated[str | None, option("cpu or cuda; by itself the GPU.", panel=FILES)] = None,
    offload: Annotated[bool, option("anima: for small cards.", "--offload", panel=FILES)] = False,
    quiet: Annotated[bool, option("No progress bar.", "--quiet", "-q")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw a prompt, with the character of a picture."""
    from snapref.lab.notices import notices
    from snapref.reference.cache import ReferenceCache
    from snapref.sampling.settings import Settings

    given = {
        "seed": seed, "steps": steps, "size": size and height_width(size), "sampler": sampler, "schedule": schedule,
        "denoise": denoise, "s_noise": s_noise, "noise_device": noise_device, "guidance": guidance,
        "apg_eta": apg_eta, "apg_momentum": apg_momentum, "apg_threshold": apg_threshold,
        "cfg_rescale": cfg_rescale, "strength": strength, "mode": mode, "ref_caption": ref_caption,
        "ref_in_uncond": ref_in_uncond, "fidelity": fidelity, "ref_guidance": ref_guidance,
        "ref_start": ref_start, "ref_end": ref_end, "ref_megapixels": ref_megapixels,
        "weights": weight or None, "block_weights": block_weights, "cache_form": cache_form, "layout": layout,
        "stitch_direction": stitch_direction, "stitch_match": stitch_match, "stitch_spacing": stitch_spacing,
        "stitch_colour": stitch_colour,
    }  # fmt: skip
    stored = Settings() if settings is None else Settings.from_png(settings)
    chosen = stored.replace(**{name: value for name, value in given.items() if value is not None})

    files = {"folder": folder, "adapter": adapter, "base": base, "text_encoder": text_encoder, "vae": vae}
    if place:
        files["place"] = numbers(place, 3, "place")
    if caption:
        files["captions"] = modes(caption)
    if fetch:
        files["download"] = True
    if offload:
        files["offload"] = True
    if qwen_tokenizer or t5_tokenizer:
        files["tokenizers"] = (qwen_tokenizer, t5_tokenizer)
    if lora:
        from snapref.sampling.loras import file_and_strength

        files["loras"] = [file_and_strength(text) for text in lora]
    pipe = snapref.load(model, device=device, **files)

    paths = reference or []
    pictures = [path for path in paths if path.suffix != ".safetensors"]
    told = notices(pipe.config, [prompt, negative], pictures)
    for sentence in told:
        typer.echo(f"snapref: {sentence}", err=True)
    begun = time.perf_counter()
    sources = [path if path in pictures else ReferenceCache.load(path) for path in paths] or None
    if save_reference is not None:
        if sources is None or chosen.strength == 0:
            raise ValueError("no reference was read, so there is none to save; give --reference")
        sources = pipe.encode(sources, ref_masks=ref_mask or None, settings=chosen)
        sources.save(save_reference)
        ref_mask = None  # it is in what was read

    result = pipe(
        prompt, sources, negative, chosen, regions=region or None, ref_masks=ref_mask or None, image=image,
        quiet=quiet or as_json,
    )  # fmt: skip
    cache = result.reference
    seconds = time.perf_counter() - begun  # reading the reference included
    written = result.save(out)
    height, width = result.settings.size
    read = None if cache is None else {"tokens": [*cache.tokens], "bytes": cache.nbytes}
    report = {
        "out": [str(path) for path in written],
        "seconds": round(seconds, 3),
        "branches": result.branches,
        "reference": read,
        "loras": list(result.loras),
        "notices": told,
        "settings": result.settings.to_dict(),
    }
    sentence = f"{out}: {width}x{height}, {result.settings.steps} steps, {seconds:.1f} s"
    typer.echo(json.dumps(report) if as_json else sentence)


@app.command()
def demo(
    character: Annotated[int, option("Which one of data_samples: 1 to 12 (10).")] = 10,
    reference: Annotated[Path | None, option("A picture of your own instead.", "--reference", "-r")] = None,
    seed: Annotated[int, option("Of the noise (0).")] = 0,
    change: Annotated[
        list[str] | None, option("FIELD=VALUE of the settings, such as strength=0.5; again for more.", "--set")
    ] = None,
    out: Annotated[Path, option("The picture to write.", "--out", "-o")] = Path("figures/demo.png"),
    folder: Annotated[Path | None, option("nano's files, instead of the shipped ones.")] = None,
    quiet: Annotated[bool, option("No progress bar.", "--quiet", "-q")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw one character in three scenes, and the same scenes without her picture."""
    from snapref.lab.demo import draw_demo, sample_character
    from snapref.sampling.settings import Settings

    picture, name = (reference, reference.name) if reference else sample_character(character)
    settings = Settings(seed=seed).replace(**fields(change or []))
    pipe = snapref.load("nano", folder=folder)
    drawn = draw_demo(pipe, picture, name, held_out=not reference, settings=settings, quiet=quiet or as_json)
    written = drawn.save(out)
    report = {
        "out": str(written),
        "reference": name,
        "prompts": drawn.prompts,
        "seconds": round(drawn.seconds, 3),
        "settings": drawn.settings.to_dict(),
    }
    sentence = f"{written}: {name} in {len(drawn.prompts)} scenes, then without it, {drawn.seconds:.1f} s"
    typer.echo(json.dumps(report) if as_json else sentence)


if __name__ == "__main__":
    app()
