# %% [markdown]
# # 6 · Many pictures
#
# After this notebook you can
#
# - put two characters into one picture, each from her own reference, with a region for each;
# - join any number of remembered pictures by hand, each with a weight, as one softmax;
# - choose between pictures read one by one and pictures stitched on one canvas;
# - show only a part of a reference: the face, the outfit.
#
# About a minute on two CPU cores.

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
# ## The result first
#
# Two pictures of two characters. The prompt says who has which hair, no more. Once every part of the new
# picture may read both references. Once the left half reads the left one, the right half the right one.

# %%
import torch

import snapref
from snapref.lab.plots import grid, still
from snapref.world.samples import references

pipe = snapref.load("nano")
left, right = references()[1], references()[6]
PROMPT = f"2girls, left {left.person.hair_colour}, right {right.person.hair_colour}, beach, smile, upper body"
pictures = [left.picture(), right.picture()]
both = pipe.encode(pictures)

run = {"size": (96, 128), "seed": 1, "quiet": True}
mixed = pipe(PROMPT, both, **run)
apart = pipe(PROMPT, both, regions=["left", "right"], **run)
still(
    grid([*pictures, mixed.image, apart.image], ["left", "right", "no regions", "regions"], zoom=2),
    "Two references, and two drawings of both characters: without regions and with one region each",
)

# %% [markdown]
# *Same noise, same prompt, same memory. Only who may read what differs. Regions help and are no wall: the tokens of
# the new picture all see each other, and something small may still cross.*
#
# **Guess before you move anything.** What happens to the girl on the right when her weight goes to 0? And
# where will the two meet when the border moves to a quarter?

# %%
from snapref.lab.two_board import TwoBoard

TwoBoard(pipe, *pictures, PROMPT, seed=1).show()

# %% [markdown]
# ## Several pictures, one softmax
#
# A token of the new picture weighs its own keys and those of every remembered picture in **one** softmax. Here
# is one token, one number wide. Its query is 1, so a logit is the key.
#
# | | e to the key | value |
# |---|---|---|
# | own | 2 | 10 |
# | picture A | 1, 3 | 4, 8 |
# | picture B | 6 | 2 |
#
# Together (2·10 + 1·4 + 3·8 + 6·2) / 12 = 5. Work it out group by group first: what does A alone give, and how
# much does A weigh in all?

# %%
from math import log

from snapref.anima.attention import KeyGroup, attend, attention_with_lse


def heads(*numbers):
    """(b, n, t, d): one row, one head, one number wide."""
    return torch.tensor(numbers).view(1, 1, -1, 1)


q = heads(1.0)
groups = {
    "own": (heads(log(2)), heads(10.0)),
    "A": (heads(log(1), log(3)), heads(4.0, 8.0)),
    "B": (heads(log(6)), heads(2.0)),
}
results = {name: attention_with_lse(q, k, v) for name, (k, v) in groups.items()}
for name, (out, lse) in results.items():
    print(f"{name:4s} gives {out.item():5.2f} and weighs e^lse = {lse.exp().item():.2f}")

# %% [markdown]
# A fast kernel gives exactly these two: a result, and the logarithm of the summed weights (`lse`, log-sum-exp).
# From them the whole is put together:
#
# $$\text{out} = \sum_g s_g \, \text{out}_g, \qquad s = \operatorname{softmax}_g(\text{lse}_g + \log w_g)$$
#
# with a weight $w_g$ for each picture. No mask, no second look at the keys. The model takes the pictures in one after
# the other, and a softmax of two is a sigmoid: the newcomer's share is $\sigma(\text{lse}_g + \log w_g - \text{lse})$.

# %%
outs, lses = (torch.stack(side) for side in zip(*results.values(), strict=True))
whole = (lses.softmax(dim=0)[..., None] * outs).sum(dim=0)  # all weights are 1, and log 1 is 0
print("joined:", whole.item())
assert abs(whole.item() - 5) < 1e-6

memory = [KeyGroup(*groups["A"]), KeyGroup(*groups["B"])]
assert torch.allclose(attend(q, *groups["own"], memory), whole)  # the model's own function

# %% [markdown]
# **What a weight means.** Weight 2 adds log 2 to the logits of that picture's keys. That is the picture, given
# twice:

# %%
twice = attend(q, *groups["own"], [KeyGroup(*groups["A"]), KeyGroup(*groups["B"]), KeyGroup(*groups["B"])])
weighted = attend(q, *groups["own"], [KeyGroup(*groups["A"]), KeyGroup(*groups["B"], log_weight=log(2))])
print(f"B twice: {twice.item():.4f}   B with weight 2: {weighted.item():.4f}")
assert torch.allclose(twice, weighted)

# %% [markdown]
# And weight 0 is not a very small weight. A picture of weight 0 is gone before any kernel sees it; when all are
# gone, the run is the base model's, bit for bit:

