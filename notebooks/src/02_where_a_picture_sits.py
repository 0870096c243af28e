# %% [markdown]
# # 2 · Where a picture sits
#
# A transformer has no eyes: two tokens are near each other only because their positions say so. After this
# notebook you can
#
# - turn a vector by its position with pencil and paper, and say why only distances count;
# - tell what a model that has watched video makes of a picture that comes in as one more frame;
# - choose a place for a reference that serves every picture size, and prove that it does.
#
# One to two minutes on two CPU cores. nano is so small that a T4 helps little.

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
# One character that nano was never trained on, one prompt, one noise. The prompt names only the scene. What
# differs is the road by which the reference picture comes in.

# %%
import math

import torch

import snapref
from snapref.lab import place_runs, place_view, plots

pipe = snapref.load("nano")
reference, asked, prompt = next(place_runs.held_out_pairs(1, pipe.config.default_size, seed=1))
drawn = place_runs.four_ways(pipe, reference, prompt)
print("prompt:", prompt)
names = ["the reference", *drawn]
plots.still(plots.grid([reference, *drawn.values()], names, zoom=2), "Five pictures: " + ", ".join(names))

# %% [markdown]
# *From the left: the picture to be read; the prompt without it; the picture as the second frame of a clip;
# the picture at a place of its own, given to the base model, which was never taught to look there; the same
# place with the adapter that was.*

# %% [markdown]
# **Guess before you move it.** The slider below moves the reference down, row by row. At row 0 it lies
# exactly on top of the picture being drawn, which is 8 rows high. The adapter was trained with the reference
# at row 32. At which rows will the character come across?

# %%
trial = place_runs.trial(pipe, 16)
stops = place_view.stops(pipe, pipe.encode(reference), prompt, trial, steps=16)
place_view.PlaceSlider(pipe, stops).show()

# %% [markdown]
# *One prompt, one noise; only the place of the reference differs. One picture can flatter a row: keep your
# guess, the slider comes back at the end, with numbers.*

# %% [markdown]
# ## Three numbers by hand
#
# Attention compares a query q with a key k by their dot product. Before that, RoPE turns each of them by an
# angle that grows with its position. Let q and k be single pairs of numbers, and the angle a quarter turn per
# place, so that one turn is (x, y) → (−y, x).

# %%
def turned(pair, place):
    x, y = pair
    for _ in range(place):
        x, y = -y, x
    return x, y


q, k = (1, 2), (3, 1)
for at_q, at_k in ((0, 0), (1, 0), (2, 1), (7, 6)):
    a, b = turned(q, at_q), turned(k, at_k)
    print(f"q at {at_q}, k at {at_k}:  {a} · {b} = {a[0] * b[0] + a[1] * b[1]}")

# %% [markdown]
# At the same place 5. One place apart −5, whether at 1 and 0, at 2 and 1 or at 7 and 6. Turning both by the
# same angle turns the whole drawing and changes nothing in it: **the dot product sees only the difference of
# the places.** Smaller steps, 0.6 radians, show it better:

# %%
plots.still(
    place_view.arrows(q, k, step=0.6, places=[(1, 0), (3, 2), (6, 5)]),
    "Three drawings of the arrows q and k; both turn, the angle between them stays",
)

# %% [markdown]
# *Three times one place apart: three times the same angle between the arrows.* Now all pairs of places at
# once. A complex number is a pair that turns by multiplication.

# %%
turn = torch.exp(0.6j * torch.arange(16))
table = ((1 + 2j) * turn[:, None] * ((3 + 1j) * turn).conj()).real
assert torch.allclose(table[1:, 1:], table[:-1, :-1], atol=1e-5), "not the same along a diagonal"

figure = plots.figure(4.2, 3.3)
axes = figure.subplots()
figure.colorbar(axes.imshow(table, cmap=plots.DIVERGING, vmin=-7.1, vmax=7.1), label="q · k")
axes.set(xlabel="place of k", ylabel="place of q")
plots.still(figure, "Heat map of q·k over the places of q and k: every diagonal has one colour")

