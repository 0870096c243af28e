# %% [markdown]
# # 5 · Guidance
#
# After this notebook you can
#
# - work out classifier-free guidance by hand, with one scale and with two;
# - take the oversaturating part out of it (APG), or pull the contrast back (rescale), and say when they differ;
# - choose between guidance, `ref_guidance`, fidelity and strength, and say what each costs in model calls.
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
# One prompt, one reference, one noise. Only what is done with the model's answers differs. Each step asks the model
# twice, and **guidance** says how far to go from one answer towards, and past, the other.

# %%
import torch

import snapref
from snapref.lab.plots import grid, still
from snapref.sampling.settings import Settings
from snapref.world.samples import references

pipe = snapref.load("nano")
PROMPT = "1girl, beach, waving, full body"
picture = references()[5].picture()
memory = pipe.encode(picture)
run = {"steps": 10, "seed": 3, "quiet": True}

ways = {
    "guidance 1": {"guidance": 1},
    "guidance 3": {"guidance": 3},
    "guidance 6": {"guidance": 6},
    "6, APG eta 0": {"guidance": 6, "apg_eta": 0},
    "6, rescale 0.7": {"guidance": 6, "cfg_rescale": 0.7},
}
drawn = [pipe(PROMPT, memory, **run, **way).image for way in ways.values()]
still(
    grid([picture, *drawn], ["the reference", *ways], columns=3, zoom=2),
    "The reference, and the same noise drawn with guidance 1, 3, 6, and 6 with APG or with rescale",
)

# %% [markdown]
# *From the same noise. From guidance 3 on the small things, eyes first, come apart, and at 6 neither tool mends them.
# Compare colours and contrast in the last three.*
#
# **Guess before you move anything.** Guidance up: more colour all the way, or not? Which holds the latent's spread
# back better at guidance 9, `apg_eta` 0 or `cfg_rescale` 0.7? And when you tick "two scales" with `ref_guidance` equal
# to `guidance`, what changes?

# %%
from snapref.lab.guidance_board import GuidanceBoard

GuidanceBoard(pipe, picture, PROMPT, Settings(steps=10, seed=3, guidance=6)).show()

# %% [markdown]
# *Left the reference, then the picture the sliders started from, then the picture of the sliders now. Saturation
# is the mean CIELAB chroma; the start is 100 %. Until a slider moves both are the same.*
#
# ## Two answers, two numbers
#
# A picture of two numbers will do. With the prompt the model says (4, 3), with the negative prompt (2, 4). The
# difference is what the prompt asked for. Guidance $w$ starts at the negative and takes that difference $w$ times:
#
# $$g = n + w\,(p - n) = p + (w - 1)(p - n)$$
#
# At $w = 1$ it is the positive answer alone. Work out $w = 3$ before you run the cell.

# %%
from snapref.sampling import guidance

p, n = torch.tensor([[4.0, 3.0]]), torch.tensor([[2.0, 4.0]])  # one sample of two numbers each
for w in (0, 1, 3):
    print(f"w = {w}: {(n + w * (p - n)).tolist()[0]}")
assert torch.equal(guidance.cfg(p, n, 3), torch.tensor([[8.0, 1.0]]))

# %% [markdown]
# Now take the difference (2, −1) apart. The part *along* the positive answer only makes that answer longer: more of
# the same, which in a picture is contrast and colour. The part *across* changes what is shown.
#
# - along: (2·4 − 1·3) / (4² + 3²) = 0.2 of (4, 3), which is (0.8, 0.6)
# - across: what remains, (1.2, −1.6)

# %%
along, across = guidance.split(p - n, p)
print("along ", along, "\nacross", across)
assert torch.allclose(along, torch.tensor([[0.8, 0.6]]))
assert abs((across * p).sum().item()) < 1e-5  # at a right angle to p

# %%
from snapref.lab.guidance_view import arrows_picture

