# %% [markdown]
# # 4 · Two LoRAs
#
# After this notebook you can
#
# - say what a low-rank branch is, where the two of them sit, and count 190.84 million parameters by hand;
# - train both branches on pictures of the drawn world and watch the one number that matters;
# - go on from a finished adapter, and merge a branch into the weights without a trace.
#
# About seven minutes on two CPU cores, six of them training, which you may stop. A T4 was not timed; nano is too small
# to gain much.

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
# The same model, the same noise, the same prompt, which names the scene and nothing of her. The upper row has
# branches that were never trained, the lower row the shipped ones.

# %%
import torch

import snapref
from snapref.config import BASE, NANO, NANO_V1A, V1A, V1B
from snapref.lab.plots import grid, still
from snapref.reference.branches import Adapter
from snapref.sampling.pipeline import Pipeline
from snapref.world.samples import references

pipe = snapref.load("nano")
torch.manual_seed(0)
branches = Adapter(NANO_V1A, NANO).to(pipe.device)
untrained = Pipeline(pipe.model, pipe.text, pipe.codec, pipe.config, branches)

PROMPT = "1girl, beach, waving, full body"
hers, another = (references()[i].picture() for i in (1, 6))
drawn, run = [], {"seed": 3, "steps": 12, "quiet": True}
for read, draw in ((hers, untrained), (another, pipe)):
    drawn += [read] + [draw(PROMPT, picture, **run).image for picture in (hers, another, None)]
reads = ("read: hers", "read: another's", "no picture")
names = ["HERS", *(f"untrained, {r}" for r in reads), "ANOTHER'S", *(f"trained, {r}" for r in reads)]
still(
    grid(drawn, names, columns=4, zoom=2),
    "Two rows of three drawings, untrained and trained branches: with her picture, another's, and none",
)

# %% [markdown]
# *On the left the two pictures there are to read. With trained branches she looks like the one that was read, hers or
# another's. With no picture both rows are the base model, and equal.*
#
# **Guess before you read on.** An untrained branch adds exactly 0 to every layer. Why is the upper row spoilt
# all the same as soon as there is a picture?

# %%
assert torch.equal(untrained(PROMPT, **run).latents, pipe(PROMPT, **run).latents)
print("no picture: untrained and trained are the same, to the bit")

# %% [markdown]
# ## A low-rank branch, by hand
#
# A **LoRA** leaves a weight W as it is and computes something small beside it: two thin matrices, A down to
# `rank` numbers and B up again, times a scale.
#
# $$y = W x + \text{scale} \cdot B\,(A\,x)$$
#
# Three numbers in, two out, rank 1, scale ½. A·x is one number: 1·1 + 0·2 − 1·3 = −2. Work out y first.

# %%
W = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]])
A = torch.tensor([[1.0, 0.0, -1.0]])  # (rank, in)
B = torch.tensor([[3.0], [-4.0]])  # (out, rank)
scale, x = 0.5, torch.tensor([1.0, 2.0, 3.0])

print("W x           ", (W @ x).tolist())
print("scale B (A x) ", (scale * B @ (A @ x)).tolist())
print("y             ", (W @ x + scale * B @ (A @ x)).tolist())

# %% [markdown]
# The same y comes from one matrix W + scale·B A. That sum has as many numbers as W, but A and B hold only
# rank · (in + out) of them: here 5 instead of 6, at full size far fewer.

# %%
from torch import nn

from snapref.anima.lowrank import LowRank, added, project

linear = nn.Linear(3, 2, bias=False)
linear.weight.data = W
beside = project(linear, x, LowRank(A, B, scale))  # the package: computed beside the weight
inside = added(W, LowRank(A, B, scale)) @ x  # the package: summed into the weight
assert torch.equal(beside, inside) and beside.tolist() == [4.0, 6.0]

# %% [markdown]
# Training starts with A random and **B = 0**, so the branch starts as nothing:

# %%
start = LowRank(torch.randn(1, 3), torch.zeros(2, 1), scale)
assert torch.equal(project(linear, x, start), linear(x))
fresh = Adapter(NANO_V1A, NANO)
assert all(not p.any() for name, p in fresh.named_parameters() if "lora_B" in name)

