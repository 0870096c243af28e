# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 10 · The real Anima
#
# Three public files, a graphics card, and the model that ComfyUI users draw with. After this notebook you can
#
# 1. go from those files to a picture in five lines, with a reference and with LoRAs;
# 2. say before you start what lies on your card, how many GB, and about how many minutes it takes;
# 3. read every refusal: a broken file, a file in the wrong place, a card that is too small.
#
# Time: 15 minutes to read. Computing takes under a minute on one CPU core with nano; with Anima's files
# on a T4 allow a quarter of an hour, without the download of 5.6 GB.

# %% tags=["setup"]
# Setup: about 20 s on a fresh Colab runtime, instant afterwards. Never touches torch or numpy.
import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

SOURCE = os.environ.get("SNAPREF_SOURCE", "snapref @ git+https://github.com/OWNER/snapref@v0.1.0")
GUARDED = ("torch", "torchvision", "numpy", "pillow", "ipywidgets")


def versions():
    names = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
    return {name: names.get(name) for name in GUARDED}


if importlib.util.find_spec("snapref") is None and Path("../snapref/config.py").exists():
    sys.path.insert(0, str(Path("..").resolve()))  # a clone: use it as it stands
elif importlib.util.find_spec("snapref") is None:
    before = versions()
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", SOURCE], check=True)
    importlib.invalidate_caches()
    changed = [name for name, now in versions().items() if now != before[name]]
    if changed:
        raise RuntimeError(f"the install replaced {changed}: choose Runtime > Restart session, then run this")

if "COLAB_RELEASE_TAG" in os.environ:  # Colab: lets widgets load their front ends
    from google.colab import output

    output.enable_custom_widget_manager()

# %% [markdown]
# ## One switch
#
# | `FILES` | what happens |
# |---|---|
# | `None` | no files: every cell runs on **nano**, the small model of the package |
# | `"download"` | a fresh Colab, or any machine: the files are fetched once, 5.6 GB |
# | `"ComfyUI"`, a path | a ComfyUI folder, a plain folder with the files, or a diffusers repository |
#
# On Colab choose *Runtime > Change runtime type > T4 GPU* first.

# %%
FILES = None
ADAPTER = None  # with Anima: the reference adapter's path, or its name in the folder's loras, "snapref_v1a"
PLACE, CAPTIONS = None, None  # only for an adapter file that does not state them
OFFLOAD = False  # with Anima: True for a small card
REFERENCE = None  # the path of your picture; None takes a drawn character

# %%
import shutil
import tempfile
from pathlib import Path

import torch
from PIL import Image

import snapref
from snapref.lab.plots import still
from snapref.lab.rows import show_row
from snapref.world.samples import references


def open_pipe(files):
    if files is None:
        return snapref.load("nano")
    where = {"download": True} if files == "download" else {"folder": files}
    return snapref.load("anima", **where, adapter=ADAPTER, place=PLACE, captions=CAPTIONS, offload=OFFLOAD)


pipe = open_pipe(FILES)
print(f"{pipe.config.name} on {pipe.device}, computing in {pipe.model.dtype}")
if FILES is None:
    print("FILES is None: the pictures below are nano's. The code is the one that draws with Anima.")

# %% [markdown]
# ## The result first
#
# One function draws with either model. Size and steps come from `pipe.config`; everything else is the
# same class.

# %%
def draw(pipe, prompt, reference=None, **changes):
    """One picture of the model's own size and number of steps."""
    usual = {"size": pipe.config.default_size, "steps": pipe.config.default_steps}
    if pipe.adapter is None:
        reference = None  # without an adapter no picture can be read
    return pipe(prompt, reference, quiet=pipe.config.name == "nano", **{**usual, **changes})


PROMPT = "1girl, beach, waving, full body"
reference = references()[5].picture() if REFERENCE is None else Image.open(REFERENCE)
with_it, without = draw(pipe, PROMPT, reference), draw(pipe, PROMPT)
names = ["the reference", "drawn with it", "without it"]
show_row([reference, with_it.image, without.image], names, "A reference, a picture drawn with it, and one without it")

