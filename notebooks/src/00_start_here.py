# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 00 · A picture, read once
#
# Show a model one picture of a character, name a scene, and it draws her there. After this notebook
# you can
#
# 1. do that in three lines of Python, and say what the model was told and what it was not;
# 2. compute by hand how a remembered picture enters attention, and what *strength* does to it;
# 3. say what reading the picture once saves, and what it costs to keep.
#
# Time: about 20 minutes to read and try, one minute of computing on two CPU cores. No GPU is needed.

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
# The model is **nano**: the architecture of the published Anima model, built small and trained on a
# world of drawn characters that this package draws itself. It comes with the package.

# %%
import math

import numpy as np
import torch

import snapref
from snapref.lab.board import Board
from snapref.lab.plots import grid, still

pipe = snapref.load("nano")
print(f"{sum(w.numel() for w in pipe.model.parameters()):,} parameters on {pipe.device}")

# %% [markdown]
# ## The result first

# %%
settings = snapref.Settings(steps=16)
board = Board(pipe, start=5, settings=settings)
board.show()

# %% [markdown]
# *Left: the one picture the model was shown. Middle: what it draws for the prompt after reading that
# picture. Right: the same prompt without it. Both start from the same random noise. The prompt says
# nothing about hair, eyes or clothes.*
#
# **Guess before you move anything**
#
# - At strength 0, will the middle be *nearly* or *exactly* the right picture?
# - You pick another character. What happens to the right picture?
# - You move the strength from 1 to 0.9. Must the model read the picture again?

# %% [markdown]
# ## Three lines
#
# The same without a widget. The reference may be a file, a PIL picture or an array; this one is the
# sixth of the pictures in the repository's `data_samples`. (`quiet=True` leaves the progress bar
# out.)

# %%
from snapref.world.samples import references

stranger = references()[5]
reference, prompt = stranger.picture(), "1girl, beach, waving, full body"
drawn = pipe(prompt, reference=reference, settings=settings, quiet=True)
drawn.image

# %% [markdown]
# What would one have to type to describe her? The drawn world knows, for it drew her:

# %%
from snapref.world import parse, split_of, tags

print("her tags:  ", ", ".join(tags(stranger.person)))
print("the prompt:", prompt)
print("the prompt speaks of:", ", ".join(parse(prompt)), "| her split:", split_of(stranger.person))

# %% [markdown]
# The prompt names the scene and nothing else. `heldout` means that nothing here was ever trained on
# this set of attributes: neither the *base*, which draws from prompts, nor the *adapter*, which lets
# the base read pictures.

# %% [markdown]
# ## Without the picture
#
# From the prompt alone the base has to make somebody up. Three noises show whom.

# %%
cache = pipe.encode(reference)
without = pipe([prompt] * 3, settings=settings, quiet=True).images
with_it = pipe([prompt] * 3, reference=cache, settings=settings, quiet=True).images
names = [f"{kind} {i}" for kind in ("without", "with") for i in (1, 2, 3)]
still(grid(without + with_it, names, columns=3), "Three noises without the reference above, with it below")

# %% [markdown]
# *Top: the prompt alone, three noises. Bottom: the same noises, with the reference. Compare the rows:
# what belongs to the scene comes from the prompt in both; what belongs to her can only come from the
# picture.*
#
# How near are the colours? The drawn world can draw her there itself, so there is a true picture to
# compare with. ΔE is a colour difference; about 2 is just visible.

# %%
from snapref.world import Scene, delta_e, render, render_regions

there = Scene(background="beach", pose="waving", framing="full body")
truth, regions = render(stranger.person, there), render_regions(stranger.person, there)


def distance(picture, part):
    drawn_colour, true_colour = (np.median(np.asarray(p)[regions[part]], axis=0) for p in (picture, truth))
    return delta_e(drawn_colour, true_colour)


for part in ("hair", "outfit"):
    far = [np.mean([distance(picture, part) for picture in row]) for row in (without, with_it)]
    print(f"{part}: mean ΔE to the true colour {far[0]:.0f} without the reference, {far[1]:.0f} with it")