# %% [markdown]
# There is the answer to the guess. The *branches* are off, but the *reading* is not: the tokens of the new picture
# meet 48 keys and values that nobody taught the base to use at that place. Two things have to be learnt: what to
# offer, and what to do with it.
#
# ## Where, and why two
#
# One block of the full-size model, to scale. Grey is the frozen weight. What learns stands beside it.

# %%
from snapref.lab import lora_view

still(
    lora_view.to_scale(V1A, BASE.dit),
    "The five kinds of linear layers of a block in grey, with the thin matrices of both branches beside them",
)

# %% [markdown]
# *B stands to the right of its weight, A above it, as thick as the rank. Of the ten linears of attention and MLP the
# reference branch has eight and the target branch four; the AdaLN pairs carry none.*
#
# - The **reference branch** works once, at σ = 0, on a clean picture. It turns a model that removes noise into one
#   that *describes*: every layer on the way may need a change, so it gets rank 128 nearly everywhere.
# - The **target branch** works on the tokens being drawn. Their layers know their job; only the self-attention, where
#   the new keys come in, has to learn to *read*: rank 64, four linears.
# - Keys and values of the text are left as they are by both. What a word means has not changed.
#
# One branch for both would have to describe and to draw with the same numbers.
#
# ## 190.84 million
#
# How much is that, next to the grey? Guess a percentage for each branch, then count one block.

# %%
print(lora_view.table(V1A, BASE.dit))

# %% [markdown]
# To a block's ten linears the reference branch adds 9.2 %, the target branch 1.7 %. By hand, for the square ones:
# 128 · (2048 + 2048) = 524,288. Per block 5,767,168 + 1,048,576 = 6,815,744, and there are 28 blocks. A model without
# memory, on PyTorch's `meta` device, has all shapes and no numbers, so the full-size adapter can be counted anywhere:

# %%
with torch.device("meta"):
    full, doubled = Adapter(V1A, BASE), Adapter(V1B, BASE)

print(f"v1a  {full.parameter_count:>12,}   28 · 6,815,744 = {28 * 6_815_744:,}")
print(f"v1b  {doubled.parameter_count:>12,}   twice the rank, twice the parameters")
assert full.parameter_count == 190_840_832 == 28 * (5_767_168 + 1_048_576)
assert doubled.parameter_count == 381_681_664

# %% [markdown]
# Some of them never do anything. Of the reference's last block only keys and values are kept; there is no next
# block to which its other six linears could speak.

# %%
from snapref.training.adapter_task import freeze_unread

freeze_unread(full)
dead = {name: p.numel() for name, p in full.named_parameters() if not p.requires_grad}
print(f"{len(dead)} tensors, {sum(dead.values()):,} parameters, in", *{name[:13] for name in dead})
assert len(dead) == 2 * 6 and sum(dead.values()) == 128 * (4 * (2048 + 2048) + 2 * (2048 + 8192))

# %% [markdown]
# They are part of the file and of the count, but training leaves them out.
#
# ## What is learnt: the loss, by hand
#
# Flow matching, for one number of a latent. The clean value is 2, the noise −1, and σ = ¼ says how far the value
# has gone from clean to noise. What goes in is σ · noise + (1 − σ) · clean. What should come out is the
# velocity, noise − clean. Say both before you run the cell.

# %%
from snapref.training.flow import add_noise, draw_sigmas, velocity_loss


def latents(*numbers):
    """(b, c, f, h, w): one number for each row."""
    return torch.tensor(numbers).view(-1, 1, 1, 1, 1)


clean, noise, sigma = latents(2.0), latents(-1.0), torch.tensor([0.25])
noisy = add_noise(clean, noise, sigma)
print(f"in {noisy.item()}, wanted {(noise - clean).item()}")
answer = latents(-2.5)
print(f"the model says {answer.item()}: loss {velocity_loss(answer, clean, noise).item()}")
assert noisy.item() == 0.25 * -1 + 0.75 * 2 and velocity_loss(answer, clean, noise).item() == 0.25

