"""What a picture reads in its reference while it is drawn: attention by step, block and token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from snapref.anima.attention import KeyGroup
from snapref.anima.block import Block, modulated_norm
from snapref.anima.lowrank import Branch
from snapref.anima.model import AnimaDiT
from snapref.anima.rope import apply_rope
from snapref.lab.plots import ORANGE, SEQUENTIAL, figure, grid, png
from snapref.reference.cache import CacheError, ReferenceCache
from snapref.reference.picture import load_picture
from snapref.sampling.pipeline import Pipeline

STEPS = (0, 5, 11, 19, 27)
ZOOM = 2  # of every picture shown here
DIMMEST = 0.12  # brightness of a part that nobody reads; black would hide what it is


@dataclass(frozen=True)
class Moment:
    """One step of a run."""

    step: int  # from 0
    sigma: float
    picture: Image.Image  # what the model would draw if it had to finish here
    shares: np.ndarray  # (blocks, t, r), see `reference_shares`


@dataclass(frozen=True)
class Watched:
    """A run, seen at some of its steps. Tokens are counted row by row, as everywhere."""

    reference: Image.Image
    moments: tuple[Moment, ...]
    side: int  # pixels per token

    @property
    def target_grid(self) -> tuple[int, int]:
        """(rows, columns) of the tokens of the picture being drawn."""
        return grid_of(self.moments[0].picture, self.side)

    @property
    def reference_grid(self) -> tuple[int, int]:
        return grid_of(self.reference, self.side)


def grid_of(picture: Image.Image, side: int) -> tuple[int, int]:
    return picture.height // side, picture.width // side


@torch.no_grad()
def reference_shares(
    model: AnimaDiT, latent: Tensor, sigma: float, context: Tensor, memory: Sequence[Sequence[KeyGroup]],
    branch: Branch,
) -> Tensor:
    """Share of each target token's self-attention that goes to each remembered token: (blocks, t, r), fp32.

    Mean over the heads; what is missing to 1 stays with the target's own tokens. latent: (1, 16, f, h, w);
    the rest as in `AnimaDiT.forward`. Fused kernels keep their weights to themselves, so every block's
    queries and keys are computed once more beside its forward.
    """
    x, emb, lora, angles = model.enter(latent, torch.tensor([sigma], device=latent.device), (0.0, 0.0, 0.0))
    context, shares = context.to(model.dtype), []
    for block, groups, low_rank in zip(model.blocks, memory, branch, strict=True):
        shares.append(block_shares(block, x, emb, lora, angles, groups, low_rank))
        x = block(x, emb, lora, context, angles, groups, low_rank)
    return torch.stack(shares)


def block_shares(block: Block, x, emb, lora, angles, groups: Sequence[KeyGroup], low_rank) -> Tensor:
    """`reference_shares` of one block: (t, r)."""
    shift, scale, _ = (block.adaln_modulation_self_attn(emb) + lora).chunk(3, dim=-1)
    y = modulated_norm(x, shift, scale).to(emb.dtype)
    q = apply_rope(block.self_attn.query(y, None, low_rank).float(), angles)  # (1, n, t, d)
    own = block.keys_values(x, emb, lora, angles, low_rank)
    groups = [KeyGroup(*own), *groups]
    logits = [q @ g.k.float().mT / q.shape[-1] ** 0.5 + g.log_weight for g in groups]
    weights = torch.cat(logits, dim=-1).softmax(dim=-1)  # (1, n, t, t + r)
    return weights[0, :, :, x.shape[1] :].mean(dim=0)


def watch(
    pipe: Pipeline, prompt: str, picture, steps: Sequence[int] = STEPS, cache: ReferenceCache | None = None,
    **settings,
) -> Watched:
    """Draw `prompt` with one reference picture and note what is read at some of the steps.

    picture: as for `pipe.encode`; cache: what it was encoded to, where that was already done; settings: as
    for `pipe`. Only the positive branch is watched. Raises CacheError for a cache that does not hold one
    picture with all its tokens.
    """
    cache = pipe.encode(picture) if cache is None else cache
    kept = []

    def keep(step: int, sigma: float, latent: Tensor, denoised: Tensor) -> None:
        if step in steps:
            kept.append((step, sigma, latent.clone(), denoised.clone()))

    pipe(prompt, reference=cache, callback=keep, quiet=True, **settings)
    memory = cache.memory(strength=settings.get("strength", 1.0))
    context = pipe.contexts([prompt])[0]
    pictures = pipe.decode(torch.cat([denoised for *_, denoised in kept]))
    moments = []
    for (step, sigma, latent, _), drawn in zip(kept, pictures, strict=True):
        shares = reference_shares(pipe.model, latent, sigma, context, memory, pipe.adapter.target)
        moments.append(Moment(step, sigma, drawn, shares.cpu().numpy()))
    watched = Watched(shown(pipe, picture), tuple(moments), pipe.config.size_step)
    if np.prod(watched.reference_grid) != moments[0].shares.shape[2]:
        raise CacheError(
            f"the cache holds {moments[0].shares.shape[2]} tokens, the picture has "
            f"{np.prod(watched.reference_grid)}; watch one opaque picture at a time"
        )
    return watched


def shown(pipe: Pipeline, picture) -> Image.Image:
    """The reference at the size the model read it."""
    height, width = pipe.size_of(picture)
    return load_picture(picture).convert("RGB").resize((width, height))


def spotlight(picture: Image.Image, amounts: np.ndarray) -> Image.Image:
    """The picture at twice its size, each token as bright as its amount; the largest amount is full light.

    amounts: (rows, columns), not negative.
    """
    light = DIMMEST + (1 - DIMMEST) * amounts / max(amounts.max(), 1e-9)
    large = picture.resize((picture.width * ZOOM, picture.height * ZOOM), Image.Resampling.NEAREST)
    mask = Image.fromarray(np.uint8(255 * light)).resize(large.size, Image.Resampling.NEAREST)
    return Image.composite(large, Image.new("RGB", large.size), mask)


def framed(picture: Image.Image, tokens: Sequence[tuple[int, int]], side: int) -> Image.Image:
    """The picture at twice its size with an orange frame, edged in black, around each token (row, column).

    Several frames carry their numbers, from 1.
    """
    large = picture.resize((picture.width * ZOOM, picture.height * ZOOM), Image.Resampling.NEAREST)
    draw, side, font = ImageDraw.Draw(large), side * ZOOM, ImageFont.load_default(size=13)
    for number, (row, column) in enumerate(tokens, start=1):
        left, top = column * side, row * side
        draw.rectangle((left - 1, top - 1, left + side, top + side), outline="black", width=5)
        draw.rectangle((left, top, left + side - 1, top + side - 1), outline=ORANGE, width=3)
        if len(tokens) > 1:
            draw.rectangle((left, top, left + 12, top + 15), fill=ORANGE)
            draw.text((left + 6, top + 8), str(number), fill="black", font=font, anchor="mm")
    return large


def shares_of(moment: Moment, block: int | None) -> np.ndarray:
    """(t, r) of one block, or the mean over all."""
    return moment.shares.mean(axis=0) if block is None else moment.shares[block]


def readings(watched: Watched, moment: int, token: tuple[int, int], block: int | None = None) -> Image.Image:
    """Two pictures: the drawn one, lit by how much each token reads, and the reference, lit where one looks.

    moment: index into `watched.moments`; token: (row, column); block: None for the mean over all.
    """
    now, (_, columns) = watched.moments[moment], watched.target_grid
    shares = shares_of(now, block)
    reading = shares.sum(axis=1)  # (t,)
    index = token[0] * columns + token[1]
    return grid(
        [
            spotlight(now.picture, reading.reshape(watched.target_grid)),
            spotlight(watched.reference, shares[index].reshape(watched.reference_grid)),
        ],
        [
            f"how much each token reads: {reading.mean():.0%} on average",
            f"what the framed token reads: {reading[index]:.0%} of its attention",
        ],
    )


def sheet(
    watched: Watched, tokens: dict[str, tuple[int, int]], moment: int = -1, block: int | None = None
) -> Image.Image:
    """The still beside the widget: the picture with a frame for each named token, then what each reads."""
    now, (_, columns) = watched.moments[moment], watched.target_grid
    shares = shares_of(now, block)
    pictures, captions = [framed(now.picture, [*tokens.values()], watched.side)], [f"step {now.step + 1}"]
    for number, (name, (row, column)) in enumerate(tokens.items(), start=1):
        share = shares[row * columns + column]
        pictures.append(spotlight(watched.reference, share.reshape(watched.reference_grid)))
        captions.append(f"{number} {name}: {share.sum():.0%} of its attention")
    return grid(pictures, captions)


def attention_widget(watched: Watched, token: tuple[int, int] = (2, 2), moment: int = -1):
    """The picture to point at, sliders for step, block, row and column, and beside it what is read.

    Pointing moves the frame; so do the sliders, with arrow keys too.
    """
    import ipywidgets

    from snapref.lab.pointing import PointingPicture  # what a widget needs is loaded for widgets only

    rows, columns = watched.target_grid
    blocks = [("all", None), *((str(i + 1), i) for i in range(len(watched.moments[0].shares)))]
    steps = [(f"{m.step + 1} (sigma {m.sigma:.2f})", i) for i, m in enumerate(watched.moments)]
    narrow = {"style": {"description_width": "60px"}, "layout": {"width": "340px"}}
    sliders = {
        "step": ipywidgets.SelectionSlider(options=steps, index=moment % len(steps), **narrow),
        "block": ipywidgets.SelectionSlider(options=blocks, index=0, **narrow),
        "row": ipywidgets.IntSlider(token[0], 0, rows - 1, **narrow),
        "column": ipywidgets.IntSlider(token[1], 0, columns - 1, **narrow),
    }
    pointed = PointingPicture(grid=[rows, columns], token=[*token]).add_class("snapref-pointed")
    read = ipywidgets.Image(format="png").add_class("snapref-attention")

    def redraw(_=None) -> None:
        step, block, *at = (slider.value for slider in sliders.values())
        pointed.value = png(framed(watched.moments[step].picture, [at], watched.side))
        read.value = png(readings(watched, step, tuple(at), block))

    def move(change) -> None:
        sliders["row"].value, sliders["column"].value = change["new"]

    for name, slider in sliders.items():
        slider.description = name
        slider.add_class(f"snapref-{name}").observe(redraw, "value")
    pointed.observe(move, "token")
    redraw()
    told = ipywidgets.Label("point at the picture on the left, or move a slider")
    controls = ipywidgets.VBox([told, *sliders.values()])
    return ipywidgets.HBox([pointed, read, controls], layout={"flex_flow": "wrap"})


def share_picture(watched: Watched) -> Figure:
    """Mean share of the target's attention that goes to the reference, by block, one line for each moment."""
    blocks, t, r = watched.moments[0].shares.shape
    drawn = figure(6.4, 3.2)
    axes = drawn.subplots()
    colours = colormaps[SEQUENTIAL](np.linspace(0, 0.85, len(watched.moments)))
    for moment, colour in zip(watched.moments, colours, strict=True):
        means = moment.shares.sum(axis=2).mean(axis=1)
        label = f"step {moment.step + 1}, sigma {moment.sigma:.2f}"
        axes.plot(range(1, blocks + 1), means, "o-", color=colour, label=label)
    axes.axhline(r / (t + r), color="black", linestyle="--", linewidth=1)
    axes.set(xlabel="block", ylabel="share of attention", ylim=(0, 1), xticks=range(1, blocks + 1))
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.spines[["top", "right"]].set_visible(False)
    drawn.legend(loc="outside right upper", frameon=False, fontsize=8)
    return drawn
