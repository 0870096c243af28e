# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 1 · Anima opened
#
# A picture model is one function: a noisy latent, a noise level and a text go in, a direction comes out.
# After this notebook you can
#
# - follow a picture through all of it, from latent to tokens to velocity, and compute every part by hand;
# - say what sigma does in each block, and where the words of a prompt enter;
# - account for all 2,091,068,928 weights of Anima, and tell whether an implementation of it is right.
#
# About a minute on two CPU cores. A T4 was not timed; nano is too small to gain much from one.

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
# nano is Anima made small: the same layers in the same order, fewer and narrower. Here it draws a picture in
# 12 steps. At every step we keep what it was given, and what it took the finished picture to be.

# %%
import torch

import snapref
from snapref.lab.plots import COLOURS, DIVERGING, SEQUENTIAL, figure, grid, still

torch.set_grad_enabled(False)
torch.manual_seed(0)
pipe = snapref.load("nano", adapter=False, dtype=torch.float32)
model, config, device = pipe.model, pipe.config, pipe.device
PROMPT, STEPS = "1girl, short hair, forest, waving, full body", 12
seen = []  # one (sigma, what went in, what it took the picture to be) for each step


def watch(step, sigma, latent, guess):
    seen.append((float(sigma), latent.clone(), guess.clone()))


drawn = pipe(PROMPT, seed=3, steps=STEPS, sampler="euler", callback=watch, quiet=True)
shown = [0, 5, 8, 11]
pictures = [pipe.decode(seen[i][which])[0] for which in (1, 2) for i in shown]
captions = [f"sigma {seen[i][0]:.2f}" for i in shown] + [f"guess {i + 1}" for i in shown]
still(
    grid(pictures, captions, columns=len(shown)),
    "Above, noise that becomes a picture; below, the picture that the model expected at each step",
)

# %% [markdown]
# *Above: what the model was given, with its share of noise, sigma. Below: the finished picture as the model
# guessed it from that alone. The first guess is made from pure noise and the prompt.*
#
# **Guess before you go on.** At every step the same model runs with the same weights. What share of them has
# to do with the noise level? And what share ever meets the words? Keep your answers for the budget below.

# %% [markdown]
# ## The whole of it on one map
#
# Everything in this notebook is on this map. Blue is the picture, pink the noise level, green the text.

# %%
from snapref.lab.model_map import model_map

still(
    model_map(config),
    "Map: latent, patches, blocks of self-attention, cross-attention and MLP, final layer, velocity; "
    "sigma gives shift, scale and gate to each; the prompt enters through cross-attention",
)

# %% [markdown]
# *One block, drawn once, runs several times over with different weights. Sigma reaches every sublayer; the
# text reaches one of the three.*
#
# As a call it is one line. Noise goes from 1 (nothing else) to 0 (a clean picture). The model returns the
# **velocity**, noise minus picture: the direction in which the latent moves as sigma grows.

# %%
level, noisy = seen[3][0], seen[3][1]  # the fourth step of the run above
sigma = torch.tensor([level], device=device)
context = pipe.contexts([PROMPT])[0]
velocity = model(noisy, sigma, context)
for name, value in {"latent": noisy, "sigma": sigma, "context": context, "velocity": velocity}.items():
    print(f"{name:10}{tuple(value.shape)}")


# %% [markdown]
# (batch, channels, frames, height, width): a picture is a clip of one frame. We now open the call and go
# through it from left to right. At the end our own lines must give these same numbers. To compare, one
# measure throughout: the largest difference, as a share of the largest number.

# %%
def apart(ours, theirs):
    return float((ours - theirs).abs().max() / theirs.abs().max())


assert apart(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0])) == 0.25

# %% [markdown]
# ## Latent and patches
#
# The codec has made the picture eight times smaller on each side, and given it 16 channels instead of
# three. These are what the model sees:

# %%
clean = drawn.latents[0, :, 0].cpu()  # (16, h, w)
sheet = figure(8.4, 3.0)
places = sheet.subplots(2, 9).flatten()
spread = float(clean.abs().max())
for place, channel in zip([*places[1:9], *places[10:18]], clean, strict=True):
    place.imshow(channel, cmap=DIVERGING, vmin=-spread, vmax=spread)
