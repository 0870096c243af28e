"""How long a picture takes on a card that is not here: arithmetic counted, a rate assumed, both shown."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from snapref.anima.attention import KeyGroup
from snapref.anima.model import AnimaDiT
from snapref.config import BASE, ModelConfig
from snapref.lab.memory_view import Card
from snapref.sampling.memory import new_codec

TERA = 1e12
SHARES = (0.2, 0.4)  # of a card's published rate that is reached: the assumption behind every second here
# Published, not measured here: seconds of a picture with one reference on an A100, 832 x 1216, 28 steps.
PUBLISHED_SECONDS, PUBLISHED_RATE = 8.9, 312.0


@dataclass(frozen=True)
class Work:
    """Operations of one picture (a multiplication and an addition count as two). reading, steps, pixels: of the
    reference's pass, of all guided steps, of the codec's two ways."""

    reading: int
    steps: int
    codec: int

    @property
    def total(self) -> int:
        return self.reading + self.steps + self.codec


def counted(call: Callable[[], object]) -> int:
    """Returns the operations of matrix products and convolutions in a call on meta tensors: none is done."""
    with torch.no_grad(), torch.device("meta"), FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@lru_cache(maxsize=16)
def model_flops(config: ModelConfig, size: tuple[int, int], ref_tokens: int = 0) -> int:
    """One pass of the model over a picture of `size`, without the LLM adapter; ref_tokens: cached ones it reads."""
    dit, (height, width) = config.dit, (side // config.codec.factor for side in size)

    def of(blocks: int) -> int:
        with torch.device("meta"):
            model = AnimaDiT(dataclasses.replace(config, text=None, dit=dataclasses.replace(dit, blocks=blocks)))
            latent, sigma = torch.empty(1, dit.latent_channels, 1, height, width), torch.empty(1)
            context = torch.empty(1, config.text.context_rows, dit.context_width)
            side = torch.empty(1, dit.heads, ref_tokens, dit.head_dim)
        memory = [[KeyGroup(side, side)]] * blocks if ref_tokens else None
        return counted(lambda: model(latent, sigma, context, memory=memory))

    one, two = of(1), of(2)
    return one + (two - one) * (dit.blocks - 1)  # every further block adds the same


@lru_cache(maxsize=16)
def codec_flops(config: ModelConfig, size: tuple[int, int]) -> int:
    """Encoding one picture of `size` and decoding another."""
    factor, channels = config.codec.factor, config.codec.latent_channels
    with torch.device("meta"):
        codec, pixels = new_codec(config), torch.empty(1, 3, *size)
        latent = torch.empty(1, channels, 1, *(side // factor for side in size))
    return counted(lambda: (codec.encode(pixels), codec.decode(latent)))


def work(config: ModelConfig = BASE, size: tuple[int, int] | None = None, steps: int | None = None,
         reference: bool = True) -> Work:  # fmt: skip
    """Returns the operations of one picture with guidance; the reference has the picture's size and is read by the
    positive pass alone."""
    size, steps = size or config.default_size, steps or config.default_steps
    tokens = size[0] * size[1] // config.size_step**2 if reference else 0
    plain = model_flops(config, size)
    guided = plain + (model_flops(config, size, tokens) if reference else plain)
    return Work(plain if reference else 0, guided * steps, codec_flops(config, size))


def seconds(card: Card, done: Work, share: float) -> float:
    """Returns the seconds of one picture if `share` of the card's published rates is reached throughout.

    The codec runs in fp32, and so does the reading with fp16 weights.
    """
    in_single = done.codec + (done.reading if card.dtype == torch.float16 else 0)
    return (in_single / card.single + (done.total - in_single) / card.half) / share / TERA


def published_share(done: Work) -> float:
    """Returns the share of an A100's published rate that the published time of the same work amounts to."""
    return done.total / TERA / PUBLISHED_SECONDS / PUBLISHED_RATE