# %% [markdown]
# Each colour is the median over the pixels where the true picture shows her hair or her outfit. Three
# pictures are an example, not a measurement: the README has the measured table, with intervals.

# %% [markdown]
# ## Read once
#
# In attention every token (here a patch of 16 × 16 pixels) compares its query with the keys of all
# tokens and takes an average of their values. `pipe.encode` ran the picture through the model once,
# by itself, and kept the **keys and values** of every block: the cache. Of the picture, the model
# sees nothing else later.

# %%
blocks, (keys, values) = len(cache.layers), cache.layers[0]
_, heads, tokens, head_width = keys.shape
print(f"{blocks} blocks × 2 × {heads} heads × {tokens} tokens × {head_width} numbers × 4 bytes")
print(f"= {blocks * 2 * heads * tokens * head_width * 4:,} bytes; the cache says {cache.nbytes:,}")
assert blocks * 2 * keys.numel() * 4 == cache.nbytes

# %% [markdown]
# Nothing in it depends on the prompt, the noise or the size of the picture to come. So one cache
# serves any number of scenes, and drawing from it gives what drawing from the picture gives. The test
# compares the latents, the numbers that become the pixels, bit for bit.

# %%
again = pipe(prompt, reference=cache, settings=settings, quiet=True)
assert torch.equal(again.latents, drawn.latents)

city = "1girl, city, waving, smile, upper body"
wide = pipe(city, reference=cache, settings=settings, seed=3, size=(96, 128), quiet=True)
still(grid([wide.image], zoom=2), "Her in the city, waving, in a picture wider than high")

# %% [markdown]
# *Another scene in another shape, from the same reading. Colours and clothes come along, the spikes of her hair
# only in part: nano draws wide pictures less well.* What did that save? Attention needs the
# reference's keys and values at every step. Without a cache they would be computed again each time,
# as if the picture were part of the canvas.

# %%
import time

begun = time.perf_counter()
pipe.encode(reference)
reading = time.perf_counter() - begun
print(f"reading the picture once: {reading:.3f} s; drawing 16 steps with the cache: {again.seconds:.2f} s")
print(f"reading it again at each later step would add {15 * reading:.2f} s to every picture")

# %% [markdown]
# Reading once is possible for one reason: the reference never looks at the picture being drawn. It
# attends to itself only, and it is always told that it is clean (σ = 0), whatever the step. Notebook
# 03 breaks both and shows the price.

# %% [markdown]
# ## The smallest case, by hand
#
# One query, `q = 1`, one number wide. It meets two keys of its own and one remembered key:
#
# | | key | weight e^(q·k) | value |
# |---|---|---|---|
# | own | 0 | 1 | 0 |
# | own | ln 3 | 3 | 4 |
# | remembered | ln 4 | 4 | 7 |
#
# Attention is the average of the values by these weights. On paper: what is it without the remembered
# row, and with it?

# %%
without_memory = (1 * 0 + 3 * 4) / (1 + 3)
with_memory = (1 * 0 + 3 * 4 + 4 * 7) / (1 + 3 + 4)
half_strength = (1 * 0 + 3 * 4 + 0.5 * 4 * 7) / (1 + 3 + 0.5 * 4)
print(without_memory, with_memory, round(half_strength, 4))

# %% [markdown]
# The third number is **strength** 0.5: the remembered weight 4 counts half. Since
# `0.5 · e^k = e^(k + ln 0.5)`, that is adding `ln 0.5` to the logit q·k of the remembered key.
# Strength 2 counts every remembered key twice; strength 0 leaves them out.

# %%
from snapref.lab.plots import BLUE, ORANGE, SKY, figure

strength = np.array([0, 0.25, 0.5, 1, 2, 4])
none = 0 * strength
weights = {"own, value 0": none + 1, "own, value 4": none + 3, "remembered, value 7": 4 * strength}
picture, below = figure(6.4, 3.0), none
axes = picture.subplots()
for (name, weight), colour in zip(weights.items(), (SKY, BLUE, ORANGE), strict=True):
    share = weight / sum(weights.values())
    axes.bar([f"{s:g}" for s in strength], share, bottom=below, color=colour, label=name)
    below = below + share