# %% [markdown]
# Every pair of a batch gets a σ of its own. Drawn evenly around ½, half of them would lie below it; a **shift** of 3
# moves them toward noise, where it is decided who will be in the picture.

# %%
for shift in (1.0, 3.0):
    sigmas = draw_sigmas(10_000, shift, torch.Generator().manual_seed(0))
    print(f"shift {shift:g}: {(sigmas > 0.5).float().mean():.0%} above one half, median {sigmas.median():.2f}")

# %% [markdown]
# ## What to watch: the gap
#
# The loss alone does not say whether a reference is used: most of it is what nobody could foresee. So ask the same
# question three times, about characters that no training has seen, each time with the same noise and σ: with her
# picture, with another's, with none. The **gap** is wrong − right. It is what the model took from the picture.

# %%
import tempfile
from pathlib import Path

from snapref.training.adapter_task import AdapterTask
from snapref.training.config import load_run_config
from snapref.training.unseen import gap_summary, unseen_drawn, unseen_losses

LESSON = load_run_config("nano-lesson")
runs = Path(tempfile.mkdtemp())  # everything that is trained here
task = AdapterTask(LESSON)
unseen = unseen_drawn(task.parts, task.contexts, NANO_V1A, 32)  # 32 held-out pairs


def measured(adapter):
    """{"right", "none", "wrong", "gap", "low", "high"} of an adapter, means over the 32 pairs."""
    return gap_summary(unseen_losses(task.dit, adapter, unseen, LESSON.options["shift"]))


print(f"{'':12}{'right':>8}{'none':>8}{'wrong':>8}{'gap':>8}   95 % interval")
for name, adapter in (("untrained", untrained.adapter), ("shipped", pipe.adapter)):
    found = measured(adapter)
    losses = "".join(f"{found[read]:8.3f}" for read in ("right", "none", "wrong"))
    print(f"{name:12}{losses}{found['gap']:8.3f}   {found['low']:.3f} to {found['high']:.3f}")

assert found["right"] < found["none"] < found["wrong"] and found["low"] > 0

# %% [markdown]
# Read the rows. Untrained, *any* picture makes things worse than none: it is only a disturbance. Trained, the
# right one helps, and the wrong one is worse than none, for the model believes what it reads. Both widen the gap.
# An untrained model has a small one too, for it copies some of what it reads as it is.

# %% [markdown]
# ## Train it yourself
#
# `nano-lesson` is the whole recipe, made short: 240 steps of 32 pairs that the drawn world makes on the way, both
# branches from zero. First twelve steps alone, looked at closely.
#
# **Guess.** Which of the three held-out losses moves first, and in which direction?

# %%
from snapref.lab.training_view import course, follow, shortened

closely = shortened(LESSON, save_every=6, gap=32, previews=0)
lesson_run = follow(closely, runs, 12, unseen)

# %% [markdown]
# *Left, the loss of each batch. It falls, but it would also fall if the model learnt to look away. Right, the same
# 32 held-out questions each time; the yellow band between two of the lines is the gap.*
#
# Both coloured lines fall together; the black one cannot move, for without a picture both branches are off. The
# branches learn not to be disturbed, and the band may even shrink. Once looking does no harm, it pays to look. Go on
# from the checkpoint, to the end:

# %% tags=["long"]
STEPS = 240  # 80 are enough to see it open

lesson = shortened(LESSON, save_every=24, gap=32, previews=0)
lesson_run = follow(lesson, runs, STEPS, unseen)

# %% [markdown]
# *Now the band opens: the wrong picture climbs away, while the right one goes below "no picture".*
#
# ■ stops at the next step and keeps what was learnt; the same cell then goes on from there, bit for bit, to a larger
# `STEPS` too. Without a notebook, and on two processes: `snapref train adapter --config nano-lesson`.

# %%
seen = course(lesson_run)
for row in seen.gaps:
    print(f"step {row['step']:3.0f}   gap {row['gap']:.3f}   right − none {row['right'] - row['none']:+.3f}")