places[0].imshow(drawn.image)
for place in places:
    place.axis("off")
still(sheet, "A picture, and its latent as sixteen small maps of positive and negative numbers")

# %% [markdown]
# *Left: the picture. Right: its latent, 16 maps of 16 × 12 numbers; red is positive, blue negative, white
# zero. The figure shows the drawing when it was finished; the model works on the noisy one.*
#
# A transformer wants a list of tokens. Each token is a square of 2 × 2 latent pixels with all their
# channels. In which order? A small latent with two channels, small enough to read:

# %%
from snapref.anima.model import Patches

small = torch.arange(1, 17).view(1, 2, 1, 2, 4)  # (b, c, f, h, w)
print("channel 0:", small[0, 0, 0].tolist())
print("channel 1:", small[0, 1, 0].tolist())
for i, token in enumerate(Patches(2)(small)[0].tolist()):
    print(f"token {i}:   {token}")


# %% [markdown]
# Four numbers of channel 0, row by row, then four of channel 1. On the way out Anima uses another order,
# with the channel running fastest. Whoever mixes the two gets no error, only confetti.
#
# Anima adds a 17th channel of zeros: in training it marked padding, and nobody pads a picture that is being
# drawn. So a token starts with 17 · 4 = 68 numbers, and one matrix makes it as wide as the model.

# %%
def to_tokens(latent):
    """(1, 16, 1, h, w) → (1, tokens, width)"""
    with_mask = torch.cat((latent, torch.zeros_like(latent[:, :1])), dim=1)[0, :, 0]  # (17, h, w)
    patches = with_mask.unfold(1, 2, 2).unfold(2, 2, 2)  # (17, h/2, w/2, 2, 2)
    numbers = patches.permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)  # (tokens, 68)
    return (numbers @ model.x_embedder.proj[1].weight.T)[None]


x, emb, lora, angles = model.enter(noisy, sigma, (0.0, 0.0, 0.0))
assert apart(to_tokens(noisy), x) < 1e-4
print(f"{x.shape[1]} tokens of {x.shape[2]} numbers, the same as the model's")

# %% [markdown]
# ## Sigma
#
# One number between 0 and 1 has to reach every layer. A single number is poor food for a matrix, so it is
# first spread over many: cosines and sines of sigma at different speeds, from 1 down to 1/10,000. With four
# numbers and sigma = 0.5 one can check it on a pocket calculator:

# %%
from math import cos, sin

from snapref.anima.model import Sinusoid

four = [cos(0.5), cos(0.005), sin(0.5), sin(0.005)]  # speeds 1 and 1/100
print([round(number, 4) for number in four])
assert torch.allclose(Sinusoid(4)(torch.tensor([0.5])), torch.tensor(four))

# %% [markdown]
# Cosines first, then sines. Note that sigma is not multiplied by 1000, as many other models do.

# %%
sigmas = torch.linspace(0, 1, 21)
waves = Sinusoid(config.dit.width)(sigmas)  # (21, width)
sheet = figure(6.0, 2.3, dpi=75)
axes = sheet.subplots()
image = axes.imshow(waves, cmap=DIVERGING, aspect="auto", extent=(0, config.dit.width, 1, 0), vmin=-1, vmax=1)
sheet.colorbar(image)
axes.set(xlabel="number (left half cosines, right half sines)", ylabel="sigma")
still(sheet, "Heat map of the sinusoid: only the fast numbers at the start of each half change with sigma")

# %% [markdown]
# *Each row is what the model gets for one sigma. Sigma never exceeds 1, so even the fastest wave makes less
# than a sixth of a turn. Few numbers move much; the slow ones are constant for all practical purposes.*
#
# Two things are made of it. A norm scales it to an average square of 1: the embedding **e**. A small MLP
# makes three times as many numbers of it: the shared vector **L**, the same for all blocks.

# %%
silu = torch.nn.functional.silu