axes.set(xlabel="strength", ylabel="share of the attention", xlim=(-0.6, 10))
axes.legend(loc="right", frameon=False)
still(picture, "Stacked bars: the remembered key's share grows from 0 to 0.8 as strength goes from 0 to 4")

# %% [markdown]
# *Each bar sums to 1. The remembered key takes its share from the two own keys, which keep their ratio
# of 1 to 3. At strength 1 it has half; at strength 4 it has four fifths, never all.*

# %% [markdown]
# ## The same in ten lines
#
# Now for any number of keys. `t` counts the tokens being drawn, `r` the reference's, `d` the width of
# one head.

# %%
def attend_with_memory(q, k, v, k_ref, v_ref, strength=1.0):
    """q, k, v: (b, n, t, d); k_ref, v_ref: (b, n, r, d) → (b, n, t, d)."""
    scale = q.shape[-1] ** -0.5
    own = q @ k.mT * scale  # (b, n, t, t)
    remembered = q @ k_ref.mT * scale + math.log(strength)  # (b, n, t, r)
    shares = torch.cat([own, remembered], dim=-1).softmax(dim=-1)  # (b, n, t, t + r)
    return shares @ torch.cat([v, v_ref], dim=-2)


def column(*numbers):
    return torch.tensor(numbers).reshape(1, 1, -1, 1)


small = [column(1.0), column(0.0, math.log(3)), column(0.0, 4.0), column(math.log(4)), column(7.0)]
print(attend_with_memory(*small).item(), attend_with_memory(*small, strength=0.5).item())
torch.testing.assert_close(attend_with_memory(*small), column(5.0))

# %% [markdown]
# The package does the same, faster: with strength 1 in one fused call, otherwise one call for each
# group of keys and a merge. Here it reads the cache's own keys in the fourth block, at three
# strengths.

# %%
from snapref.anima.attention import KeyGroup, attend

k_ref, v_ref = cache.layers[3]
q, k, v = (torch.randn_like(k_ref) for _ in range(3))
for strength in (0.5, 1.0, 2.0):
    ours = attend_with_memory(q, k, v, k_ref, v_ref, strength)
    theirs = attend(q, k, v, [KeyGroup(k_ref, v_ref, math.log(strength))])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert cache.memory(strength=strength)[3][0].log_weight == math.log(strength)
    print(f"strength {strength}: largest difference {(ours - theirs).abs().max():.1e}")

# %% [markdown]
# `cache.memory(strength=…)` is what the pipeline hands to the model: for every block, this group of
# keys. That is the whole mechanism. Two small trained branches (low-rank additions to the weights)
# teach the model to offer useful keys and to use them.

# %% [markdown]
# ## Strength, in the model

# %%
strengths = (0, 0.5, 1, 2)
row = [pipe(prompt, reference=cache, settings=settings, strength=s, quiet=True) for s in strengths]
names = [f"strength {s}" for s in strengths]
still(grid([result.image for result in row], names), "One prompt and one noise at four strengths")

# %% [markdown]
# *One prompt, one noise, four strengths. The branches were trained at 1; the others only move the
# logits. Already 0.5 carries her, and 2 adds little but smudges.*
#
# Off means off: at strength 0 the reference and the branches are left out, and the picture is the
# base's to the bit.

# %%
base = pipe(prompt, settings=settings, quiet=True)
assert torch.equal(row[0].latents, base.latents)
print("largest difference to the base:", (row[0].latents - base.latents).abs().max().item())

# %% [markdown]
# ## The wrong picture
#
# Same prompt, same noise, somebody else's picture. And one picture from outside the drawn world, with
# a tag that nano has never heard.

# %%
from snapref.lab.notices import notices

y, x = np.mgrid[0:1:128j, 0:1:96j]
hills = np.stack([0.3 + 0.6 * y, 0.5 + 0.2 * np.sin(9 * x + 6 * y), 0.9 - 0.7 * y], axis=-1)
others = [references()[i].picture() for i in (0, 8)] + [hills]
answers = [pipe(prompt, reference=other, settings=settings, quiet=True).image for other in others]
captions = ["reference 1", "reference 9", "no character"] + [f"drawn with {i}" for i in ("1", "9", "that")]
still(grid(others + answers, captions, columns=3), "Three references above, what is drawn with each below")
print(*notices(pipe.config, ["1girl, beech, waving"], [hills]), sep="\n")