# %%
scene = "1girl, snow, waving, smile, full body"
none = pipe(scene, seed=3, quiet=True)
silent = pipe(scene, both, weights=(0, 0), seed=3, quiet=True)
assert torch.equal(none.latents, silent.latents)
print("weights 0 and 0: the base model, to the bit")

# %% [markdown]
# ## Two views of one character
#
# A portrait shows the eyes, a full body the shoes. Read both and the new picture can look things up in either.
# The last four differ in their weights alone.

# %%
from dataclasses import replace

from snapref.world import render

shown = replace(left.scene, expression="smile", pose="standing")
views = [render(left.person, replace(shown, framing=f)) for f in ("portrait", "full body")]
two = pipe.encode(views)
print(f"tokens per picture {two.tokens}, together {two.nbytes / 1e3:.0f} kB")

weights = [(1, 0), (1, 1), (0.5, 0.5), (0, 1)]
drawn = [pipe(scene, two, weights=w, seed=5, quiet=True).image for w in weights]
names = ["portrait view", "full-body view", *(f"{a:g} and {b:g}" for a, b in weights)]
still(grid([*views, *drawn], names, columns=6), "Two views of a character and drawings with four pairs of weights")

# %% [markdown]
# *With the portrait at full weight loose green ends of hair appear beside her hoodie; at (½, ½) and without the
# portrait they do not. So (½, ½) is not (1, 1): the new picture weighs its own keys against all of the remembered ones,
# and two whole pictures pull twice as hard as one.*
#
# ## One by one, or on one canvas?
#
# Each picture is read **alone**, at the same place, and their keys are laid side by side. None has seen the other,
# so each can be kept, weighed or dropped by itself. The other way is to stitch them into one canvas and read that.
# Then they see each other while they are read, they share the area limit, and there is one weight for all.

# %%
from snapref.reference.picture import load_picture
from snapref.reference.stitch import stitch

canvas = stitch([load_picture(view) for view in views])
stitched = pipe.encode(views, layout="stitch", ref_megapixels=0.025)
print(f"separate: {two.tokens} tokens; stitched: {stitched.tokens} tokens in one group")
one_by_one = pipe(scene, two, seed=5, quiet=True)
on_canvas = pipe(scene, stitched, seed=5, quiet=True)
still(
    grid([canvas, one_by_one.image, on_canvas.image], ["the canvas", "read one by one", "read as one"], zoom=2),
    "A stitched canvas, a drawing from separate pictures, a drawing from the canvas",
)

# %% [markdown]
# *Read as one, her hair grows long and loses its fringe; read one by one, only a few loose ends appear. nano's adapter
# was only ever trained on single pictures, so both are new to it.*
#
# ## Who stands where
#
# A region belongs to the *new* picture: only its tokens read that reference. No mask is needed. The queries of those
# tokens alone attend to the picture's keys, and what they find is merged into what they have. By hand, for the
# picture above:

# %%
from snapref.reference.area import read_area

rows, columns = 96 // 16, 128 // 16
areas = [read_area("left", "left"), read_area("right", (0.5, 0, 1, 1))]
for name, area in zip("AB", areas, strict=True):
    tokens = area.covered(rows, columns).flatten().nonzero()[:, 0]
    print(f"tokens that read picture {name}: {len(tokens)} of {rows * columns}, first {tokens[:5].tolist()}")

# %% [markdown]
# Is that the same as one attention with a mask? Random numbers, four queries, two pictures, the first read by
# tokens 0 and 1, the second by 1 and 2. Token 3 reads neither.

# %%
from torch.nn.functional import scaled_dot_product_attention

generator = torch.Generator().manual_seed(0)
q, k, v, ka, va, kb, vb = torch.randn(7, 1, 2, 4, 8, generator=generator)
a, b = torch.tensor([True, True, False, False]), torch.tensor([False, True, True, False])
merged = attend(q, k, v, [KeyGroup(ka, va, tokens=a), KeyGroup(kb, vb, tokens=b)])

mask = torch.cat([torch.ones(4, 4).bool(), a[:, None].expand(4, 4), b[:, None].expand(4, 4)], dim=1)
masked = scaled_dot_product_attention(q, torch.cat([k, ka, kb], 2), torch.cat([v, va, vb], 2), mask)
print(f"largest difference: {(merged - masked).abs().max():.1e}")
assert torch.allclose(merged, masked, atol=1e-6)

# %% [markdown]
# A region that covers everything is no region at all:

# %%
everywhere = pipe(PROMPT, both, regions=["all", None], **run)
assert torch.equal(everywhere.latents, mixed.latents)

# %% [markdown]
# Users of other adapters do without: they stitch both pictures into one canvas and let the prompt say who is left
# and who is right. Then all tokens read all of the canvas, and nothing but the words keeps the two apart.