def rms_norm(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def spread_out(sigma):
    """(1,) → e (1, width) and L (1, 3 · width)"""
    s = Sinusoid(config.dit.width)(sigma)
    shared = model.t_embedder[1]
    L = silu(s @ shared.linear_1.weight.T) @ shared.linear_2.weight.T
    return rms_norm(s, model.t_embedding_norm.weight), L


e, L = spread_out(sigma)
assert apart(e, emb[:, 0]) < 1e-4 and apart(L, lora[:, 0]) < 1e-4
print(f"e: {tuple(e.shape)}, L: {tuple(L.shape)}; both equal to the model's")

# %% [markdown]
# ## AdaLN-LoRA: how sigma speaks to a layer
#
# Before each sublayer the token is normalised: its own mean is taken away, and it is divided by its own
# spread. Then sigma stretches and moves it, (1 + scale) · norm + shift. Four numbers by hand:

# %%
from snapref.anima.block import modulated_norm

token = torch.tensor([[[1.0, 1.0, 5.0, 5.0]]])  # mean 3, spread 2: normalised −1 −1 1 1
shift, scale = torch.full((1, 1, 4), 2.0), torch.full((1, 1, 4), 0.5)
moved = modulated_norm(token, shift, scale).flatten()
print([round(number, 4) for number in moved.tolist()])
assert torch.allclose(moved, torch.tensor([0.5, 0.5, 3.5, 3.5]), atol=1e-4)

# %% [markdown]
# −1 becomes 2 − 1.5 = 0.5, and 1 becomes 3.5. A third vector, the **gate**, says how much of the sublayer's
# answer is added to the token. At gate 0 the layer is off.
#
# Where do shift, scale and gate come from? From e through two matrices with a narrow waist, plus L. The first
# block's self-attention:

# %%
pair = model.blocks[0].adaln_modulation_self_attn
waist = silu(e) @ pair[1].weight.T  # (1, adaln_rank)
m = waist @ pair[2].weight.T + L  # (1, 3 · width)
assert apart(m, (pair(emb) + lora)[:, 0]) < 1e-4
shift, scale, gate = m.chunk(3, dim=-1)
print(f"waist {waist.shape[-1]}; shift, scale and gate of {gate.shape[-1]} numbers each")

# %% [markdown]
# That is the **LoRA** in the name: what a layer says about sigma is one shared vector plus a low-rank
# difference of its own. Without the waist, Anima's 84 sublayers would need this many weights:

# %%
D, rank, sublayers = 2048, 256, 3 * 28
full, narrow = sublayers * D * 3 * D, sublayers * (D * rank + rank * 3 * D)
print(f"full matrices {full:,}; through the waist {narrow:,}; saved {full - narrow:,}")

# %% [markdown]
# More than 0.8 billion saved, of what would otherwise be a model of three billion. What do the gates do when
# sigma falls? Here is the mean size of each, from the weights in our hands:

# %%
highest = 0.0
names = {"self-attention": "self_attn", "cross-attention": "cross_attn", "MLP": "mlp"}
levels = torch.linspace(0, 1, 33, device=device)
_, e_all, L_all, _ = model.enter(noisy.expand(33, -1, -1, -1, -1), levels, (0.0, 0.0, 0.0))
sheet = figure(8.4, 3.0, dpi=85)
for axes, (name, key) in zip(sheet.subplots(1, 3, sharey=True), names.items(), strict=True):
    for number, block in enumerate(model.blocks, 1):
        gates = (getattr(block, f"adaln_modulation_{key}")(e_all) + L_all).chunk(3, dim=-1)[2]
        size = gates.abs().mean((1, 2)).cpu()
        highest = max(highest, float(size.max()))
        axes.plot(levels.cpu(), size, color=COLOURS[number], label=f"block {number}")
    axes.set(title=name, xlabel="sigma", ylim=(0, 1.05 * highest))
sheet.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False, fontsize=9)
still(sheet, "Mean size of the gates over sigma, for each block and each kind of sublayer")