# %% [markdown]
# *The prompt says nothing of hair, eyes or clothes; the noise is the same in both. Without an adapter the
# last two are one picture.*
#
# **Guess before you read on**
#
# - The model's file has 4.2 GB. How many GB must a card have for one picture with one reference?
# - In which phase of a run is the most in use?
# - A T4 has no fast bf16, and fp16 ends at 65,504. Which one quantity must not be fp16?

# %% [markdown]
# ## Licence
#
# Anima's weights, and what you may do with pictures made from them, are under the **CircleStone
# non-commercial licence** (and the NVIDIA Open Model License for what they derive from). snapref's code
# is under Apache-2.0, which says nothing about those weights. A download shows this before the first byte:

# %%
from snapref.files.download import ANIMA, LICENCE

print(LICENCE)

# %% [markdown]
# ## The three files
#
# What is fetched, from where, and what it must be. Size and sha256 are checked before a file is used;
# a download that broke off goes on where it stopped.

# %%
for remote in ANIMA:
    size = f"{remote.tensors:>13,} bytes" if remote.tensors else "        small"
    print(f"{size}  {remote.sha256[:8] + '…' if remote.sha256 else '         '}  {remote.repository}  {remote.path}")

# %% [markdown]
# Three weight files, and two **tokenizers**: the prompt is cut twice. Qwen's pieces go through the text
# encoder, T5's ids choose the rows that the LLM adapter starts from. ComfyUI keeps both inside the
# program (`comfy/text_encoders`), where they are found when `FILES` is its folder.
#
# The sizes can be computed. This builds the three networks without memory and counts:

# %%
from snapref.anima.model import AnimaDiT
from snapref.anima.qwen import new_qwen
from snapref.config import BASE
from snapref.sampling.memory import new_codec

with torch.device("meta"):
    networks = AnimaDiT(BASE), new_qwen(BASE.text), new_codec(BASE)
for network, remote in zip(networks, ANIMA, strict=False):
    count = sum(weight.numel() for weight in network.parameters())
    print(f"{Path(remote.path).stem:20} {count:>13,} parameters × 2 bytes = {2 * count:>13,}")
    assert 2 * count == remote.tensors

# %% [markdown]
# ## What is in a file
#
# `snapref inspect FILE` reads a header, never a weight, and goes by the names of the tensors, not by the
# name of the file. Here it looks at four tiny files with Anima's own names and random numbers, written
# for this notebook:

# %%
from snapref.evaluation.full_size import write_files
from snapref.files.inspect import inspect

folder = Path(tempfile.mkdtemp())
tiny = write_files("tiny", folder)
for path in tiny.values():
    found = inspect(path)
    print(f"{path.name} is {found.words}\n    load takes it as {found.slot}=; {found.facts['parameters']:,} parameters")

# %% [markdown]
# The published base has 28 blocks and width 2,048, and its names begin with `net.`; aesthetic and turbo
# files begin with `model.diffusion_model.`, some merges with nothing. All are read. The number of blocks
# is counted in the file.

# %%
from snapref.files.inspect import read_header

entries, _ = read_header(tiny["base"])
for name in ("x_embedder.proj.1", "blocks.0.self_attn.q_proj", "blocks.0.mlp.layer1", "llm_adapter.out_proj"):
    entry = entries[f"net.{name}.weight"]
    print(f"net.{name}.weight".ljust(40), entry.dtype, entry.shape)

# %% [markdown]
# ## What a card must hold
#
# The model is the largest part, but not the only one. The plan counts weights from the config; what a
# step needs while it computes comes from running the very code on tensors that have a shape and no
# memory. The same as text: `snapref plan --card 8 --dtype fp8`.

# %%
from snapref.lab.memory_view import CARDS, memory_bars