still(
    arrows_picture((4, 3), (2, 4), 3),
    "Arrows: negative (2, 4), positive (4, 3), guided (8, 1); the step along (0.8, 0.6) and across (1.2, -1.6)",
)

# %% [markdown]
# *The dashed circle's radius is the length of the positive answer. Plain guidance leaves it far behind. Without the
# part along (eta 0) the result goes just as far across, so it turns further, and grows less.*
#
# ## APG
#
# Adaptive projected guidance keeps the whole part across, and a share $\eta$ of the part along:
#
# $$g = p + (w - 1)\,(\Delta_{\text{across}} + \eta\,\Delta_{\text{along}})$$
#
# Eta 1 is plain guidance.


# %%
def apg_by_hand(p, n, w, eta):
    difference = p - n
    rest = tuple(range(1, p.dim()))  # everything but the batch
    along = (difference * p).sum(rest, keepdim=True) / (p * p).sum(rest, keepdim=True) * p
    return p + (w - 1) * (difference - along + eta * along)


for eta in (1, 0.5, 0):
    g = apg_by_hand(p, n, 3, eta)
    print(f"eta {eta:3}: ({g[0, 0]:.1f}, {g[0, 1]:.1f}), length {g.norm():.2f}; the positive has {p.norm():.2f}")
    same, _ = guidance.apg(p, n, 3, guidance.Projection(eta=eta))
    assert torch.allclose(g, same)
assert torch.allclose(apg_by_hand(p, n, 3, 1), guidance.cfg(p, n, 3))

# %% [markdown]
# Three traps, all met in the wild:
#
# 1. **w or w − 1.** Some programs compute $p + w\,(…)$. With eta 1 that is guidance $w + 1$.
# 2. **Which space.** The model answers with a velocity $v$; the clean picture is $x_0 = x - \sigma v$. Plain guidance
#    is the same in both. APG is not: "along the picture" means something, "along the velocity" something else.
# 3. **Which norm.** One length for the whole sample, not one per channel.
#
# Here are all three on random latents:

# %%
generator = torch.Generator().manual_seed(0)
x, v_p, v_n = torch.randn(3, 1, 16, 1, 8, 6, generator=generator)
sigma = 0.7


def denoised(v):
    return x - sigma * v


def off(a, b):
    return f"{((a - b).norm() / b.norm()).item():.1%}"


clean_p, clean_n = denoised(v_p), denoised(v_n)
paper = apg_by_hand(clean_p, clean_n, 3, 0)
print("CFG, velocity against x0:  ", off(denoised(guidance.cfg(v_p, v_n, 3)), guidance.cfg(clean_p, clean_n, 3)))
print("APG, velocity against x0:  ", off(denoised(apg_by_hand(v_p, v_n, 3, 0)), paper))
print("APG, w in place of w - 1:  ", off(apg_by_hand(clean_p, clean_n, 4, 0), paper))
channels = [t.flatten(0, 1) for t in (clean_p, clean_n)]  # every channel a sample of its own
print("APG, a norm per channel:   ", off(apg_by_hand(*channels, 3, 0).view_as(paper), paper))
assert torch.allclose(denoised(guidance.cfg(v_p, v_n, 3)), guidance.cfg(clean_p, clean_n, 3), atol=1e-5)

# %% [markdown]
# *Random numbers, so the percentages say only that these are different formulas. `snapref` works on $x_0$, over
# everything but the batch.*
#
# ## Rescale
#
# The blunter tool. Guidance makes the spread of the numbers larger. Rescale multiplies the *whole* result so that
# its standard deviation goes back, by a share $\varphi$, to that of the positive answer. It changes no direction.

# %%
p4, g4 = torch.tensor([[1.0, -1.0, 1.0, -1.0]]), torch.tensor([[3.0, -3.0, 1.0, -1.0]])
for share in (0, 0.5, 1):
    scaled = guidance.rescale(g4, p4, share)
    print(f"share {share:3}: {[round(value, 2) for value in scaled[0].tolist()]}, spread {scaled.std():.2f}")
