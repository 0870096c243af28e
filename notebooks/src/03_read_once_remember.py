# %% [markdown]
# # 3 · Read once, remember
#
# After this notebook you can
#
# - say who reads whom, and why a reference goes through the model only once;
# - show that remembering gives the same numbers as doing everything at every step;
# - work out what it takes and what it saves, in bytes and in arithmetic, at full size.
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
# A picture goes through the model once and leaves something behind: keys and values, block by
# block. The same `memory` then serves two prompts, two seeds and two sizes. The picture is not
# needed any more. (The package calls this value a cache.)

# %%
import snapref
from snapref.lab.plots import grid, live, still
from snapref.world.samples import references

PROMPT = "1girl, beach, waving, full body"
pipe = snapref.load("nano")
picture = references()[1].picture()  # (128, 96, 3), a character that no training has seen
memory = pipe.encode(picture)

beach = pipe(PROMPT, reference=memory, seed=3, quiet=True)
scene = "1girl, snow, standing, smile, upper body"
snow = pipe(scene, reference=memory, seed=8, size=(96, 128), quiet=True)
captions = ["read once", "beach, waving, full body", "snow, standing, smile"]
still(
    grid([picture, beach.image, snow.image], captions, zoom=2),
    "A reference picture, and two pictures drawn from one memory of it",
)

# %% [markdown]
# *Left, what was read. The other two come from one value, `memory`, made before either prompt was
# known.*
#
# **Guess before you move it.** Below is the beach picture again. Point at the hair: which part of
# the reference does it read? And a piece of the sky? Does the first step read as the last one does?

# %%
from snapref.lab.attention_view import attention_widget, share_picture, sheet, watch

watched = watch(pipe, PROMPT, picture, cache=memory, seed=3)
tokens = {"hair": (1, 2), "face": (2, 3), "outfit": (4, 2), "corner": (0, 0)}
live(
    attention_widget(watched, tokens["hair"]),
    sheet(watched, tokens),
    "A drawn picture with four framed tokens, and for each the parts of the reference it reads",
)

# %% [markdown]
# *A frame marks one token, 16 × 16 pixels. The reference is lit where that token looks, dark where
# it does not. Live, point anywhere and choose the step and the block; arrow keys move the sliders.*

# %% [markdown]
# ## Four tokens, by hand
#
# Two tokens of the **target**, the picture being drawn, and two of the **reference**. They are one
# number wide, so a logit is simply query × key. The target reads everybody; the reference reads
# only itself.
#
# | | query | e to the key | value |
# |---|---|---|---|
# | target 1 | 1 | 1 | 12 |
# | target 2 | 0 | 2 | 0 |
# | reference 1 | 1 | 3 | 4 |
# | reference 2 | 0 | 6 | 2 |
#
# A query of 1 weighs the keys 1 : 2 : 3 : 6, a query of 0 weighs all alike. Work out the four
# results before you run the cell.

# %%
from fractions import Fraction
from math import log

import torch

names = ["target 1", "target 2", "reference 1", "reference 2"]
q = torch.tensor([1.0, 0.0, 1.0, 0.0])
k = torch.tensor([log(1), log(2), log(3), log(6)])
v = torch.tensor([12.0, 0.0, 4.0, 2.0])
may_read = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]).bool()


def attention(q, k, v, may_read):
    """(weights, results) of a masked attention, one number wide."""
    weights = torch.outer(q, k).masked_fill(~may_read, -torch.inf).softmax(dim=-1)
    return weights, weights @ v


weights, results = attention(q, k, v, may_read)
for name, row, result in zip(names, weights, results, strict=True):
    shares = "  ".join(f"{Fraction(w.item()).limit_denominator(12)!s:>4}" for w in row)
    print(f"{name:12s} reads {shares}   and becomes {result:.4f}")

# %% [markdown]
# Target 1 becomes (1·12 + 2·0 + 3·4 + 6·2) / 12 = 3. Reference 1 becomes (3·4 + 6·2) / 9 = 2.6667.
#
# Now a step passes: the target's first token gets another key and another value. Who notices? First
# with the mask, then with everybody reading everybody.

# %%
k2, v2 = k.clone(), v.clone()
k2[0], v2[0] = log(4), 6.0

for label, mask in (("with the mask", may_read), ("without it", torch.ones(4, 4).bool())):
    before, after = attention(q, k, v, mask)[1], attention(q, k2, v2, mask)[1]
    print(label)
    for name, a, b in zip(names, before, after, strict=True):
        print(f"   {name:12s} {a:.4f} → {b:.4f}  {'' if a == b else 'changed'}")