bars = memory_bars({card.words: card.ask() for card in CARDS}, [card.gb for card in CARDS])
still(bars, "Stacked bars of GB for four ways to hold Anima, five phases each, with the line of the card")

# %% [markdown]
# *One picture of 832 × 1216 with one reference of a megapixel and the published adapter's size, guidance
# on. Computed, not measured: nothing here has been run on a GPU. The driver and a desktop take up to a GB
# more.*
#
# Read it from the top:
#
# - **The peak is the decoder's**, for a second at the end, not the 28 steps. The text encoder leaves
#   before anything is drawn.
# - **fp8** halves the blocks, no more. On 8 GB it is too near the edge: draw smaller, or offload.
# - **Offload** leaves the weights in host memory; two blocks, or one layer of the others, visit the card.
# - While drawing, 16-bit weights without offload count the adapter twice: once as it is, once merged into copies
#   of the weights.
#
# Host memory is no second limit: tensors go from the mapped file to the card one by one (with offload, what
# stays at home does count).

# %%
from snapref.sampling.advice import advice
from snapref.sampling.memory import GB, make_plan

for card, room in zip(CARDS, (15, 7.4, 7.4, 23), strict=True):  # a driver and a desktop have taken theirs
    plan = make_plan(card.ask())
    peak = plan.peak
    assert peak == plan.phases["decoding"]
    print(f"{card.words}: needs {peak / GB:.1f} GB, {room} GB free")
    if peak > room * GB:
        print("   ", advice(card.ask(), int(room * GB)))

# %% [markdown]
# That sentence is what you would read after CUDA's own "out of memory", too: the plan is made again for the
# run that failed, and what to lower is added up until it fits. Try your own card; more references lie
# side by side in the cache:

# %%
from snapref.lab.plan_board import PlanBoard

PlanBoard(card=8.0).show()

# %% [markdown]
# *A still where no kernel runs. Things to try: 6 GB with offload; 4 references; a picture half as high and
# wide. In which phase does each help, or hurt?*
#
# ## Why fp16 needs one fp32 inside
#
# A T4 computes bf16 in slow emulation, so it gets fp16; a card of compute capability 8.0 or more gets
# bf16. fp16 has 11 bits for a number's digits, bf16 has 8. Both lose small steps on large numbers:

# %%
def added(start, step, dtype):
    total = torch.tensor(start, dtype=dtype)
    for _ in range(84):  # 28 blocks × 3 sublayers, each adding a little
        total = total + torch.tensor(step, dtype=dtype)
    return total.item()


for dtype in (torch.bfloat16, torch.float16, torch.float32):
    small, large = added(2048, 1.5, dtype), added(60_000, 100, dtype)
    print(f"{dtype!s:14}  2048 + 84 × 1.5 = {small:6g}   60000 + 84 × 100 = {large:6g}")

# %% [markdown]
# 2174 is right. bf16's numbers lie 16 apart there, so nothing arrives; fp16's lie 2 apart, so each 1.5
# arrives as 2. Coarse sums blur. Infinity is worse: fp16 ends at 65,504, one such number spreads to every
# token, and the picture is black. The **residual stream** is the quantity to which 84 sublayers only ever
# add, so it is the one that can grow so far.
#
# So with fp16 weights the stream is kept in fp32, and each sublayer gets an fp16 copy. Its share of the
# memory is small: one number per token and feature, not one per weight. Here it is, in nano:

# %%
half = snapref.load("nano", dtype=torch.float16)
seen = {}


def look(module, given, result):
    seen["weights"], seen["residual stream"] = half.model.dtype, result.dtype


with half.model.blocks[3].register_forward_hook(look):
    picture = draw(half, PROMPT, reference, steps=4)
print(seen)
assert seen["residual stream"] == torch.float32