assert torch.equal(guidance.rescale(g4, p4, 0), g4)
assert torch.isclose(guidance.rescale(g4, p4, 1).std(), p4.std())

# %% [markdown]
# ## The saturation curve
#
# A few noises, guidance from 1 upwards, three ways each. Left the colour the eye sees. Right the spread of the
# latent, where guidance does its work: a picture's colours end at black and white, a latent's do not.

# %%
from snapref.lab.guidance_view import curve_picture, measure

scales = (1, 2, 3, 4.5, 6, 9)
curves = measure(pipe, PROMPT, memory, scales, seed=20, count=3, steps=6, size=(96, 64))
still(
    curve_picture(curves, scales),
    "Colour and latent spread over guidance 1 to 9: plain, APG with eta 0, rescale 0.7",
)

# %%
print(f"guidance {scales[-1]}, in % of guidance 1: colour, spread")
for name, curve in curves.items():
    colour, spread = (100 * (values[-1] / values[0]).mean() for values in (curve.colour, curve.spread))
    print(f"   {name:12}{colour:8.0f}{spread:8.0f}")
plain, *others = curves.values()
assert all((plain.spread[0] == other.spread[0]).all() for other in others)  # guidance 1 has nothing to project

# %% [markdown]
# *Lines are means of three noises, bands their range; the small picture and six steps keep it quick. The curves
# start at one point: at guidance 1 there is no difference to take apart. At moderate scales APG keeps the spread
# lowest; at the largest rescale does, and APG ends above plain guidance: it bounds one step, not the run, and the
# parts across add up. From guidance 2 on plain colour hardly rises, while the spread goes on: colours end at black and
# white.*
#
# ## Two scales
#
# With a reference there are three answers, not two:
#
# | | prompt | reference |
# |---|---|---|
# | $p$ | positive | read |
# | $n$ | negative | read |
# | $u$ | negative | not read |
#
# Going from $u$ to $n$ is what the *reference* adds, from $n$ to $p$ what the *prompt* adds. Each gets its own scale:
#
# $$g = u + r\,(n - u) + s\,(p - n)$$
#
# $s$ is `guidance`, $r$ is `ref_guidance`. Two values of $r$ make one answer drop out. Which ones?


# %%
def two_scale_by_hand(p, n, u, s, r):
    return u + r * (n - u) + s * (p - n)


u = torch.tensor([[1.0, 1.0]])
for r in (1, 2, 3):
    print(f"s = 3, r = {r}: {two_scale_by_hand(p, n, u, 3, r).tolist()[0]}")
assert torch.equal(two_scale_by_hand(p, n, u, 3, 1), guidance.cfg(p, n, 3))  # r = 1: u drops out
assert torch.equal(two_scale_by_hand(p, n, u, 3, 3), guidance.cfg(p, u, 3))  # r = s: n drops out

# %% [markdown]
# Now the model's own answers, at one noisy moment. A `Denoiser` is the model of one run. Asked once, it has the three
# answers ready, and its result must be the line above.

# %%
from snapref.sampling.denoiser import Denoiser

settings = Settings(steps=10, guidance=3, ref_guidance=2).resolved(pipe.config)
noise = pipe.start(1, settings, 1.0)
words, nothing = pipe.contexts([PROMPT]), pipe.contexts([""])
with Denoiser(pipe.model, words, nothing, settings, 10, [memory], pipe.adapter.target) as denoiser:
    combined = denoiser(noise, 1.0)
    with torch.no_grad():
        positive, negative, unread = denoiser.answers(noise, 1.0)
assert torch.allclose(combined, two_scale_by_hand(positive, negative, unread, 3, 2), atol=1e-4)

for name, step in {"prompt, p - n": positive - negative, "reference, n - u": negative - unread}.items():
    along, _ = guidance.split(step, positive)
    print(f"{name:18} length {step.norm():6.2f}, of its square {(along.norm() / step.norm()) ** 2:.1%} lies along p")