# %% [markdown]
# With the mask the reference's rows stay as they are, so their keys in the *next* block stay too,
# and in the one after. That is the whole idea: **what cannot change need not be computed again.**
# Keep the reference's keys and values, and drop its rows:

# %%
from snapref.anima.attention import KeyGroup, attend


def heads(x):
    return x.view(1, 1, -1, 1)  # (b, n, t, d): one batch row, one head, one number wide


remembered = KeyGroup(heads(k[2:]), heads(v[2:]))
drawn = attend(heads(q[:2]), heads(k[:2]), heads(v[:2]), [remembered])
print("the target's two rows, from memory:", drawn.flatten().tolist())
assert torch.allclose(drawn.flatten(), results[:2])

# %% [markdown]
# ## The picture to keep in mind
#
# The same square for a real sequence, here with two reference pictures. Which of the nine fields
# have to be computed at each of 28 steps?

# %%
from snapref.lab.cache_view import mask_picture

still(mask_picture(8, [5, 5]), "The target reads everything; each picture reads only itself")

# %% [markdown]
# *Only the top row belongs to the step. The green fields are computed once. The white ones do not
# exist: a picture sees neither the target nor the other picture, so each can be read alone.*

# %% [markdown]
# ## The long way: one sequence
#
# To check the short way we need the long one: target and reference in **one** sequence, masks, and
# nothing remembered. Every token has its own sigma, its own text and the low-rank branch of its
# picture. First one block:

# %%
from torch.nn.functional import scaled_dot_product_attention

from snapref.anima.block import modulated_norm
from snapref.anima.rope import apply_rope


def joint_block(block, x, emb, lora, angles, texts, branches, is_reference, may_read, may_hear):
    """(x after one block, its keys). x: (1, t + r, c); emb, lora: one row for each token's sigma."""

    def own(function, *inputs):  # every token through the branch of its picture
        target, reference = (function(*inputs, branch) for branch in branches)
        return torch.where(is_reference, reference, target)

    def modulated(x, pair):
        shift, scale, gate = (pair(emb) + lora).chunk(3, dim=-1)
        return modulated_norm(x, shift, scale), gate

    see, hear = block.self_attn, block.cross_attn
    y, gate = modulated(x, block.adaln_modulation_self_attn)
    q = apply_rope(own(see.query, y, None), angles)
    k = apply_rope(own(lambda y, branch: see.key_value(y, None, branch)[0], y), angles)
    v = own(lambda y, branch: see.key_value(y, None, branch)[1], y)
    x = x + gate * own(see.output, scaled_dot_product_attention(q, k, v, may_read))

    y, gate = modulated(x, block.adaln_modulation_cross_attn)
    words = hear.key_value(texts, None, {})
    heard = scaled_dot_product_attention(own(hear.query, y, None), *words, may_hear)
    x = x + gate * own(hear.output, heard)

    y, gate = modulated(x, block.adaln_modulation_mlp)
    return x + gate * own(block.mlp, y), k


# %% [markdown]
# Then the whole model: put target and reference side by side, note who may read whom and who hears
# which text, and go through the blocks. The arguments from `mask` on are what a memory stands on.
# Soon we change them, one at a time.

# %%
from snapref.reference.picture import to_pixels

model, adapter, device = pipe.model, pipe.adapter, pipe.device
seen = pipe.to_latent(to_pixels(picture, pipe.config.size_step))  # (1, 16, 1, 16, 12)
caption = pipe.contexts([adapter.config.captions["cs"]])[0]
T, R = 48, 48  # tokens of the target and of the reference
is_reference = torch.arange(T + R, device=device)[:, None] >= T
asymmetric = ~is_reference | is_reference.T  # the target reads all, the reference itself