# %% [markdown]
# With bf16 weights the stream stays bf16, as it does in ComfyUI: its steps are coarse, but its range is that
# of fp32. Reading a reference with fp16 weights is done in fp32 throughout; it happens once.
#
# ## How many minutes
#
# **Nothing has been run on a GPU; this is arithmetic and one assumption.** The operations are counted by running the
# model on shapes. The assumption: between 20 % and 40 % of a card's published rate is reached. The codec counts at the
# card's fp32 rate, and on the T4 the reading of the reference too. The upper end is where the published time on an A100
# lies:

# %%
from snapref.lab.minutes import PUBLISHED_SECONDS, SHARES, TERA, published_share, seconds, work

job = work(BASE)
print(f"read the reference {job.reading / TERA:7.1f} · 10¹² operations")
print(f"28 guided steps    {job.steps / TERA:7.1f}")
print(f"codec, both ways   {job.codec / TERA:7.1f}")
print(f"published: {PUBLISHED_SECONDS} s on an A100; that is {published_share(job):.0%} of its rate\n")
for card in CARDS:
    slow, fast = (seconds(card, job, share) for share in SHARES)
    print(f"{card.words:28} {card.half:4.0f} TFLOP/s published: {fast:4.0f} to {slow:4.0f} s a picture")

# %% [markdown]
# On top of that, once per session: the download (5.6 GB: about 5 minutes at 20 MB/s) and the loading. The
# 8 GB rows take a card of 30 TFLOP/s. Offloading moves 3.9 GB over the bus at each step, about 0.4 s at
# 10 GB/s, and computes meanwhile; a step takes longer than that on such a card. fp8 saves memory, not
# time: the weights are widened before they are multiplied.
#
# ## From files to a picture in five lines
#
# This is all, for a ComfyUI folder:
#
# ```python
# import snapref
# pipe = snapref.load("anima", folder="ComfyUI", adapter="snapref_v1a")
# her = pipe.encode("her.png")
# drawn = pipe("1girl, beach, waving, full body", her)
# drawn.save("beach.png")
# ```
#
# Where the adapter's file does not state them, `place=(t, h, w)` and `captions={"cs": "…"}` have to be given. **The
# published adapter files are untested here**: their layout could not be seen, so branches, modules and ranks are read
# from the tensors, and what a file does not state has to be given. The same five with this notebook's model:

# %%
her = pipe.encode(reference) if pipe.adapter else None
drawn = draw(pipe, "1girl, city, waving, upper body", her, seed=1)
drawn.save(folder / "city.png")
again = snapref.Settings.from_png(folder / "city.png")
print(f"{drawn.image.width}×{drawn.image.height}, {again.steps} steps, seed {again.seed}, {drawn.seconds:.1f} s")
show_row([drawn.image], ["city.png"], "The character in the city, from the five lines")

# %% [markdown]
# *The saved PNG carries its settings; nothing has to be written down.*
#
# ## When the adapter's file is silent
#
# The place is where the reference sits beyond the picture; the captions are the texts that the reference
# branch reads. Another place gives keys that look right and are wrong, so neither is guessed. Here nano's
# adapter without its header:

# %%
from snapref.lab.refusals import said
from snapref.lab.tiny_files import write_fp8_nano, write_lora, write_without_header

small = snapref.load("nano")
silent = write_without_header(folder / "silent.safetensors")
print("silent.safetensors is", inspect(silent).words)
print(said(lambda: snapref.load("nano", adapter=silent), folder))

# %%
stated = {"place": small.adapter.config.place, "captions": small.adapter.config.captions}
told = snapref.load("nano", adapter=silent, **stated)
print(stated)
same = torch.equal(draw(told, PROMPT, reference).latents, draw(small, PROMPT, reference).latents)
print("the same picture as with the header, bit for bit:", same)
assert same

# %% [markdown]
# ## A LoRA in front
#
# LoRAs go into the base's weights, before the reference branches; the reference is read with them. kohya's,
# ComfyUI's and diffusers' names are read; LoKr, LoHa and DoRA are refused by name. This one is random
# numbers, to see *that* it acts; with your own:
# `pipe.add_lora("ComfyUI/models/loras/style.safetensors")`, or by name `snapref.load(…, loras=["style"])`.