# %% [markdown]
# *Along a diagonal the difference of the places is the same, and so is the colour. The stripes return after
# 2π / 0.6 ≈ 10 places: a full turn is no turn. One pair alone takes 10 places for none.*

# %% [markdown]
# ## A head of 64 numbers
#
# A head therefore uses many pairs: fast ones tell neighbours apart, slow ones far places. One of nano's heads
# has 64 numbers, so 32 pairs. Which number goes with which? Put a one at the front and turn it.

# %%
from snapref.anima.rope import apply_rope, axis_frequencies, rope_angles

dit = pipe.config.dit
one = torch.zeros(1, 1, 1, dit.head_dim)  # (b, n, t, d): one row, one head, one token
one[..., 0] = 1
two_frames_on = rope_angles(dit, 1, 1, 1, place=(2.0, 0.0, 0.0))
after = apply_rope(one, two_frames_on).flatten()
print({i: round(after[i].item(), 4) for i in after.nonzero().flatten().tolist()})
assert torch.allclose(after[[0, 32]], torch.tensor([math.cos(2), math.sin(2)]))

# %% [markdown]
# Number 0 goes with number 32, half a head away: cos 2 and sin 2. Other models pair neighbours, 0 with 1.
# Weights loaded with the wrong rule raise no error; they only draw noise.
#
# A token of a picture has three coordinates, frame t, row h and column w. The 32 pairs are shared out among
# them.

# %%
speeds = axis_frequencies(dit)
print("pairs for t, h, w:", [len(speed) for speed in speeds])
plots.still(place_view.wavelengths(dit), "Patches per full turn of each pair, for time, rows and columns")

# %% [markdown]
# *Patches per full turn, on a logarithmic scale. The fastest pair of each axis turns once in 6.3 patches; the
# slowest pair for rows or columns needs 100,000.*
#
# That is four times what θ^(−2i/d) with the usual θ = 10,000 would give. Rows and columns are stretched by
# the **NTK ratio** r = 4, which replaces θ by θ · r^(d/(d−2)). Why this odd exponent?

# %%
from dataclasses import replace

plain = axis_frequencies(replace(dit, rope_scale=(1.0, 1.0, 1.0)))
slower = speeds[1] / plain[1]
print("rows, speed with r = 4 over speed without:", [round(s, 3) for s in slower.tolist()])
assert abs(slower[0] - 1) < 1e-12 and abs(slower[-1] - 1 / 4) < 1e-12
assert torch.equal(speeds[0], plain[0])  # time has r = 1

# %% [markdown]
# Because with it the slowest pair becomes exactly r times slower, while the fastest stays as it is. A model
# trained on small pictures is stretched over pictures four times as high, and still tells neighbours apart as
# well as before.

# %% [markdown]
# ## Ten lines
#
# That is all of RoPE: speeds from θ and r, angles as places times speeds, and the turn of every pair.

# %%
def angles_at(places, widths=(24, 20, 20), ratios=(1.0, 4.0, 4.0)):
    """places (tokens, 3) → angles (tokens, 32)"""
    columns = []
    for place, d, r in zip(places.double().T, widths, ratios, strict=True):
        theta = 10_000 * r ** (d / (d - 2))
        columns.append(place[:, None] * theta ** (-torch.arange(0, d, 2).double() / d))
    return torch.cat(columns, dim=1).float()


def rotate(x, angles):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)


# %% [markdown]
# The same from the package, for two frames of 8 × 6 tokens that start at a place with fractions:

# %%
start = torch.tensor([1.0, 32.5, -0.25])
places = start + torch.cartesian_prod(*(torch.arange(n) for n in (2, 8, 6)))
angles = rope_angles(dit, 2, 8, 6, place=tuple(start.tolist()))
x = torch.randn(1, 4, 96, 64, generator=torch.Generator().manual_seed(0))
assert torch.equal(angles_at(places), angles)
assert torch.allclose(rotate(x, angles), apply_rope(x, angles), atol=1e-6)
print(f"equal for {len(places)} tokens")

# %% [markdown]
# ## Near and far
#
# Take q = k, with all pairs equally long. Then q·k is the mean cosine over the 32 pairs: 1 for the same
# place, less and less further away. This is the landscape that every token finds around itself before
# anything is learnt.

