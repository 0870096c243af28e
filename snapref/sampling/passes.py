"""Which branches the model is asked for, and how their answers become one. DESIGN decisions 6 to 8."""

import math
import warnings
from dataclasses import dataclass

from torch import Tensor

from snapref.sampling import guidance
from snapref.sampling.guidance import Buffers, Projection
from snapref.sampling.settings import Settings


@dataclass(frozen=True)
class Pass:
    """One branch of a step: which prompt it hears, and with what weight it reads the reference."""

    positive: bool
    reads: float  # 1 as strong as `strength` says, 0 not at all


def plan(settings: Settings, reading: bool) -> tuple[Pass, ...]:
    """Returns the branches of one step, the positive one first: one, two or three.

    `reading` says whether a reference is active in this step. Without one, or outside the step window,
    this is plain classifier-free guidance.
    """
    scale, reference_scale = settings.guidance, settings.ref_guidance
    if not reading:
        return (Pass(True, 0.0),) if math.isclose(scale, 1) else (Pass(True, 0.0), Pass(False, 0.0))
    if reference_scale is not None and not math.isclose(reference_scale, 1):
        if math.isclose(reference_scale, scale):
            return Pass(True, 1.0), Pass(False, 0.0)  # the two scales fold into one difference
        return Pass(True, 1.0), Pass(False, 1.0), Pass(False, 0.0)
    if math.isclose(scale, 1):
        return (Pass(True, 1.0),)
    both = settings.ref_in_uncond or reference_scale is not None
    return Pass(True, 1.0), Pass(False, 1.0 if both else 1.0 - settings.fidelity)


def is_open(settings: Settings, step: int, steps: int) -> bool:
    """Whether the window of reading holds a step: it is [ref_start, ref_end) of the run."""
    return settings.ref_start <= step / steps < settings.ref_end


def warn_of_empty_window(settings: Settings, steps: int) -> bool:
    """Whether no step of the run lies in the window of reading; says so."""
    empty = not any(is_open(settings, step, steps) for step in range(steps))
    if empty:
        warnings.warn(
            f"nothing is read: none of {steps} steps begins within ref_start {settings.ref_start:g} to ref_end "
            f"{settings.ref_end:g}; widen the window, or take more steps",
            stacklevel=3,
        )
    return empty


def warn_of_ignored(settings: Settings) -> None:
    """Warns where one setting makes another one mean nothing. settings: resolved."""
    if settings.fidelity < 1 and (settings.ref_in_uncond or settings.ref_guidance is not None):
        other = "ref_in_uncond" if settings.ref_in_uncond else "ref_guidance"
        warnings.warn(
            f"fidelity {settings.fidelity} is ignored: {other} already says what the negative branch reads",
            stacklevel=3,
        )
    elif settings.fidelity < 1 and plan(settings, True) == (Pass(True, 1.0),):
        warnings.warn(
            f"fidelity {settings.fidelity} is ignored: guidance is 1, so no negative branch reads", stacklevel=3
        )
    stitching = ("stitch_direction", "stitch_match", "stitch_spacing", "stitch_colour")
    changed = [name for name in stitching if getattr(settings, name) != getattr(Settings, name)]
    if changed and settings.layout == "separate":
        warnings.warn(f"{' and '.join(changed)} ignored: layout is 'separate'; 'stitch' uses it", stacklevel=3)


def combine(answers: tuple[Tensor, ...], settings: Settings, buffers: Buffers) -> tuple[Tensor, Buffers]:
    """Returns (the guided denoised latent, buffers for the next step).

    answers: one denoised latent (b, c, f, h, w) per pass, in the order of `plan`.
    """
    positive = answers[0]
    projection = Projection(settings.apg_eta, settings.apg_momentum, settings.apg_threshold)
    if len(answers) == 1:
        return positive, buffers
    scales = (settings.guidance,) if len(answers) == 2 else (settings.guidance, settings.ref_guidance)
    if projection.plain:
        guided = (guidance.cfg if len(answers) == 2 else guidance.two_scale)(*answers, *scales)
    else:
        apg = guidance.apg if len(answers) == 2 else guidance.apg_two_scale
        guided, buffers = apg(*answers, *scales, projection, buffers)
    if settings.cfg_rescale:
        guided = guidance.rescale(guided, positive, settings.cfg_rescale)
    return guided, buffers