# %%
lora = write_lora(folder / "random.safetensors", pipe.config)
print(inspect(lora).words)
strengths = (0, 0.7, 1)
row = []
for strength in strengths:
    name = pipe.add_lora(lora, strength)
    row.append(draw(pipe, PROMPT, reference).image)
    pipe.remove_lora(name)
show_row(row, [f"strength {s}" for s in strengths], "One prompt and noise with a random LoRA at three strengths")

# %%
after = draw(pipe, PROMPT, reference)
print("after removing it, the first picture bit for bit:", torch.equal(after.latents, with_it.latents))
assert torch.equal(after.latents, with_it.latents) or pipe.device.type != "cpu"
if pipe.adapter:
    pipe.add_lora(lora, 0.5)
    print(said(lambda: draw(pipe, PROMPT, her), folder))  # read before the LoRA was there
    pipe.remove_lora()

# %% [markdown]
# *A random LoRA only disturbs, more with more strength. What matters: it leaves no trace, and a reference read
# without it is not mixed up with one read with it.*
#
# ## fp8
#
# An fp8 file holds the linears of attention and MLP in one byte per number; they stay so in memory and are
# widened when used. Plain fp8, `weight_scale` with `comfy_quant` and the older `scale_weight` are read;
# int8, nvfp4, mxfp8 and GGUF are refused by name. Nano in fp8:

# %%
eight = snapref.load("nano", folder=write_fp8_nano(folder / "fp8"))
print("base.safetensors is", inspect(folder / "fp8" / "base.safetensors").words)
pair = [draw(model, PROMPT, reference) for model in (small, eight)]
blocks = [sum(w.nbytes for w in model.model.blocks.parameters()) for model in (small, eight)]
names = [f"{name}: blocks of {size / 1e6:.1f} MB" for name, size in zip(("fp32", "fp8"), blocks, strict=True)]
show_row([result.image for result in pair], names, "The same prompt and noise with fp32 weights and with fp8 weights")

# %% [markdown]
# *Same noise; look for the difference. Nano computes in fp32, so its blocks shrink to a third; Anima's, which
# are bf16, shrink to little more than a half.*
#
# ## What refusals look like
#
# Every one is a sentence with the file, what is wrong, and what to do. These are real: tiny files, broken
# in the usual ways.

# %%
cut, page = folder / "cut.safetensors", folder / "page.safetensors"
cut.write_bytes(tiny["base"].read_bytes()[:50_000])  # a download that broke off
page.write_text("<!DOCTYPE html><html>Please log in")  # the page, saved in place of the file
ids = tuple(Path(snapref.__file__).parent / f"weights/nano/{kind}_tokenizer.json" for kind in ("qwen", "t5"))
files = {"text_encoder": tiny["text_encoder"], "vae": tiny["vae"], "tokenizers": ids}
for base in (cut, page, lora, folder / "gone.safetensors"):
    print("•", said(lambda base=base: snapref.load("anima", base=base, **files), folder))

# %%
models = folder / "plain"
models.mkdir()
for source, name in (("base", "my-anima"), ("base", "a-merge"), ("text_encoder", "qwen"), ("vae", "vae")):
    shutil.copy(tiny[source], models / f"{name}.safetensors")
print("•", said(lambda: snapref.load("anima", folder=models), models))
print("•", said(lambda: snapref.load("anima", folder=models, base=models / "my-anima.safetensors"), models))
print("•", said(lambda: draw(pipe, PROMPT, size=(1000, 832))))
print("•", said(lambda: draw(pipe, PROMPT, strength=-1)))