# %%
rows, columns = torch.linspace(-40, 40, 161), torch.linspace(-15, 15, 61)
figure = plots.figure(2.7, 3.5)
axes = figure.subplots()
image = axes.contourf(columns, rows, place_view.closeness(dit, 0, rows[:, None], columns), levels=10)
figure.colorbar(image, label="q·k / |q||k|")
axes.set(xlabel="columns away", ylabel="rows away", aspect="equal")
plots.still(figure, "Heat map of closeness: one bright spot at no displacement, ripples on all sides")

# %% [markdown]
# *One bright spot in a plaid of ripples. The ripples are the fastest pairs, back at the start every 2π ≈ 6.3
# patches.*

# %%
steps = {"next row": (0, 1, 0), "next frame": (1, 0, 0), "far corner": (0, 7, 5), "32 rows down": (0, 32, 0)}
for name, step in steps.items():
    print(f"{name:13s} {step!s:12s} {place_view.closeness(dit, *step):.3f}")

# %% [markdown]
# Read the numbers: **the next frame is as near as the next row.** Thirty-two rows down is about as near as
# the far corner of the picture itself: the slow pairs have hardly turned. A model can learn to look there.

# %%
plots.still(
    place_view.neighbours(
        dit, (2, 3), (8, 6), {"on top": (0, 0, 0), "next frame": (1, 0, 0), "32 rows down": (0, 32, 0)}
    ),
    "What a token finds near: its twin, on top and in the next frame, but not 32 rows down",
)

# %% [markdown]
# *The target token at row 2, column 3 (red frame), and how near it finds each of 48 reference tokens. On top
# and in the next frame its own twin stands out; from 32 rows away only a ripple does.*

# %% [markdown]
# Does a trained model take ripples for neighbours? If so, the base without an adapter should draw her too
# low, by what is left of the place after whole ripples of 6.3 rows. Guess where her head will be:

# %%
rows = (4, 8, 16)
ghosts = place_runs.base_alone(pipe, reference, prompt, rows, steps=10)
left_over = [f"row {row}: {row % (2 * math.pi):.1f} too low" for row in rows]
plots.still(plots.grid(ghosts, left_over), "Pictures by the base alone; " + ", ".join(left_over))

# %% [markdown]
# *The base alone, with the reference at three places; its prompt asked for another scene. Where her head sits
# lower by the number below, and parts of her return 6.3 rows higher, a ripple was taken for a neighbour (at row
# 16 only the copy 6.3 rows higher has a head). An adapter must teach the model to ask what a token shows, not
# only where it is.*

# %% [markdown]
# ## Second frame, or a place of its own
#
# So there are two seats for a reference. The plan shows rows downwards; a later frame is drawn beside the
# first.

# %%
plots.still(
    place_view.seats((8, 6), [(1, 0, 0), (0, 32, 0)]),
    "A plan: the target at the top left, one reference beside it in the next frame, one 32 rows below",
)

# %% [markdown]
# *Blue, the picture being drawn. Red, the seats: one frame later at the same rows and columns, or in the same
# frame 32 rows down.* The first looks natural, and the base knows it: about one in five of nano's training
# batches were clips of two frames. Give it a clean first frame and let it draw the second:

# %%
from snapref import world
from snapref.rivals import ExtraFrame, draw

person = world.character(2, "heldout")
scene = world.scene(2, background="forest", framing="full body", pose="waving")
first, second = world.render_clip(person, scene, seed=2)
clip = ExtraFrame(pipe.model, place_runs.latent_of(pipe, first), frame=0)  # the given frame stands before
continued = draw(pipe, clip, ["1girl, forest, waving, full body"], steps=16)[0]
captions = ["given: frame 1", "drawn: frame 2", "the world's frame 2"]
plots.still(plots.grid([first, continued, second], captions, zoom=2), "A clip, continued by the model")

# %% [markdown]
# *Left, what was given; middle, what nano makes of noise and a prompt that names no hair and no clothes;
# right, how the world itself went on.* She comes across without any adapter, and with her the trees and the
# pose, if not every detail: a second frame continues the first.