# %% [markdown]
# *Top: three references. Bottom: the same prompt and noise with each.* The model cannot know that a
# reference is the wrong one: it reads what it is given. A picture that shows nobody has little to
# offer but colours.
#
# What nano does not know it says in a sentence, and goes on. The board prints the same sentences
# below its pictures.

# %% [markdown]
# ## The widget again
#
# The same board with another character, in another scene, at half strength.

# %%
scene = "1girl, snow, arms up, smile, full body"
board = Board(pipe, scene, start=8, settings=settings.replace(strength=0.5))
board.show()

# %% [markdown]
# The answers to the three guesses:
#
# - **Exactly.** At strength 0 nothing is read, and the assertion above compared every bit.
# - **Nothing.** The right picture never reads a reference; the board does not even draw it again.
# - **No.** Strength is added to the logits while drawing. The line beside the bar says *not read
#   again*.
#
# Now try what the prompt does when it contradicts the picture: add `red hair`.

# %% [markdown]
# ## Exercises
#
# **1. Twice** (easy, 5 minutes). Strength 2 is said to act as if every remembered key stood there
# twice. Show it: give the answer for strength 2 with `attend_with_memory` at strength 1.
#
# <details><summary>Hint</summary>
#
# `torch.cat` along the axis that counts the tokens, `dim=-2`, for the keys and for the values.
#
# </details>

# %% tags=["exercise"]
def twice(q, k, v, k_ref, v_ref):
    # solution
    k_twice, v_twice = torch.cat([k_ref, k_ref], dim=-2), torch.cat([v_ref, v_ref], dim=-2)
    return attend_with_memory(q, k, v, k_twice, v_twice)
    # end

# %%
from snapref.lab.exercises import check

case = (q, k, v, k_ref, v_ref)
check(twice, [(case, attend(q, k, v, [KeyGroup(k_ref, v_ref, math.log(2))]))], tolerance=1e-4)

# %% [markdown]
# **2. Which strength?** (medium, 5 minutes). The own keys of a query weigh `own` together, the
# remembered ones `remembered`. Which strength gives the remembered keys the share `share` of the
# attention? In the smallest case, with 4 and 4, half the attention takes strength 1.
#
# <details><summary>Hint</summary>
#
# Solve `s · remembered / (own + s · remembered) = share` for s.
#
# </details>

# %% tags=["exercise"]
def strength_for(share, own, remembered):
    # solution
    return share / (1 - share) * own / remembered
    # end

# %%
check(strength_for, [((0.5, 4, 4), 1.0), ((0.8, 4, 4), 4.0), ((0.5, 1, 10), 0.1), ((0.0, 4, 4), 0.0)])

# %% [markdown]
# **3. What it costs to keep** (easy, 5 minutes). How many bytes does the cache of one picture take? A
# token covers 16 × 16 pixels. The second case is the full-size model at its usual picture, with 2
# bytes for each number.
#
# <details><summary>Hint</summary>
#
# Every block keeps a key and a value for every token, each `width` numbers long (heads × head width).
#
# </details>

# %% tags=["exercise"]
def cache_bytes(height, width_in_pixels, blocks, width, bytes_per_number):
    # solution
    tokens = (height // 16) * (width_in_pixels // 16)
    return blocks * 2 * tokens * width * bytes_per_number
    # end

# %%
check(cache_bytes, [((128, 96, 6, 256, 4), cache.nbytes), ((1216, 832, 28, 2048, 2), 906_493_952)])

# %% [markdown]
# ## What you can now say
#
# - A reference is read once: its keys and values stay, and every later picture attends to them beside
#   its own.
# - Strength s adds log s to the remembered logits: 2 is every key twice, 0 is the base model to the
#   bit.
# - The prompt names the scene; who she is comes from the picture, right or wrong.

# %%
import ipywidgets

print(f"snapref {snapref.__version__}, torch {torch.__version__}, ipywidgets {ipywidgets.__version__}")
print(f"all numbers above come from this machine's {pipe.device}")