# %% [markdown]
# A pickle (`.ckpt`, `.pt`) is refused unopened: it could run any program. A file that is whole but of
# another model lists what is missing, what is too much and what has another shape.
#
# ## When something goes wrong
#
# | you see | do |
# |---|---|
# | "cut short", "a web page", "a Git LFS pointer" | fetch that file again; `snapref inspect` tells |
# | "holds 2 files that are a diffusion model" | give `base=` |
# | "lacks the tokenizer of …" | `FILES` = the ComfyUI program's folder, `tokenizers=`, or a download |
# | "does not state its place" | give `place=` and `captions=` as the adapter's author documents them |
# | "out of memory" | do what the sentence says; `OFFLOAD = True` first |
# | "not finite", a block's number | the file or a LoRA is broken, or fp16 overflows: load with `dtype=torch.bfloat16` |
# | a stranger in the picture | is `ADAPTER` given? `inspect` says whether it is an adapter or a LoRA |
# | right face, wrong clothes | raise `strength`, or name the clothes; a beach suggests a swimsuit |
# | other pictures than ComfyUI | the noise of `er_sde` is made on the card there: `noise_device="cuda"` |
# | it is slow | is `pipe.device` cuda? Colab: *Runtime > Change runtime type* |

# %% [markdown]
# ## Exercises
#
# **1. Where a step is swallowed** (easy, 5 minutes). A format with `bits` binary digits rounds a sum to
# its nearest number; a tie goes to the even one. From which power of two on does adding `step`, itself a
# power of two, change nothing?
#
# <details><summary>Hint</summary>
#
# From 2^e on, numbers lie 2^(e + 1 − bits) apart; half of that is swallowed.
#
# </details>

# %% tags=["exercise"]
def swallowed_at(step, bits):
    # solution
    return step * 2**bits
    # end

# %%
from snapref.lab.exercises import check

check(swallowed_at, [((0.5, 11), 1024), ((0.5, 8), 128), ((1, 11), 2048), ((0.25, 24), 2**22)])
for dtype, bits in ((torch.float16, 11), (torch.bfloat16, 8)):
    edge = torch.tensor(0.5 * 2**bits, dtype=dtype)
    assert edge + 0.5 == edge and edge / 2 + 0.5 != edge / 2

# %% [markdown]
# **2. A block in fp8** (medium, 8 minutes). In an fp8 file the linears of attention and MLP have one byte
# per number, AdaLN and norms two. How many bytes has a block? A block has eight square or nearly square
# linears of attention (cross-attention's K and V come from the `context`), an MLP of four times the width,
# three AdaLN pairs of inner width `rank`, and four norms of `head` numbers.
#
# <details><summary>Hint</summary>
#
# In units of width²: six of attention, eight of the MLP; then two of width × context. An AdaLN pair has
# width × rank and rank × 3 · width numbers.
#
# </details>

# %% tags=["exercise"]
def fp8_block_bytes(width, context, rank, head):
    # solution
    narrow = 14 * width**2 + 2 * width * context
    wide = 3 * (width * rank + rank * 3 * width) + 4 * head
    return narrow + 2 * wide
    # end

# %%
planned = {part.name: part.bytes for part in make_plan(CARDS[1].ask()).parts}["model: blocks"] // BASE.dit.blocks
check(fp8_block_bytes, [((2048, 1024, 256, 128), planned), ((256, 64, 32, 64), 1_147_392)])

# %% [markdown]
# ## What you can now say
#
# The guesses: about 10 GB without offload; the decoder at the very end; the residual stream.
#
# - Three files and two tokenizers are Anima; headers say what a file is, and a refusal says what to do.
# - The peak of a run is the decoder's; fp8 halves the blocks, offload leaves them at home, and the plan
#   says which you need before you load anything.
# - On a T4 the weights are fp16 and the stream they add to is fp32; seconds here are computed, not
#   measured.

# %%
import diffusers
import transformers

shutil.rmtree(folder)
print(f"snapref {snapref.__version__}, torch {torch.__version__}, transformers {transformers.__version__}, "
      f"diffusers {diffusers.__version__}")
print(f"pictures above: {pipe.config.name} on {pipe.device}; GB and seconds of cards: computed on the CPU")