assert len(seen.losses) == STEPS and seen.last["right"] < seen.gaps[0]["right"]
if STEPS == LESSON.steps:
    assert seen.last["right"] < seen.last["none"] and seen.last["low"] > 0  # it helps, and not by chance

# %% [markdown]
# ## Go on from a finished one
#
# Training can begin with the branches of a file instead of new ones; at full size v2a begins with v1a. The learning
# rate warms up again, for the optimizer has forgotten everything. Where will the gap start now?

# %%
from snapref.files.nano import nano_file

shipped = str(nano_file("adapter_v1a.safetensors"))
onward = shortened(LESSON, name="v1a-onward", save_every=3, init=shipped, columns=3, gap=32, previews=0)
continued = follow(onward, runs, 6, unseen)

first, last = course(continued).gaps[0], course(continued).last
print(f"gap at its start {first['gap']:.3f}, after 6 steps {last['gap']:.3f}")
assert first["gap"] > seen.gaps[0]["gap"] and last["low"] > 0

# %% [markdown]
# *Nothing opens here: the band is wide from the first step on.* Six steps at a rising rate teach nothing new
# and need not make it better. They show that a run can go on where another ended.
#
# ## Which branch does what?
#
# Take one away and measure again. Guess first: is the one with more parameters the one that is missed more?

# %%
import copy


def without(side):
    """The shipped adapter with one branch (ref or tgt) set back to nothing."""
    lame = copy.deepcopy(pipe.adapter)
    for name, parameter in lame.named_parameters():
        if name.startswith(side) and "lora_B" in name:
            parameter.data.zero_()
    return lame


alone = []
for name, missing in (("reference branch alone", "tgt"), ("target branch alone", "ref")):
    losses = unseen_losses(task.dit, without(missing), unseen, LESSON.options["shift"])
    found = gap_summary(losses)
    alone.append(losses["wrong"] - losses["right"])  # a gap for each pair
    print(f"{name:24} right {found['right']:.3f}   wrong {found['wrong']:.3f}   gap {found['gap']:.3f}")
    assert found["gap"] < first["gap"]

apart = gap_summary({"wrong": alone[0], "right": alone[1]})  # the same arithmetic: a mean of differences
print(f"{'first − second':24} {apart['gap']:+.3f}   95 % interval {apart['low']:+.3f} to {apart['high']:+.3f}")

# %% [markdown]
# Compare with the shipped row above: neither comes near it alone. The two were learnt together, one to be read by the
# other. The last line asks which of the two is missed more, pair by pair; an interval that holds 0 means that 32 pairs
# cannot tell.
#
# ## Merged, and taken out again
#
# While drawing, the target branch is summed into the weights: W + scale·B A, once, instead of two more
# multiplications at each linear and each step. Afterwards the base must be the base again, and W + BA − BA would
# not be: each sum rounds. So the original tensors are kept and put back.

# %%
from snapref.reference.branches import merged

model = pipe.model
before = {name: weight.clone() for name, weight in model.state_dict().items()}
noisy = torch.randn(1, 16, 1, 16, 12, generator=torch.Generator().manual_seed(0)).to(pipe.device)
sigma, text, memory = torch.tensor([0.7], device=pipe.device), pipe.contexts([PROMPT])[0], pipe.encode(hers).memory()

with torch.no_grad():
    beside = model(noisy, sigma, text, memory=memory, branch=pipe.adapter.target)
    with merged(model, pipe.adapter.target):
        inside = model(noisy, sigma, text, memory=memory)

print(f"largest difference {(beside - inside).abs().max():.1e} of values up to {beside.abs().max():.1f}")
assert torch.allclose(beside, inside, atol=1e-4)
assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())

# %% [markdown]
# And adding and subtracting, as one might have done it?

# %%
low_rank = pipe.adapter.target[0]["self_attn.q_proj"]
weight = model.blocks[0].self_attn.q_proj.weight.detach()
back = added(added(weight, low_rank), LowRank(low_rank.a, -low_rank.b, low_rank.scale))
print(f"{(back != weight).float().mean():.0%} of the weights came back changed in their last bits")
assert not torch.equal(back, weight)