# %% [markdown]
# That is fine for a film. But we want her **somewhere else**. Now several held-out characters, each asked for
# in another scene and pose. How far is the result, pixel by pixel, from the reference, and how far from what
# was asked for?

# %%
count = 8
distances = place_runs.distances(pipe, count, steps=10)
print(f"RMS distance in 0..255, n = {count}     to the reference   to what was asked")
for road, values in distances.items():
    (copied, fit), error = values.mean(0), values.std(0, ddof=1) / count**0.5
    print(f"{road:33s} {copied:10.1f} ± {error[0]:.1f} {fit:15.1f} ± {error[1]:.1f}")

# %% [markdown]
# Means with their standard errors. A road that copies comes out small on the left; one that obeys the prompt
# and knows the character comes out small on the right. It is not quite fair, for only the last road has an
# adapter. For Anima, the maker of one extra-frame node without an adapter reports copied poses; nano, in the
# first picture above, copied the background.

# %% [markdown]
# ## What the second frame costs
#
# In a clip every token reads every token, the reference's too. So what the reference offers should change
# with the noise. Does it? Here are its keys, block by block, for one reference and two noises.

# %%
noises = torch.randn(2, 1, 16, 1, 16, 12, generator=torch.Generator().manual_seed(0)).to(pipe.device)
words, half = pipe.contexts([prompt])[0], torch.tensor([0.5], device=pipe.device)
route = ExtraFrame(pipe.model, place_runs.latent_of(pipe, reference))
with torch.no_grad():
    one, other = (pipe.model.keys_values(*route.clip(noise, half), words) for noise in noises)
changes = [float((a[0] - b[0])[:, :, 48:].abs().max()) for a, b in zip(one, other, strict=True)]
print("largest change of a key, by block:", [f"{c:.3g}" for c in changes])
assert changes[0] == 0 and min(changes[1:]) > 0

# %% [markdown]
# In the first block nothing, for nobody has read anybody yet. From the second on, everything moves. Nothing
# can be kept: twice the tokens at every step. For Anima, at full size, published times on an A100 are 7.7 s
# without a reference, 14.4 s with one in every step, 8.9 s with one that is remembered.

# %% [markdown]
# ## One place for every size
#
# The second seat has a second virtue. A clip's frames must all have one size, so another picture size means
# another reference. One could also sit *directly below* the target, but where that is depends on its height.
# **A fixed place beyond any target depends on nothing.**

# %%
sizes = [(128, 96), (96, 128)]
results = [pipe(prompt, reference=reference, size=size, steps=8, quiet=True) for size in sizes]
tall, wide = (result.reference for result in results)
for (k1, v1), (k2, v2) in zip(tall.layers, wide.layers, strict=True):
    assert torch.equal(k1, k2) and torch.equal(v1, v2)
print(f"read for {sizes[0]} and for {sizes[1]}: {tall.nbytes:,} bytes, every one the same")

# %% [markdown]
# Each run read the picture anew, and both got the same bits. So reading it once is enough, for any prompt,
# any noise and any size. Now the position itself: it is computed, not looked up in a table, so **fractions
# are exact**. And since only differences count, it should not matter if everybody moves.

# %%
half_step, full_step = (rope_angles(dit, 1, 1, 1, place=(0, h, 0)) for h in (0.5, 1.0))
assert torch.allclose(apply_rope(apply_rope(x, half_step), half_step), apply_rope(x, full_step), atol=1e-5)

memory = pipe.encode(reference)
shift = (0.0, 3.75, -1.5)
with torch.no_grad():
    here = pipe.model(noises[0], half, words, memory=memory.memory())
    after = place_runs.moved(memory, dit, shift)
    there = pipe.model(noises[0], half, words, place=shift, memory=after.memory())
print(f"both moved by {shift}: the velocity differs by {float((here - there).abs().max()):.1e}")
assert torch.allclose(here, there, atol=1e-3)

# %% [markdown]
# Only rounding is left. `place_runs.moved` did not read the picture again; it turned the keys it had. You
# will write it yourself in exercise 3, and it is how the slider got all its places from one reading.

