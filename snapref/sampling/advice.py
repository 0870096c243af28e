"""Running out of memory as one sentence: what the run needs, what the card has, and what to lower."""

import dataclasses
import functools
import inspect
import math
import sys

import torch
from torch import nn

from snapref.sampling.memory import CONTEXT, GB, Ask, make_plan


class OutOfMemory(MemoryError):
    """A run that needs more than the card has, in one sentence that ends with what to lower."""


def lowered(ask: Ask) -> list[tuple[str, Ask]]:
    """What can be lowered, in the order in which it is missed least, each in words and as an ask."""
    change, found = dataclasses.replace, []
    if ask.batch > 1:
        ask = change(ask, batch=1)
        found.append(("draw one prompt at a time", ask))
    if not ask.offload and ask.config.codec.kind != "nano":
        ask = change(ask, offload=True)
        found.append(("load with offload=True", ask))
    if ask.references and ask.ref_megapixels > 0.5:
        ask = change(ask, ref_megapixels=0.5)
        found.append(("set ref_megapixels=0.5", ask))
    for factor in (0.75, 0.5):
        step = ask.config.size_step
        small = tuple(max(step, int(side * factor) // step * step) for side in ask.size)
        found.append((f"draw {small[1]}x{small[0]}", change(ask, size=small)))
    return found


def advice(ask: Ask, room: int) -> str:
    """Returns one sentence: what the run needs, what there is, and what to lower, added up until it fits."""
    needed = make_plan(ask).peak
    steps = []
    for words, less in lowered(ask):
        if words.startswith("draw ") and steps and steps[-1].startswith("draw ") and "x" in steps[-1]:
            steps.pop()
        steps.append(words)
        peak = make_plan(less).peak
        if peak <= room:
            break
    else:
        peak = make_plan(less).peak
    height, width = ask.size
    what = f"drawing {width}x{height}" + (f" with {counted(ask.references)}" if ask.references else "")
    fits = f"then it is {peak / GB:.1f} GB" if peak <= room else f"even so it is {peak / GB:.1f} GB: take another card"
    return (
        f"out of memory: {what} needs about {needed / GB:.1f} GB, the card has {room / GB:.1f} GB free; "
        f"{' and '.join(steps)}, {fits}"
    )


def in_one_sentence(method):
    """A method of the pipeline whose running out of memory prints the plan and raises `OutOfMemory`."""

    @functools.wraps(method)
    def told(self, *args, **options):
        try:
            return method(self, *args, **options)
        except torch.OutOfMemoryError as error:
            given = inspect.signature(method).bind(self, *args, **options).arguments
            ask = ask_of(self, given)
            print(make_plan(ask), file=sys.stderr)
            raise OutOfMemory(advice(ask, free_bytes(self))) from error

    return told


def ask_of(pipe, given: dict) -> Ask:
    """Returns what a call with these arguments asks of the card."""
    options = given.get("changes", {})
    settings = given.get("settings")

    def value(name: str, otherwise):
        found = options.get(name, given.get(name, getattr(settings, name, None)))
        return otherwise if found is None else found

    prompt, reference = given.get("prompt", ""), given.get("reference")
    each = given.get("references") or ()
    counted = reference if isinstance(reference, (list, tuple)) else [reference] * (reference is not None)
    guidance = value("guidance", pipe.config.default_guidance)
    linears = [m for m in pipe.model.blocks[0].modules() if isinstance(m, nn.Linear)]
    return Ask(
        pipe.config,
        pipe.model.dtype,
        tuple(value("size", pipe.config.default_size)),
        batch=1 if isinstance(prompt, str) else max(1, len(prompt)),
        passes=1 if math.isclose(guidance, 1) else 2,
        references=max(len(counted), len(each)),
        ref_megapixels=value("ref_megapixels", pipe.config.default_ref_megapixels),
        fp8=any(linear.weight.dtype.itemsize == 1 for linear in linears),
        offload=pipe.model.visits is not None,
        adapter=pipe.adapter is not None,
    )


def free_bytes(pipe) -> int:
    """Bytes that this program could have on the pipeline's card: what is free, and what it holds already."""
    if pipe.device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(pipe.device)
    return free + torch.cuda.memory_reserved(pipe.device) + CONTEXT


def counted(references: int) -> str:
    return "1 reference" if references == 1 else f"{references} references"
