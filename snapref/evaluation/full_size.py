"""A whole run at full size without the published files: random ones of their names, shapes and dtypes.

    snapref bench full-size

Writes the files (6 GB), loads them as any user's files are loaded, reads a reference of 256x256, draws two steps
at 256x256 on this CPU, fp32 arithmetic over bf16 weights one block at a time, and removes the files whatever
happens. The run has a process of its own, so that its peak is the run's and not the writing's.
"""

import argparse
import json
import math
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from snapref.anima.model import AnimaDiT
from snapref.anima.qwen import new_qwen
from snapref.config import BASE, NANO_V1A, V1A, DiTConfig, ModelConfig, TextConfig
from snapref.files.nano import nano_file
from snapref.reference.branches import Adapter
from snapref.reference.bundle import save_bundle
from snapref.sampling.opening import open_files

# The same layout in miniature, for the test; the codec is the published kind, narrow.
TINY = ModelConfig(
    name="tiny",
    dit=DiTConfig(width=64, heads=2, blocks=3, context_width=48, adaln_rank=8),
    text=TextConfig(
        context_rows=64, adapter_blocks=1, adapter_heads=2, t5_vocab=512, qwen_vocab=512, qwen_width=32,
        qwen_layers=1, qwen_heads=2, qwen_kv_heads=1, qwen_head_dim=16, qwen_mlp=48, qwen_pad_id=0,
    ),
    codec=BASE.codec, default_size=(64, 64), default_steps=2, default_guidance=3.0,
)  # fmt: skip
# scale -> config, its adapter, base width of the VAE, side of picture and reference in pixels
SCALES = {"full": (BASE, V1A, 96, 256), "tiny": (TINY, NANO_V1A, 8, 64)}
LIMIT = 1.25  # of the file sizes in use
FILES = ("base", "text_encoder", "vae", "adapter")


def write_random(path: Path, shapes: Mapping[str, tuple[int, ...]], generator: torch.Generator) -> int:
    """Writes a safetensors file of random bf16 tensors one by one and returns its bytes.

    Norms are ones, other numbers of variance 1 / inputs, so that everything stays finite through all blocks.
    """
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            if len(shape) == 1:
                tensor = torch.ones(shape, dtype=torch.bfloat16)
            else:
                tensor = torch.empty(shape, dtype=torch.bfloat16)
                tensor.normal_(std=math.prod(shape[1:]) ** -0.5, generator=generator)
            file.write(tensor.view(torch.uint8).numpy().reshape(-1))
    return path.stat().st_size


def write_files(scale: str, folder: Path) -> dict[str, Path]:
    """Writes base, text encoder, VAE and adapter under the published names of their tensors.

    The VAE's are diffusers' names, which the loader reads as well as ComfyUI's.
    """
    from diffusers import AutoencoderKLQwenImage

    config, adapter, width, _ = SCALES[scale]
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        modules = {
            "base": ("net.", AnimaDiT(config)),
            "text_encoder": ("model.", new_qwen(config.text)),
            "vae": ("", AutoencoderKLQwenImage(base_dim=width)),
        }
    paths = {name: folder / f"{name}.safetensors" for name in FILES}
    for name, (prefix, module) in modules.items():
        write_random(paths[name], {prefix + n: tuple(t.shape) for n, t in module.state_dict().items()}, generator)
    torch.manual_seed(0)
    branches = Adapter(replace(adapter, place=(0.0, 512.0, 0.0)), config).requires_grad_(False)
    for name, weight in branches.named_parameters():
        if "lora_B" in name:
            weight.normal_(std=0.01, generator=generator)
    save_bundle(branches, paths["adapter"], torch.bfloat16)
    return paths