# %% [markdown]
# *One line per block: how far the gate of each sublayer is open on average, for every sigma. Where a line
# slopes, the layer works harder at some noise levels than at others. This is all that a block learns of the
# step it is in.*

# %% [markdown]
# ## Self-attention: tokens of the picture read each other
#
# Each token makes a **query** (what am I looking for?), a **key** (what do I offer?) and a **value** (what do
# I hand over?), split over several heads. Queries and keys are normed, then turned by their place in the
# picture; that turn, RoPE, is the subject of notebook 2. Then a softmax.

# %%
from snapref.anima.rope import apply_rope, cos_sin

heads = config.dit.heads


def split(y, weight):
    """(1, t, c) through a matrix, cut into heads: (1, n, t, d)"""
    return (y @ weight.T).unflatten(-1, (heads, -1)).transpose(1, 2)


def look(q, k):
    """Who reads whom: every row adds up to 1. (1, n, t, r)"""
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(dim=-1)


def self_attention(part, y, angles):
    q = apply_rope(rms_norm(split(y, part.q_proj.weight), part.q_norm.weight), angles)
    k = apply_rope(rms_norm(split(y, part.k_proj.weight), part.k_norm.weight), angles)
    answer = look(q, k) @ split(y, part.v_proj.weight)  # (1, n, t, d)
    return answer.transpose(1, 2).flatten(2) @ part.output_proj.weight.T, look(q, k)


# %% [markdown]
# The sublayer as a whole: norm, shift and scale; the attention; its answer through the gate, added to what
# the token was. The package's `attend_to_picture` does the same.

# %%
def layer_norm(x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-6).sqrt()


def modulate(x, pair, e, L):
    """The tokens ready for the sublayer, and the gate for its answer."""
    shift, scale, gate = (silu(e) @ pair[1].weight.T @ pair[2].weight.T + L).chunk(3, dim=-1)
    return layer_norm(x) * (1 + scale) + shift, gate


block = model.blocks[0]
y, gate = modulate(x, block.adaln_modulation_self_attn, e, L)
answer, weights = self_attention(block.self_attn, y, angles)
after_self = x + gate * answer
theirs = block.attend_to_picture(x, emb, lora, cos_sin(angles), (), {})[0]
print(f"by hand and by the package: {apart(after_self, theirs):.0e} apart")
assert apart(after_self, theirs) < 1e-4

# %% [markdown]
# The softmax has left us a table: who read whom. For one token in the middle of the picture:

# %%
rows, columns = (side // 2 for side in noisy.shape[-2:])
chosen = (rows // 2) * columns + columns // 2  # a token in the middle
maps = weights[0, :, chosen].unflatten(-1, (rows, columns)).cpu()  # (n, h, w)
sheet = figure(8.0, 2.6)
for i, axes in enumerate(sheet.subplots(1, heads)):
    axes.imshow(maps[i], cmap=SEQUENTIAL)
    axes.plot(columns // 2, rows // 2, "s", color="white", markerfacecolor="none", markersize=12)
    axes.set(title=f"head {i + 1}", xticks=[], yticks=[])
still(sheet, "For one token in the middle, how much each head reads of every other token")


# %% [markdown]
# *What the token in the white frame reads, in the first block, head by head; yellow is much. Each head has
# its own habit. Nobody is forbidden to read anybody: the whole picture is one sentence.*

# %% [markdown]
# ## Cross-attention: the picture reads the text
#
# The same formula with two differences. Keys and values come from the context, the rows that the text became.
# And nothing is turned: a word has no place in the picture.

# %%
def cross_attention(part, y, context):
    q = rms_norm(split(y, part.q_proj.weight), part.q_norm.weight)
    k = rms_norm(split(context, part.k_proj.weight), part.k_norm.weight)
    answer = look(q, k) @ split(context, part.v_proj.weight)
    return answer.transpose(1, 2).flatten(2) @ part.output_proj.weight.T, look(q, k)


y, gate = modulate(after_self, block.adaln_modulation_cross_attn, e, L)
answer, weights = cross_attention(block.cross_attn, y, context)
after_cross = after_self + gate * answer
assert apart(after_cross, block.attend_to_text(after_self, emb, lora, context, {})) < 1e-4

words = int(context[0].any(dim=-1).sum())
print(f"{words} rows of the context come from the prompt, {context.shape[1] - words} are zero")
print(f"share of the attention that goes to zero rows: {float(weights[..., words:].sum(-1).mean()):.0%}")

# %% [markdown]
# There is **no mask**. A row of zeros has the key zero, so its logit is 0, and e⁰ = 1 enters the sum like any
# other; its value is zero, so it says nothing. Empty rows take their share and turn the text down. The model
# was trained with exactly this many. What happens when someone tidies them away?

# %%
tidied = model(noisy, sigma, context[:, :words])
change = float((tidied - velocity).norm() / velocity.norm())
print(f"without the zero rows the velocity changes by {change:.1%}")
assert change > 1e-5


# %% [markdown]
# No error, no warning, another picture. Padding is part of the mathematics here.

# %% [markdown]
# ## MLP: each token thinks for itself
#
# Two matrices with GELU between them, four times as wide in the middle. No token sees another one.

# %%
def gelu(x):
    return x * (1 + torch.erf(x / 2**0.5)) / 2


def mlp(part, y):
    return gelu(y @ part.layer1.weight.T) @ part.layer2.weight.T


y, gate = modulate(after_cross, block.adaln_modulation_mlp, e, L)
after_mlp = after_cross + gate * mlp(block.mlp, y)
assert apart(after_mlp, block(x, emb, lora, context, angles)) < 1e-4
print("one whole block by hand: equal")


# %% [markdown]
# ## The way out, and everything together
#
# After the last block: once more norm, shift and scale (no gate: nothing is left to be added to), then one
# matrix to 64 numbers per token. They are laid back on the grid, now with the channel fastest.

# %%
def to_latent(x, e, L):
    part = model.final_layer
    m = silu(e) @ part.adaln_modulation[1].weight.T @ part.adaln_modulation[2].weight.T
    shift, scale = (m + L[:, : m.shape[-1]]).chunk(2, dim=-1)
    numbers = (layer_norm(x) * (1 + scale) + shift) @ part.linear.weight.T  # (1, tokens, 64)
    patches = numbers[0].view(rows, columns, 2, 2, 16)
    return patches.permute(4, 0, 2, 1, 3).reshape(1, 16, 1, 2 * rows, 2 * columns)


def by_hand(latent, sigma, context):
    x, (e, L) = to_tokens(latent), spread_out(sigma)
    for block in model.blocks:
        y, gate = modulate(x, block.adaln_modulation_self_attn, e, L)
        x = x + gate * self_attention(block.self_attn, y, angles)[0]
        y, gate = modulate(x, block.adaln_modulation_cross_attn, e, L)
        x = x + gate * cross_attention(block.cross_attn, y, context)[0]
        y, gate = modulate(x, block.adaln_modulation_mlp, e, L)
        x = x + gate * mlp(block.mlp, y)
    return to_latent(x, e, L)


# %% [markdown]
# That is the whole transformer of Anima. Is it the function from the start?

# %%
ours = by_hand(noisy, sigma, context)
print(f"by hand and by the package: {apart(ours, velocity):.0e} apart")
assert apart(ours, velocity) < 1e-4

# %% [markdown]
# ## The prompt: read by one model, asked by another
#
# One thing on the map is left: the green line. A prompt is cut into tokens twice. A language model, Qwen3,
# reads it and gives a vector for each of *its* tokens. A second tokenizer, T5's, gives only numbers: each
# looks up a vector, and asks Qwen's with it.

# %%
tokens = pipe.text.tokenize(PROMPT)
qwen_words = [pipe.text.qwen_tokenizer.decode([i]).strip() for i in tokens.qwen_ids]
t5_words = [pipe.text.t5_tokenizer.decode([i]).strip() for i in tokens.t5_ids]
print(f"Qwen, {len(qwen_words)} tokens:", " | ".join(qwen_words))
print(f"T5,   {len(t5_words)} tokens:", " | ".join(t5_words))

# %% [markdown]
# The asking is done by the **LLM adapter**, a little transformer that is part of Anima's file. Its layers are
# those you know, without sigma: self-attention among the T5 rows, cross-attention to Qwen's, an MLP. The first
# look of its first block, opened:

# %%
source = pipe.text.qwen(torch.tensor([tokens.qwen_ids], device=device)).last_hidden_state  # (1, r, c')
adapter = model.llm_adapter
first = adapter.blocks[0]
rows_in = adapter.embed(torch.tensor([tokens.t5_ids], device=device))  # (1, k, c)
normed = first.norm_self_attn(rows_in)
asking = first.norm_cross_attn(rows_in + first.self_attn(normed, normed, None))

# %% [markdown]
# Now `asking` is what the T5 rows ask with, and `source` what Qwen has understood. The look between them:

# %%
from snapref.anima.rope import sequence_angles


def in_line(y, weight, norm):
    """Heads of a sequence, normed and turned by their place in it."""
    y = (y @ weight.T).unflatten(-1, (config.text.adapter_heads, -1)).transpose(1, 2)
    return apply_rope(norm(y), sequence_angles(y.shape[2], y.shape[3], device=device))


part = first.cross_attn
q, k = in_line(asking, part.q_proj.weight, part.q_norm), in_line(source, part.k_proj.weight, part.k_norm)
read = look(q, k)  # (1, n, k, r)
value = (source @ part.v_proj.weight.T).unflatten(-1, (part.heads, -1)).transpose(1, 2)
answer = (read @ value).transpose(1, 2).flatten(2) @ part.o_proj.weight.T
assert apart(answer, part(asking, source, None)) < 1e-4

sheet = figure(5.6, 4.2, dpi=85)
axes = sheet.subplots()
sheet.colorbar(axes.imshow(read[0].mean(0).cpu(), cmap=SEQUENTIAL, vmin=0), label="share read, mean of the heads")
axes.set_xticks(range(len(qwen_words)), qwen_words, rotation=60, ha="right")
axes.set_yticks(range(len(t5_words)), t5_words)
axes.set(xlabel="Qwen's token is read", ylabel="T5's token asks")
still(sheet, "Heat map: how much each T5 token reads of each Qwen token in the adapter's first block")

# %% [markdown]
# *Rows ask, columns answer; every row adds up to 1. Both sequences are turned by their own places (RoPE
# along a line), so a token can ask for what stands at its own spot.*
#
# After the blocks come one matrix and one norm; then zero rows are added up to a fixed number. The result is
# the context that cross-attention reads:

# %%
answers = adapter(torch.tensor([tokens.t5_ids], device=device), source)  # (1, k, c)
missing = config.text.context_rows - answers.shape[1]
padded = torch.cat((answers, answers.new_zeros(1, missing, answers.shape[2])), dim=1)
assert apart(padded, context) < 1e-4
print(f"{answers.shape[1]} rows of answers, {padded.shape[1]} with zeros: the context")

# %% [markdown]
# ## The budget, to the last weight
#
# The same classes at full size make Anima. On torch's `meta` device a model has shapes and no numbers, so we
# can build all of it without its 4.18 GB, and count.

# %%
from snapref.config import BASE
from snapref.lab.budget_view import budget, budget_lines, budget_picture

counts = budget(BASE)
print(budget_lines(counts))
assert sum(counts.values()) == 2_091_068_928

# %% [markdown]
# Each line follows from the shapes you have met. Width D = 2048, context 1024, head width 128, waist 256:

# %%
D, C, head, narrow = 2048, 1024, 128, 256
one_block = {
    "self-attention": 4 * D * D + 2 * head,  # q, k, v, output; two norms
    "cross-attention": 2 * D * D + 2 * C * D + 2 * head,  # q, output; k and v from the context
    "MLP": 2 * 4 * D * D,
    "AdaLN-LoRA": 3 * (D * narrow + narrow * 3 * D),
}
for name, size in one_block.items():
    print(f"{name:16}{size:>12,} × 28 = {28 * size:>13,}")
    assert 28 * size == counts[name]

# %%
still(
    budget_picture(BASE),
    "Shares of the weights: nearly all in the blocks; inside a block nearly half in the MLP",
)

# %% [markdown]
# *Top: the model. Bottom: one of its 28 equal blocks. Back to your guesses: AdaLN-LoRA, the sigma MLP, one
# norm and a corner of the final layer know the step. Of the transformer, only k and v of cross-attention meet
# the context itself; all others know the words by hearsay.*

# %%
knows_sigma = counts["AdaLN-LoRA"] + counts["sigma MLP"] + counts["sigma norm"] + narrow * (D + 2 * D)
sees_words = 28 * (2 * C * D + head)
total = sum(counts.values())
print(f"weights that sigma goes through: {knows_sigma:,} ({knows_sigma / total:.1%})")
print(f"weights that meet the context itself: {sees_words:,} ({sees_words / total:.1%})")

# %% [markdown]
# ## Somebody else's Anima
#
# Two implementations by different people that agree to the last digits are better evidence than any test of
# our own. The diffusers library has Anima too, under its base model's name, Cosmos. It calls the layers
# otherwise; `split_for_diffusers` translates. The same weights, the same latent:

# %%
from snapref.files.keys import split_for_diffusers, to_diffusers

transformer, conditioner = split_for_diffusers(model.state_dict())
for name in ("blocks.0.self_attn.q_proj.weight", "blocks.0.mlp.layer1.weight", "final_layer.linear.weight"):
    print(f"{name:36}{to_diffusers(name)}")
    assert torch.equal(transformer[to_diffusers(name)], model.state_dict()[name])

# %% [markdown]
# `diffusers_twin` builds their transformer of our size and hands it these weights, refusing any name that is
# missing or left over.

# %%
from snapref.evaluation.bench_forward import diffusers_twin, run_twin

try:
    import diffusers

    twin = diffusers_twin(model)
except Exception as reason:  # an older release fails in its own way, at the import, an argument or a weight's name
    print(f"Not compared: the installed diffusers is absent or too old ({type(reason).__name__}).")
    print("Run `pip install -U diffusers`, restart, and run this again. Where the package's tests ran, the two")
    print("agreed within 2e-5 of the largest number.")
else:
    theirs = run_twin(twin, noisy, sigma, context)
    print(f"diffusers {diffusers.__version__}: {apart(velocity, theirs):.0e} apart from the package,")
    print(f"and {apart(ours, theirs):.0e} apart from the lines of this notebook")
    assert apart(velocity, theirs) < 1e-3

# %% [markdown]
# What remains is rounding: sums taken in another order. The package's tests hold this for other widths, for
# clips of several frames and for the LLM adapter.

# %% [markdown]
# ## The picture again, now by hand
#
# Velocity is noise minus picture, and the latent is sigma · noise + (1 − sigma) · picture. So the picture the
# model expects is latent − sigma · velocity, and a step from one sigma to the next moves along the velocity.
# The prompt is compared with an empty one and exaggerated (guidance). Nine lines of our own, from noise to
# picture:

# %%
levels = pipe.levels(drawn.settings, None)
empty, strength = pipe.contexts([""])[0], drawn.settings.guidance
latent = seen[0][1]  # the noise that the package started from
for now, following in zip(levels[:-1].tolist(), levels[1:].tolist(), strict=True):
    here = torch.tensor([now], device=device)
    unprompted, prompted = by_hand(latent, here, empty), by_hand(latent, here, context)
    latent = latent + (following - now) * (unprompted + strength * (prompted - unprompted))

print(f"the two latents are {apart(latent, drawn.latents):.0e} apart")
assert apart(latent, drawn.latents) < 1e-2
still(
    grid([pipe.decode(latent)[0], drawn.image], ["by hand", "by the package"], zoom=2),
    "Two pictures that look the same: one drawn by the lines of this notebook, one by the package",
)


# %% [markdown]
# *Left, drawn by what you have read above, with the model's weights and nothing else of the package's
# transformer. Right, the package's.*

# %% [markdown]
# ## Exercise 1 · How many tokens? (easy, 3 minutes)
#
# Return the number of tokens of a picture of `height` × `width` pixels. The codec shrinks by 8, a patch is 2
# latent pixels wide, and both sides are multiples of 16.
#
# <details><summary>Hint</summary>
#
# One token covers 16 × 16 pixels.
# </details>

# %% tags=["exercise"]
def tokens_of(height, width):
    # solution
    return (height // 16) * (width // 16)
    # end


# %%
from snapref.lab.exercises import check

check(tokens_of, [((16, 16), 1), ((128, 96), 48), ((1216, 832), 3952), ((1024, 1024), 4096)])


# %% [markdown]
# ## Exercise 2 · Back on the grid (medium, 8 minutes)
#
# `numbers` is (tokens, 4 · channels): for each token its upper left pixel with all channels, then upper
# right, lower left, lower right. Return the latent (channels, 2 · rows, 2 · columns).
#
# <details><summary>Hint</summary>
#
# `view` it as (rows, columns, 2, 2, channels), bring the axes into the order channel, row, row in the patch,
# column, column in the patch, and `reshape`.
# </details>

# %% tags=["exercise"]
def on_the_grid(numbers, rows, columns):
    # solution
    patches = numbers.view(rows, columns, 2, 2, -1)
    return patches.permute(4, 0, 2, 1, 3).reshape(-1, 2 * rows, 2 * columns)
    # end


# %%
one = torch.tensor([[1, 10, 2, 20, 3, 30, 4, 40]])
many = torch.arange(2 * 3 * 64).view(6, 64)
as_package = model.picture(many[None], torch.Size((1, 16, 1, 4, 6)))[0, :, 0]
check(
    on_the_grid,
    [((one, 1, 1), torch.tensor([[[1, 2], [3, 4]], [[10, 20], [30, 40]]])), ((many, 2, 3), as_package)],
    hint="The channel runs fastest on the way out.",
)


# %% [markdown]
# ## Exercise 3 · A model of any size (harder, 12 minutes)
#
# People have made Animas of 40 and 52 blocks by adding blocks. Return the number of weights of the
# transformer **without** the LLM adapter, for any width `D`, number of `blocks`, context width `C`, head
# width and waist.
#
# <details><summary>Hint</summary>
#
# One block is in the budget above. Outside: 68 · D for the patches; D · D + 3 · D · D for the sigma MLP; D
# for its norm; for the final layer 64 · D and a pair of matrices through the waist to 2 · D.
# </details>

# %% tags=["exercise"]
def transformer_weights(D, blocks, C, head, waist):
    # solution
    attention = 4 * D * D + 2 * D * D + 2 * C * D + 4 * head
    block = attention + 8 * D * D + 3 * (D * waist + waist * 3 * D)
    outside = 68 * D + 4 * D * D + D + 64 * D + D * waist + waist * 2 * D
    return blocks * block + outside
    # end


# %%
from dataclasses import replace

cases = []
for dit in (config.dit, BASE.dit, replace(BASE.dit, blocks=40)):
    expected = sum(budget(replace(BASE, dit=dit, text=None)).values())
    cases.append(((dit.width, dit.blocks, dit.context_width, dit.head_dim, dit.adaln_rank), expected))
check(transformer_weights, cases)

# %% [markdown]
# ## What you can now say
#
# - Anima is velocity = f(latent, sigma, context): patches, 28 times (read the picture, read the text, think),
#   and back. It fits on one screen, and by hand it gives the package's numbers and diffusers'.
# - Sigma moves, stretches and gates every sublayer through a shared vector and a low-rank one of its own. The
#   text enters at one place, with zero rows that count.
# - 2,091,068,928 weights: 45 % in the MLPs, 39 % in attention, 8 % in what sigma says, 6 % in the LLM adapter.

# %%
import platform

print(f"snapref {snapref.__version__}, torch {torch.__version__}")
print(f"Python {platform.python_version()} on {platform.system()}, device {device}")