# %% [markdown]
# *Pure noise, the first step. APG with eta 0 takes these shares away; each later step has shares of its own. With two
# scales it projects both differences onto $p$: $g = p + (s - 1)\,P(p - n) + (r - 1)\,P(n - u)$. Where a share is small,
# APG can change little.*
#
# What drops out of the formula is never computed. `Result.branches` counts the model calls:

# %%
asked = {
    "guidance 1": {"guidance": 1},
    "guidance 3 (default: positive reads)": {"guidance": 3},
    "guidance 3, ref_guidance 3": {"guidance": 3, "ref_guidance": 3},
    "guidance 3, ref_in_uncond": {"guidance": 3, "ref_in_uncond": True},
    "guidance 3, ref_guidance 1": {"guidance": 3, "ref_guidance": 1},
    "guidance 3, ref_guidance 2": {"guidance": 3, "ref_guidance": 2},
}
few = {"steps": 4, "seed": 3, "quiet": True}
results = {name: pipe(PROMPT, memory, **few, **way) for name, way in asked.items()}
for name, result in results.items():
    print(f"{name:38}{result.branches // 4} calls per step")

one, default, equal, both, unit, three = results.values()
assert [r.branches // 4 for r in results.values()] == [1, 2, 2, 2, 2, 3]
assert torch.equal(default.latents, equal.latents) and torch.equal(both.latents, unit.latents)

# %% [markdown]
# So the default already *is* reference guidance, at the scale of the prompt. A smaller $r$ holds the reference back, a
# larger one pushes it; either costs a third call, except $r = 1$.

# %%
pulls = (1, 3, 6)
drawn = [pipe(PROMPT, memory, **run, guidance=3, ref_guidance=r).image for r in pulls]
still(
    grid(drawn, [f"r = {r}" for r in pulls], zoom=2),
    "Drawings with guidance 3 and ref_guidance 1, 3 and 6",
)

# %% [markdown]
# ## Fidelity and strength
#
# Two controls that need no third call. **Fidelity** $f$ lets the negative branch read with weight $1 - f$: the more it
# reads, the less of the reference is left in the difference. **Strength** weighs the reference's keys in *every* branch
# that reads. The ends are old friends:

# %%
def draw(**way):
    return pipe(PROMPT, memory, **few, guidance=3, **way).latents


assert torch.equal(draw(fidelity=1), draw())
assert torch.allclose(draw(fidelity=0), draw(ref_in_uncond=True), atol=1e-4)
assert torch.equal(draw(strength=0), pipe(PROMPT, **few, guidance=3).latents)
print("fidelity 1 is the default, fidelity 0 is ref_in_uncond, strength 0 is the base model to the bit")

# %%
rows = [{"fidelity": 0}, {"strength": 0.5}, {"strength": 1}, {"strength": 1.5}]
drawn = [pipe(PROMPT, memory, **run, guidance=3, **row).image for row in rows]
names = [f"{name} {value:g}" for row in rows for name, value in row.items()]
still(
    grid(drawn, names, columns=4, zoom=2),
    "Drawings with fidelity 0, and with strength 0.5, 1 (the default) and 1.5",
)

# %% [markdown]
# *One noise throughout. Look for the character first, then for the scene.*
#
# | control | what it scales | calls per step |
# |---|---|---|
# | `guidance` | the whole difference | 2 (1 at guidance 1) |
# | `ref_guidance` | the reference's part of it | 3 (2 at 1 and at `guidance`) |
# | `fidelity` | what the negative branch reads | 2 |
# | `strength` | the keys of the reference, before any difference | no more |
# | `apg_eta`, `cfg_rescale` | the answers, afterwards | no more |
#
# ## The board again
#
# In the middle the reference is pushed hard; on the right `apg_eta` has already been taken to 0. Put it back to 1 and
# take `cfg_rescale` up instead. Neither costs a call. Which one keeps the outlines darker?

# %%
pushed = Settings(steps=10, seed=3, guidance=6, ref_guidance=8)
board = GuidanceBoard(pipe, picture, PROMPT, pushed)
board.draw()  # the start: as pushed
board.controls["apg_eta"].value = 0  # what your hand would do
board.show()

# %% [markdown]
# *Middle: guidance 6, ref_guidance 8. Right: the same with eta 0.*
#
# ## Exercise 1 · Count the calls (easy, 4 minutes)
#
# How many model calls does a step take with guidance `s` and reference guidance `r` (None: not given)?
#
# <details><summary>Hint</summary>
#
# Write the formula as a weight for each of $u$, $n$ and $p$. A weight of 0 is a call saved. Not given means $r = s$.
# </details>


# %% tags=["exercise"]
def calls(s, r):
    # solution
    r = s if r is None else r
    return sum(weight != 0 for weight in (1 - r, r - s, s))
    # end


# %%
from snapref.lab.exercises import check
from snapref.sampling.passes import plan

pairs = [(1, None), (3, None), (3, 1), (3, 3), (3, 2), (1, 2)]
check(calls, [((s, r), len(plan(Settings(guidance=s, ref_guidance=r), reading=True))) for s, r in pairs])

# %% [markdown]
# ## Exercise 2 · Keep the length (medium, 8 minutes)
#
# Return the guidance $w$ at which plain guidance doubles the length of $p$, when $n$ is the share `k` of $p$ (so
# $n = k\,p$ with $k$ below 1). Then say how long APG with eta 0 makes it, as a multiple of $p$.
#
# <details><summary>Hint</summary>
#
# The whole difference lies along $p$: it is $(1 - k)\,p$.
# </details>


# %% tags=["exercise"]
def doubled(k):
    # solution
    return 1 + 1 / (1 - k), 1.0
    # end


# %%
check(doubled, [((0.5,), (3.0, 1.0)), ((0.0,), (2.0, 1.0)), ((0.9,), (11.0, 1.0))])

# %% [markdown]
# ## Exercise 3 · APG with a limit (harder, 12 minutes)
#
# The paper has two more controls. With a momentum $\beta$ (`apg_momentum`) the difference of a step is itself plus
# $\beta$ times that of the step before; $\beta$ below 0 takes back a part of what was pushed last, above 0 the pushes
# add up. With a limit (`apg_threshold`, 0 for none) a difference that is longer is cut to that length, per sample.
# Both come before the split. Write the limit, for tensors shaped (b, …).
#
# <details><summary>Hint</summary>
#
# `torch.linalg.vector_norm(difference, dim=rest, keepdim=True)` is the length; multiply by `limit / length`, at most 1.
# Then as in `apg_by_hand`.
# </details>


# %% tags=["exercise"]
def apg_limited(p, n, w, eta, limit):
    # solution
    rest = tuple(range(1, p.dim()))
    difference = p - n
    length = torch.linalg.vector_norm(difference, dim=rest, keepdim=True)
    difference = difference * (limit / length).clamp(max=1)
    along = (difference * p).sum(rest, keepdim=True) / (p * p).sum(rest, keepdim=True) * p
    return p + (w - 1) * (difference - along + eta * along)
    # end


# %%
cases = []
for eta, limit in ((1.0, 1e6), (0.0, 1.0), (0.3, 5.0)):
    wanted, _ = guidance.apg(positive, negative, 4, guidance.Projection(eta=eta, threshold=limit))
    cases.append(((positive, negative, 4, eta, limit), wanted))
check(apg_limited, cases)

# %% [markdown]
# ## What you can now say
#
# - Guidance goes from one answer past another. With a reference there are three answers and two scales; at $r = 1$ and
#   $r = s$ one of them drops out, and its model call with it.
# - APG removes the part of a step that only makes the picture more of itself; rescale shrinks the whole. Both are free
#   and work on $x_0$.
# - Fidelity and strength act on what is *read*, guidance on what is done with the answers.

# %%
import platform

print(f"snapref {snapref.__version__}, torch {torch.__version__}")
print(f"Python {platform.python_version()} on {platform.system()}, device {pipe.device}")