def draw(scale: str, folder: Path) -> dict:
    """Loads, reads a reference, draws two steps. Returns seconds of each and this process's peak."""
    config, _, _, side = SCALES[scale]
    paths = {name: folder / f"{name}.safetensors" for name in FILES}
    times, peaks, begun = {}, {"imports": peak_bytes()}, time.perf_counter()

    def lap(name: str) -> None:
        nonlocal begun
        times[name], begun = round(time.perf_counter() - begun, 2), time.perf_counter()
        # Linux counts pages in every core and adds them up at times: a later reading may be lower.
        peaks[name] = max(peak_bytes(), *peaks.values())

    pipe = open_files(
        config,
        base=paths["base"],
        text_encoder=paths["text_encoder"],
        codec=paths["vae"],
        # Published tokenizers are no part of this; nano's ids are ids of the large embeddings too.
        tokenizers=(nano_file("qwen_tokenizer.json"), nano_file("t5_tokenizer.json")),
        adapter=paths["adapter"],
        device=torch.device("cpu"),
        dtype=torch.float32,
        offload=True,
    )
    lap("load")
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    cache = pipe.encode(Image.fromarray(pixels))
    lap("reference")
    result = pipe("1girl, beach, waving", cache, steps=2, size=(side, side), quiet=True)
    lap("draw")
    if not result.latents.isfinite().all():
        raise ArithmeticError("the latent of the full-size run is not finite; the arithmetic is broken")
    files = sum(path.stat().st_size for path in paths.values())
    return {
        "scale": scale,
        "parameters": sum(p.numel() for p in pipe.model.parameters()),
        "blocks": len(pipe.model.blocks),
        "size": [side, side],
        "steps": 2,
        "branches": result.branches,
        "reference_bytes": cache.nbytes,
        "seconds": times,
        "threads": torch.get_num_threads(),
        "file_bytes": {name: path.stat().st_size for name, path in paths.items()},
        "peak_bytes": peaks["draw"],
        "peak_until": peaks,
        "peak_ratio": round(peaks["draw"] / files, 3),
        "limit": LIMIT,
    }


def peak_bytes() -> int:
    """The most memory that this process ever had, mapped files included."""
    if sys.platform == "linux":  # `ru_maxrss` there begins with what the process that started this one had
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def full_size(scale: str = "full", folder: Path | None = None) -> dict:
    """Writes, runs and removes. folder: where the files go for that time (None: the system's temporary one).

    Raises OSError where the disk has no room, RuntimeError with the run's last words where it fails.
    """
    parent = Path(folder or tempfile.gettempdir())
    needed, free = (7e9 if scale == "full" else 1e7), shutil.disk_usage(parent).free
    if free < needed:
        raise OSError(f"{parent} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} are needed; give another folder")
    aside = Path(tempfile.mkdtemp(prefix="snapref-full-size-", dir=parent))
    try:
        begun = time.perf_counter()
        write_files(scale, aside)
        written = round(time.perf_counter() - begun, 2)
        run = subprocess.run(
            [sys.executable, "-m", "snapref.evaluation.full_size", "--scale", scale, "--draw", str(aside)],
            capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        if run.returncode:
            raise RuntimeError(f"the run ended with {run.returncode}: {run.stderr.strip()[-2000:]}")
        report = json.loads(run.stdout.splitlines()[-1])
        return report | {"seconds": {"write": written} | report["seconds"]}
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def as_text(report: dict) -> str:
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in report["seconds"].items())
    files = sum(report["file_bytes"].values())
    holds = "within" if report["peak_ratio"] <= report["limit"] else "ABOVE"
    return (
        f"{report['parameters']:,} parameters, {report['blocks']} blocks, {report['threads']} threads: {seconds}; "
        f"peak {report['peak_bytes'] / 1e9:.2f} GB, {report['peak_ratio']} x the {files / 1e9:.2f} GB of files, "
        f"{holds} {report['limit']}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--draw", type=Path, help="a folder with the files; without it they are written and removed")
    options = parser.parse_args()
    print(json.dumps(draw(options.scale, options.draw) if options.draw else full_size(options.scale)))