# %% [markdown]
# The reference branch is never merged: it is needed once, while the picture is read, and then only the memory of it.
#
# ## Exercise 1 · Count (easy, 5 minutes)
#
# `shapes` holds (out, in) of the linears that carry a branch, in each of `blocks` blocks. How many parameters does a
# branch of rank `rank` have?


# %% tags=["exercise"]
def parameters(shapes, rank, blocks):
    # solution
    return blocks * sum(rank * (outputs + inputs) for outputs, inputs in shapes)
    # end


# %%
from snapref.lab.exercises import check

check(
    parameters,
    [
        (([(2, 3)], 1, 1), 5),
        (([(2048, 2048)] * 4, 64, 28), 28 * 1_048_576),
        (([(2048, 2048)] * 6 + [(8192, 2048), (2048, 8192)], 128, 28), 28 * 5_767_168),
    ],
)

# %% [markdown]
# ## Exercise 2 · Is it clear of 0? (medium, 8 minutes)
#
# From the losses of the same questions with the right and with the wrong picture: the mean gap, and the two ends of
# its 95 % interval, mean ± 1.96 · s / √n, with s the standard deviation of the *differences* (divide by n − 1).
#
# <details><summary>Hint</summary>
#
# Subtract first, question by question. What all questions have in common, or what makes one of them hard, is then
# gone. `torch.std` divides by n − 1.
# </details>


# %% tags=["exercise"]
def interval(right, wrong):
    # solution
    gaps = torch.tensor(wrong) - torch.tensor(right)
    reach = 1.96 * gaps.std() / len(gaps) ** 0.5
    return gaps.mean(), gaps.mean() - reach, gaps.mean() + reach
    # end


# %%
check(
    interval,
    [
        (([0.0, 5.0, 9.0], [1.0, 6.0, 10.0]), (1.0, 1.0, 1.0)),
        (([1.0, 1.0, 1.0, 1.0], [1.0, 3.0, 1.0, 3.0]), (1.0, 1 - 1.96 / 3**0.5, 1 + 1.96 / 3**0.5)),
    ],
)

# %% [markdown]
# ## Exercise 3 · Smaller (harder, 12 minutes)
#
# A finished branch can be cut to a lower rank. Return the matrix of rank at most `rank` that is nearest to B A
# (scale 1), for `a` (r, in) and `b` (out, r).
#
# <details><summary>Hint</summary>
#
# Keep the largest singular values of the product: `torch.linalg.svd(b @ a, full_matrices=False)` returns U, S and
# Vᵀ, the largest first.
# </details>


# %% tags=["exercise"]
def cut(a, b, rank):
    # solution
    u, s, v = torch.linalg.svd(b @ a, full_matrices=False)
    return u[:, :rank] * s[:rank] @ v[:rank]
    # end


# %%
eye = torch.eye(3)
check(
    cut,
    [
        ((eye, torch.diag(torch.tensor([1.0, 3.0, 2.0])), 1), torch.diag(torch.tensor([0.0, 3.0, 0.0]))),
        ((eye[:2], torch.tensor([[2.0, 0.0], [0.0, 1.0]]), 2), torch.tensor([[2.0, 0, 0], [0, 1, 0]])),
        ((low_rank.a, low_rank.b, 16), low_rank.b @ low_rank.a),
    ],
)

# %% [markdown]
# ## What you can now say
#
# - A LoRA is W + scale·B A with rank · (in + out) numbers. One branch learns to describe a clean picture, once; the
#   other learns to read it, at every step. At full size that is 190,840,832 parameters beside a frozen base.
# - B = 0 turns the branches off, not the reading. First the model learns not to be disturbed, then to look.
# - The gap, wrong − right on characters never seen, is what to watch. The loss of a batch says little.

# %%
import platform

print(f"snapref {snapref.__version__}, torch {torch.__version__}")
print(f"Python {platform.python_version()} on {platform.system()}, device {pipe.device}")