# %%
pair = stitch([load_picture(picture) for picture in pictures])
on_one = pipe(PROMPT, pictures, layout="stitch", ref_megapixels=0.025, **run)
still(
    grid([pair, on_one.image, apart.image], ["both on one canvas", "read as one", "a region for each"], zoom=2),
    "A canvas of two characters, a drawing from it, and the drawing with one region for each",
)

# %% [markdown]
# ## A part of a reference
#
# The other mask belongs to the *reference*: what lies outside is made white before the picture is read, and its
# tokens are deleted, so nothing of it can leak. A transparent PNG does the same by itself.

# %%
face, outfit = (0.0, 0.0, 1.0, 0.62), (0.0, 0.5, 1.0, 1.0)  # boxes: left, top, right, bottom, in shares
parts = {"all of it": None, "upper part": face, "lower part": outfit}
tokens, drawn = [], []
for name, part in parts.items():
    memory = pipe.encode([views[1]], ref_masks=[part])
    tokens.append(f"{name}: {memory.tokens[0]} tokens")
    drawn.append(pipe(scene, memory, seed=5, quiet=True).image)
still(
    grid([views[1], *drawn], ["the reference", *tokens], zoom=2),
    "Drawings from all, from the upper and from the lower part of a reference",
)

# %% [markdown]
# Does the hidden part leak? Paint it black and read again:

# %%
painted = views[1].copy()
painted[64:] = 0  # rows below the upper half
halves = [pipe.encode([picture], ref_masks=["top"]) for picture in (views[1], painted)]
first, second = ([side for pair in half.layers for side in pair] for half in halves)
same = all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
print("the same memory, bit for bit:", same)
assert same

# %% [markdown]
# ## Exercise 1 · What a picture weighs (easy, 5 minutes)
#
# Give the share of the whole that each group gets, from the groups' `lse` and weights.


# %% tags=["exercise"]
def shares(lse, weights):
    # solution
    return (torch.tensor(lse) + torch.tensor(weights).log()).softmax(dim=0).tolist()
    # end


# %%
from snapref.lab.exercises import check

check(
    shares,
    [
        (([log(2.0), log(4.0), log(6.0)], [1.0, 1.0, 1.0]), [1 / 6, 1 / 3, 1 / 2]),
        (([log(2.0), log(4.0)], [1.0, 2.0]), [0.2, 0.8]),
        (([0.0, 0.0], [1.0, 0.0]), [1.0, 0.0]),
    ],
)

# %% [markdown]
# ## Exercise 2 · Half as loud (medium, 8 minutes)
#
# Two pictures of one character pull twice as hard as one. Which weight must each of `n` pictures have so that
# together they weigh as one does, if all have the same `lse`? Then say what `lse` one picture must have to outweigh
# the token's own keys, of log-sum-exp `own`, three to one.


# %% tags=["exercise"]
def balance(n, own):
    # solution
    return 1 / n, own + log(3)
    # end


# %%
check(balance, [((1, 0.0), (1.0, log(3))), ((4, 2.0), (0.25, 2 + log(3)))])

# %% [markdown]
# ## Exercise 3 · Classes of tokens (harder, 12 minutes)
#
# No kernel gives a gradient through the log-sum-exp, so in training the model lays keys side by side instead: one
# attention for all tokens that read the same pictures. Which are they? `readers` holds, per picture, which tokens
# read it. Group the tokens: a dictionary from the tuple of pictures they read to the list of their numbers.
#
# <details><summary>Hint</summary>
#
# Walk over the tokens and build the tuple of pictures for each; `dict.setdefault` collects.
# </details>


# %% tags=["exercise"]
def classes_of(readers):
    # solution
    found = {}
    for token in range(len(readers[0])):
        read = tuple(i for i, picture in enumerate(readers) if picture[token])
        found.setdefault(read, []).append(token)
    return found
    # end


# %%
check(
    classes_of,
    [
        (([[1, 1, 0], [0, 1, 1]],), {(0,): [0], (0, 1): [1], (1,): [2]}),
        (([[0, 1, 0, 1]],), {(): [0, 2], (0,): [1, 3]}),
    ],
)

# %% [markdown]
# ## What you can now say
#
# - Any number of remembered pictures are one softmax: join the results by their log-sum-exp. Weight $w$ adds $\log w$;
#   2 is twice, 0 is not there.
# - Pictures read one by one can be kept, weighed and dropped one by one. On a canvas they have seen each other.
# - A region says which tokens of the new picture read a reference; a mask on the reference says what there is to read.
#   Neither needs a mask inside the attention.

# %%
import platform

print(f"snapref {snapref.__version__}, torch {torch.__version__}")
print(f"Python {platform.python_version()} on {platform.system()}, device {pipe.device}")
