"""Exercises: one friendly sentence on what a reader wrote. How a stub is made is in `stubs`."""

from collections.abc import Callable, Sequence

import numpy as np

PASSED = "Right"
Cases = Sequence[tuple[tuple, object]]  # (arguments, expected value)


def check(function: Callable, cases: Cases, hint: str = "", tolerance: float = 1e-5) -> None:
    """Print one sentence: right, not written yet, or the first case that differs. Never raises.

    tolerance is relative and absolute; hint is added to every sentence but the good one.
    """
    print(verdict(function, cases, hint, tolerance))


def verdict(function: Callable, cases: Cases, hint: str = "", tolerance: float = 1e-5) -> str:
    """Returns the sentence that `check` prints; it starts with PASSED exactly when every case agrees."""
    name = getattr(function, "__name__", "your function")
    for arguments, expected in cases:
        call = f"{name}({', '.join(_short(a) for a in arguments)})"
        try:
            got = function(*arguments)
        except Exception as error:  # the reader's own code may raise anything
            return _sentence(f"Not yet: {call} stops with {type(error).__name__}: {error}.", hint)
        if got is None or got is ...:
            return f"Not yet: {name} gives nothing back. Replace the dots with your lines and run both cells."
        problem = difference(got, expected, tolerance)
        if problem:
            return _sentence(f"Not yet: {call} {problem}.", hint)
    return f"{PASSED}: {name} agrees on {len(cases)} {'case' if len(cases) == 1 else 'cases'}."


def difference(got, expected, tolerance: float = 1e-5) -> str:
    """Returns "" when both agree, else the end of a sentence that says how they differ."""
    if isinstance(expected, (tuple, list)) and isinstance(got, (tuple, list)):
        if len(got) != len(expected):
            return f"gives {len(got)} values, expected {len(expected)}"
        parts = ((i, difference(g, e, tolerance)) for i, (g, e) in enumerate(zip(got, expected, strict=True)))
        return next((f"{text} (value {i})" for i, text in parts if text), "")
    got_array, expected_array = _array(got), _array(expected)
    if got_array is None or expected_array is None:
        return "" if got == expected else f"gives {_short(got)}, expected {_short(expected)}"
    if got_array.shape != expected_array.shape:
        return f"has shape {got_array.shape}, expected {expected_array.shape}"
    if np.allclose(got_array, expected_array, rtol=tolerance, atol=tolerance, equal_nan=True):
        return ""
    if not expected_array.shape:
        return f"gives {got_array:.6g}, expected {expected_array:.6g}"
    return f"is off by up to {np.abs(got_array - expected_array).max():.3g} (allowed {tolerance:g})"


def _sentence(text: str, hint: str) -> str:
    return f"{text} {hint}".rstrip()


def _array(value) -> np.ndarray | None:
    """Returns numbers as an array, None for anything else."""
    if hasattr(value, "detach"):  # a tensor; bf16 has no numpy type
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        return None
    return array.astype(np.float64) if array.dtype.kind in "biuf" else None


def _short(value) -> str:
    shape = getattr(value, "shape", None)
    if shape:
        return f"array of shape {tuple(shape)}"
    text = repr(value.item() if hasattr(value, "item") else value)
    return text if len(text) <= 40 else text[:37] + "..."