def joint(noisy, sigma, text, mask=asymmetric, at=0.0, heard=caption,
          place=adapter.config.place, branch=adapter.reference):
    """(velocity of the target, keys of the reference in the last block), in one sequence."""
    parts = (noisy, sigma, (0.0, 0.0, 0.0)), (seen, at, place)
    entered = [model.enter(x, torch.tensor([s], device=device), start) for x, s, start in parts]
    x, emb, lora = (torch.cat([e[i].expand(-1, T, -1) for e in entered], 1) for i in range(3))
    angles, texts = torch.cat([e[3] for e in entered]), torch.cat((text, heard), 1)
    is_caption = torch.arange(texts.shape[1], device=device) >= text.shape[1]
    masks = is_reference, mask, is_reference == is_caption
    for block, *branches in zip(model.blocks, adapter.target, branch, strict=True):
        x, k = joint_block(block, x, emb, lora, angles, texts, branches, *masks)
    features = model.final_layer(x[:, :T], emb[:, :1], lora[:, :1])
    return model.picture(features, noisy.shape), k[:, :, T:]


# %% [markdown]
# ## The short way, and the same numbers
#
# Now the package: `memory` from the first cell, and a forward of the target alone. Both start from
# the same noise at sigma 0.8. How close do you expect them to be?

# %%
TOLERANCE = 1e-5  # relative to the largest value; everything here is fp32