# %% [markdown]
# ## The slider again
#
# Now with numbers: the share of self-attention that the reference gets, and the loss at sigma 0.8, for 16
# held-out characters. At each place everybody reads first her own picture, then her neighbour's.

# %%
none = float(place_runs.losses(pipe, trial, None).mean())
place_view.PlaceSlider(pipe, stops, none).show()
print(f"n = 16, loss without a reference {none:.3f}")
print("row   attention   loss: her own   another's")
for stop in stops:
    print(f"{stop.row:3d} {stop.share:11.1%} {stop.right:15.3f} {stop.wrong:11.3f}")

# %% [markdown]
# *Where blue lies below the dotted line, the picture helps; the gap between blue and red says that it is*
# this *picture that helps. Blue is lowest and the gap widest at row 32, where the adapter was trained; what it
# learnt there also serves at some other rows, 16 above all.* Was your guess right?

# %% [markdown]
# ## Exercises
#
# **1 · How tall may a picture be?** (easy, 3 minutes) A target of n pixels has n / (factor · patch) rows of
# tokens, from row 0. The reference begins at row `place`. How many pixels high may a target be without
# reaching it? Try nano (place 32) and Anima (place 512); both have factor 8 and patch 2.
#
# <details><summary>Hint</summary>
#
# The last free row is `place − 1`, so exactly `place` rows are free.
#
# </details>

# %% tags=["exercise"]
def tallest(place, factor, patch):
    # solution
    return place * factor * patch
    # end


# %%
from snapref.lab.exercises import check

check(tallest, [((32, 8, 2), 512), ((512, 8, 2), 8192)], "Count rows of tokens, then pixels per token.")

# %% [markdown]
# **2 · How near?** (medium, 5 minutes) Write the landscape of *Near and far* yourself: the mean cosine over
# all pairs of a head for a displacement of t frames, h rows and w columns. `speeds` is the list of three
# tensors from above.
#
# <details><summary>Hint</summary>
#
# `torch.cat` the three products of displacement and speeds; that gives 32 angles.
#
# </details>

# %% tags=["exercise"]
def near(t, h, w):
    # solution
    angles = torch.cat([step * speed for step, speed in zip((t, h, w), speeds, strict=True)])
    return float(angles.cos().mean())
    # end


# %%
cases = [((0, 0, 0), 1.0), *((step, float(place_view.closeness(dit, *step))) for step in steps.values())]
check(near, cases, "A displacement of nothing gives 32 cosines of 0, so 1.")

# %% [markdown]
# **3 · Move a memory** (harder, 10 minutes) A picture was read at one place; you want its keys at another,
# without reading it again. Its tokens see only each other, so the values stay. And the keys? Use `apply_rope`
# and `rope_angles`. The check compares with a picture that really was read there.
#
# <details><summary>Hint</summary>
#
# Angles add up, and all tokens move alike: turn every key once more, by the angles of one token at place
# `by`.
#
# </details>

# %% tags=["exercise"]
def move_keys(keys, by):
    """keys (b, n, r, d), after RoPE; by: (t, h, w) patches"""
    # solution
    return apply_rope(keys, rope_angles(dit, 1, 1, 1, place=by))
    # end


# %%
from snapref.reference.encode import encode_reference

latent, words = place_runs.latent_of(pipe, reference), place_runs.caption(pipe)
before, after = (
    encode_reference(pipe.model, pipe.adapter, [latent], words, place=place).layers[-1][0].cpu()
    for place in ((0, 32, 0), (1, 32, 5.5))
)
check(move_keys, [((before, (1, 0, 5.5)), after)], "How do a token's angles differ?", tolerance=1e-3)

# %% [markdown]
# ## What you can now say
#
# - RoPE turns queries and keys by their position; a dot product sees only the difference, whole or
#   fractional.
# - For a model that knows video, the next frame is next door: it continues the picture, and nothing can be
#   kept.
# - A fixed place beyond every target is learnt once, read once, and serves every prompt, noise and size.
#
# Next: [read once, remember](03_read_once_remember.ipynb).

# %%
print(f"snapref {snapref.__version__}, torch {torch.__version__}; all numbers here from: {pipe.device}")