def distance(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


noise = torch.randn(1, 16, 1, 16, 12, generator=torch.Generator().manual_seed(0))
noisy, sigma = noise.to(device), torch.tensor([0.8], device=device)
text, other_text = pipe.contexts([PROMPT, "1girl, night, smile"])

cached = model(noisy, sigma, text, memory=memory.memory(), branch=adapter.target)
velocity, keys = joint(noisy, 0.8, text)
print(f"velocity, joint against cached:       {distance(velocity, cached):.1e}")
print(f"last keys, joint against remembered:  {distance(keys, memory.layers[-1][0]):.1e}")
assert distance(velocity, cached) < TOLERANCE
assert distance(keys, memory.layers[-1][0]) < TOLERANCE

# %% [markdown]
# What is left is rounding. Nothing is approximated: with this mask the two ways are the same
# function.
#
# ## What breaks it
#
# Five changes, one at a time. How far is the velocity from the cached one? And do the reference's
# keys still stand still when the *step* changes (sigma 0.8 to 0.4), or the *prompt*? Guess which
# three make remembering impossible.

# %%
everybody = torch.ones(T + R, T + R, dtype=torch.bool, device=device)
ways = {
    "as it is": lambda sigma, text: {},
    "the reference sees the target": lambda sigma, text: {"mask": everybody},
    "the reference at the step's sigma": lambda sigma, text: {"at": sigma},
    "the reference hears the prompt": lambda sigma, text: {"heard": text},
    "another place: on the target": lambda sigma, text: {"place": (0.0, 0.0, 0.0)},
    "its low-rank branch forgotten": lambda sigma, text: {"branch": [{}] * len(model.blocks)},
}
print(f"{'':36}{'velocity off':>12}{'keys move: step':>18}{'prompt':>10}   can be kept")
for name, way in ways.items():
    velocity, keys = joint(noisy, 0.8, text, **way(0.8, text))
    step = distance(joint(noisy, 0.4, text, **way(0.4, text))[1], keys)
    prompt = distance(joint(noisy, 0.8, other_text, **way(0.8, other_text))[1], keys)
    kept = "yes" if max(step, prompt) < TOLERANCE else "no"
    print(f"{name:36}{distance(velocity, cached):12.0e}{step:18.0e}{prompt:10.0e}   {kept}")

# %% [markdown]
# The first three let something of the step or the prompt into the reference. Its keys move, and a
# memory would be stale at once. The last two could be kept, but they are other keys than the
# adapter was trained with, and no error would ever say so.

# %% [markdown]
# ## Only k and v
#
# Of a block the target reads k and v, nothing else. The rest of the block matters because the
# *next* block's k and v come from it. After the last block there is no next: of its eight low-rank
# pairs six can say anything.

# %%
import copy

DEAD = ("self_attn.q_proj", "self_attn.output_proj", "cross_attn.q_proj",
        "cross_attn.output_proj", "mlp.layer1", "mlp.layer2")
scrambled = copy.deepcopy(adapter)
for name in DEAD:
    for matrix in scrambled.get_submodule(f"ref.blocks.{len(model.blocks) - 1}.{name}").parameters():
        matrix.normal_()


def same_bits(a, b):
    """Whether two memories hold the same keys and values, bit for bit."""
    pairs = zip(a.layers, b.layers, strict=True)
    return all(torch.equal(x[0], y[0]) and torch.equal(x[1], y[1]) for x, y in pairs)


other = snapref.Pipeline(model, pipe.text, pipe.codec, pipe.config, scrambled)
assert same_bits(memory, other.encode(picture))
print("random numbers in six modules of block 6: not one bit of the memory changes")

# %% [markdown]
# So the encoding stops there: five whole blocks, then k and v of the sixth. At full size that
# spares most of one block in 28, and 4,718,592 trained numbers of the last block are never used.

# %% [markdown]
# ## What it takes: bytes
#
# A key and a value of the model's width, for every block and every token:
#
# **bytes = 2 · blocks · width · tokens · bytes per number**
#
# Neither heads nor ranks nor steps are in it. Does the memory in our hands weigh that much?

# %%
from snapref.config import BASE

nano = pipe.config.dit
computed = 2 * nano.blocks * nano.width * R * 4  # fp32: four bytes
print(f"nano: computed {computed:,} bytes, measured {memory.nbytes:,} bytes")
assert memory.nbytes == computed

per_token = 2 * BASE.dit.blocks * BASE.dit.width * 2  # bf16: two bytes
print(f"full size: {per_token:,} bytes per token, {per_token * 4096:,} for 4,096 tokens")
assert per_token == 229_376

# %% [markdown]
# 0.94 GB for one megapixel; the published figure is "about 0.9 GB". What is kept is not the
# picture, which has a few kilobytes, but everything that 28 blocks have to say about it. Does that
# fit on a small card?

# %%
from snapref.lab.cache_view import bytes_picture

files = {"transformer": 4.182e9, "text encoder": 1.192e9, "codec": 0.254e9, "adapter": 0.382e9}
kept = {"one reference": per_token * 4096, "a second one": per_token * 4096}
still(
    bytes_picture(files | kept, room=15e9, device="a T4"),
    "GB: transformer 4.18, text encoder 1.19, codec 0.25, adapter 0.38, each reference 0.94",
)

# %% [markdown]
# *Full size in bf16. The first four are the published files, the references are computed. What a
# step needs while it runs comes on top and is not drawn.*

# %% [markdown]
# ## What it saves: arithmetic
#
# An (m, k) times a (k, n) matrix takes 2·m·k·n operations. A block has linear layers, attention to
# `keys` tokens, and attention to the text. That is enough to count a whole picture.


# %%
def pass_flops(tokens, keys, blocks=28, width=2048, text_rows=512, text_width=1024):
    """Operations of `tokens` tokens through the blocks, each reading `keys` keys."""
    linear = (4 + 2 + 8) * width**2  # self q, k, v, o; cross q, o; an MLP four times as wide
    attention = 2 * width * (keys + text_rows)  # logits, then the sum of the values
    text = 2 * text_rows * text_width * width  # the text's own keys and values
    return 2 * blocks * (tokens * (linear + attention) + text)


target = 52 * 76  # 832 × 1216 pixels, a token being 16 × 16
plain = pass_flops(target, target)
reading = pass_flops(target, target + target) - plain
print(f"one pass: {plain / 1e12:.1f} TFLOP; reading as many tokens again: {reading / plain:.1%} more")

# %% [markdown]
# A guided step has two passes and only the positive one reads, so a step grows by half of that. The
# package counts in the same way and adds the encoding. A whole picture of 28 steps, by route:

# %%
from snapref.lab import cache_view

assert cache_view.pass_flops(BASE.dit, target, target, context_rows=512) == plain
full = cache_view.route_flops(BASE, target, target, steps=28)
print("computed, full size")
for name, flops in full.items():
    print(f"   {name:28}{flops / 1e15:6.2f} PFLOP {flops / full['no reference']:6.2f} ×")
print("published, not measured here: A100, 832×1216, 28 steps, each at its own defaults")
for name, seconds in cache_view.PUBLISHED_SECONDS.items():
    print(f"   {name:28}{seconds:6.1f} s     {seconds / 7.7:6.2f} ×")

# %% [markdown]
# Read once: 12 % more arithmetic, published as 16 % more time. In "one sequence" everybody reads
# everybody in both passes. (The last published one puts the reference beside the target as a second
# frame; how Role-Ref-KV works was not published.)

# %%
still(
    cache_view.timeline_picture(BASE, target, target, 28),
    "One picture, three routes: 1.00, 1.12 and 1.59 times the arithmetic",
)

# %% [markdown]
# *One picture at full size, left to right. Read once: one green piece at the start, then 28 steps,
# each with a thin orange slice for reading what is remembered. Without a memory the green piece
# returns at every step.*

# %% [markdown]
# ## On this machine
#
# Arithmetic is not time. Here are nano's guided steps, taking turns so that a busy moment hits all
# of them. `Reencode` is the route without a memory. Its numbers are the same to the bit, which is
# checked first.

# %%
from snapref.rivals.offset_frame import OffsetFrame
from snapref.rivals.reencode import Reencode

once, anew = OffsetFrame(model, memory, adapter.target), Reencode(model, adapter, seen, caption)
empty = pipe.contexts([""])[0]
assert torch.equal(once.velocity(noisy, sigma, text), anew.velocity(noisy, sigma, text))


def step(route):
    route.velocity(noisy, sigma, text)
    route.velocity(noisy, sigma, empty, reads=False)


calls = {
    "no reference": lambda: (model(noisy, sigma, text), model(noisy, sigma, empty)),
    "read once": lambda: step(once),
    "read at every step": lambda: step(anew),
}
times = cache_view.interleaved(calls, rounds=50)
counted = cache_view.route_flops(pipe.config, T, R, steps=28)
print(f"{'one guided step':20}   time, median (middle half)   arithmetic")
for name, seconds in times.items():
    middle, low, high = cache_view.ratio(seconds, times["no reference"])
    share = counted[name] / counted["no reference"]
    print(f"{name:20}{middle:8.2f} × ({low:.2f} to {high:.2f}){share:18.2f} ×")

# %% [markdown]
# Measured on a CPU with one thread, as ratios; yours will differ. Times exceed the arithmetic:
# nano's matrices are too small to run at full speed, and the target's low-rank branch is computed
# beside the weights here. The pipeline adds it to them first.

# %% [markdown]
# ## It knows nothing of the prompt
#
# If nothing of a run enters the reference, encoding before or after a run gives the same bits,
# whatever its prompt, seed, noise or size. And drawing from the memory is drawing from the picture.

# %%
again = pipe.encode(picture)  # after every run above
assert same_bits(memory, again) and memory.fingerprint == again.fingerprint

short = {"steps": 4, "seed": 11, "quiet": True}
from_memory = pipe("1girl, snow, jumping", reference=memory, **short)
from_picture = pipe("1girl, snow, jumping", reference=picture, **short)
assert torch.equal(from_memory.latents, from_picture.latents)
print("the same bits: encoded before and after, drawn from the memory and from the picture")

# %% [markdown]
# ## How strongly it is read
#
# Weight w should mean "as if every key of the reference stood there w times". With w = 2, target 1
# of the hand example weighs its keys 1 : 2 : 6 : 12 and becomes 60 / 21. Adding log w to the logits
# does just that, for any w.

# %%
own = heads(q[:2]), heads(k[:2]), heads(v[:2])
twice = attend(*own, [remembered, remembered])
weighted = attend(*own, [KeyGroup(remembered.k, remembered.v, log_weight=log(2))])
print(f"every key twice {twice[0, 0, 0, 0]:.4f}, log 2 added {weighted[0, 0, 0, 0]:.4f}")
assert torch.allclose(twice, weighted)

unread = pipe("1girl, snow, jumping", reference=memory, strength=0, **short)
assert torch.equal(unread.latents, pipe("1girl, snow, jumping", **short).latents)

# %%
strengths = (0, 0.5, 1, 2)
drawn = [
    pipe(PROMPT, reference=memory, seed=3, strength=w, quiet=True).image for w in strengths
]
captions = ["the reference", *(f"strength {w}" for w in strengths)]
still(grid([picture, *drawn], captions, zoom=2), "The same picture at four strengths")

# %% [markdown]
# *One noise, one prompt, four strengths. At 0 no key is read and the low-rank branches are off:
# that picture is the base model's, bit for bit, as the cell above asserts.*

# %% [markdown]
# ## Keep it for tomorrow
#
# A value can be saved. Its file carries a fingerprint: hashes of base, adapter and pixels, the
# place, the caption. What happens when a single number of the base has changed?

# %%
import tempfile
from pathlib import Path

from snapref.reference import CacheError

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "green_bob.safetensors"
    memory.save(path)
    loaded = snapref.ReferenceCache.load(path, expect=memory.fingerprint, device=device)
    print(f"{path.name}: {path.stat().st_size:,} bytes")
assert same_bits(memory, loaded)

stranger = copy.deepcopy(model)
stranger.blocks[3].mlp.layer1.weight[0, 0] += 0.01
other = snapref.Pipeline(stranger, pipe.text, pipe.codec, pipe.config, adapter)
try:
    other(PROMPT, reference=loaded)
except CacheError as error:
    print("refused:", error)

# %% [markdown]
# ## Back to the tokens
#
# Now you know what the first widget showed: the orange field of the mask, one row at a time. Target
# and reference have 48 tokens each. If a token did not care whom it reads, the reference would get
# one half.

# %%
still(share_picture(watched), "Share of the attention that goes to the reference, by block and step")

# %% [markdown]
# *Share of attention that goes to the reference, averaged over the target's tokens, for each block;
# dark lines are early steps, light ones late. The dashed line is one half. Below, the widget again,
# at the very first step: the target is pure noise, the picture shown is the model's first guess,
# and already its tokens read.*

# %%
live(
    attention_widget(watched, tokens["outfit"], moment=0),
    sheet(watched, tokens, moment=0),
    "The same four tokens at the first step",
)

# %% [markdown]
# ## Exercise 1 · How heavy is a picture? (easy, 4 minutes)
#
# Return the bytes that one reference of `height` × `width` pixels takes at full size in bf16. A
# token covers 16 × 16 pixels; a started one counts whole.
#
# <details><summary>Hint</summary>
#
# `-(-height // 16)` rounds up. The formula stands under "What it takes".
# </details>


# %% tags=["exercise"]
def picture_bytes(height, width):
    # solution
    tokens = -(-height // 16) * -(-width // 16)
    return 2 * 28 * 2048 * tokens * 2
    # end


# %%
from snapref.lab.exercises import check

sizes = {(1024, 1024): 939_524_096, (16, 16): 229_376, (1216, 832): 906_493_952, (17, 1): 458_752}
check(picture_bytes, list(sizes.items()))

# %% [markdown]
# ## Exercise 2 · A mask for several pictures (medium, 8 minutes)
#
# Return the boolean mask of a target of `target` tokens, followed by pictures of `pictures` tokens
# each: True where a row may read a column. The target reads all, a picture only itself.
#
# <details><summary>Hint</summary>
#
# Give every token the number of its picture, the target 0. Compare these numbers, written as a
# column, with the same written as a row.
# </details>


# %% tags=["exercise"]
def reading_mask(target, pictures):
    # solution
    owner = torch.cat([torch.full((n,), i) for i, n in enumerate([target, *pictures])])
    return (owner[:, None] == owner) | (owner[:, None] == 0)
    # end


# %%
check(
    reading_mask,
    [
        ((1, [1]), [[True, True], [False, True]]),
        ((1, [1, 1]), [[True, True, True], [False, True, False], [False, False, True]]),
        ((2, [2]), may_read),
    ],
)

# %% [markdown]
# ## Exercise 3 · Two softmaxes into one (harder, 12 minutes)
#
# Fast kernels give a result and `lse`, the logarithm of the sum of e to the logits. Join the result
# of the own keys with that of the reference's keys, the latter with weight `w`, as if all had been
# one softmax.
#
# <details><summary>Hint</summary>
#
# e to the `lse` is how much a group weighs in all. Target 1 of the hand example: its own keys weigh
# 1 + 2 and give 12 / 3, the reference's weigh 3 + 6 and give 24 / 9.
# </details>


# %% tags=["exercise"]
def joined(own, own_lse, reference, reference_lse, w):
    # solution
    a, b = torch.tensor(own_lse).exp(), w * torch.tensor(reference_lse).exp()
    return (a * own + b * reference) / (a + b)
    # end


# %%
check(
    joined,
    [
        ((4.0, log(3), 24 / 9, log(9), 1), 3.0),
        ((4.0, log(3), 24 / 9, log(9), 2), 60 / 21),
        ((4.0, log(3), 24 / 9, log(9), 0), 4.0),
    ],
)

# %% [markdown]
# ## What you can now say
#
# - The reference reads only itself, at sigma 0, with its own text, place and branch. So its keys
#   and values never change, and reading it once is exact.
# - It takes 2 · blocks · width · tokens · bytes, 0.94 GB for a megapixel at full size. A guided
#   picture costs 1.12 times the arithmetic; without a memory it would cost 1.59 times.
# - The memory is a value: it serves any prompt, seed, size and strength, and refuses another base.

# %%
import platform

print(f"snapref {snapref.__version__}, torch {torch.__version__}")
print(f"Python {platform.python_version()} on {platform.system()}, device {device}")
