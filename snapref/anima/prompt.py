"""Prompt weights in ComfyUI's syntax: "1girl, (smile:1.2)" → [("1girl, ", 1.0), ("smile", 1.2)]."""

import math

# Escaped parentheses stand aside, as characters that no prompt holds, while the others are read.
OPENED, CLOSED = "\0", "\1"


def weighted_segments(prompt: str) -> list[tuple[str, float]]:
    """The prompt cut at its weights: [(text, weight)], parentheses and numbers removed, empty texts left out.

    `(a)` weighs 1.1 times what surrounds it; `(a:1.5)` weighs 1.5 whatever surrounds it; `\\(` and `\\)` are
    plain parentheses; `[ ]` is plain text. A parenthesis without its partner stays. Nothing is an error.
    """
    guarded = prompt.replace("\\(", OPENED).replace("\\)", CLOSED)
    return [
        (text.replace(OPENED, "(").replace(CLOSED, ")"), weight)
        for text, weight in read(guarded, 1.0)
        if text
    ]


def read(text: str, weight: float) -> list[tuple[str, float]]:
    """The segments of a text that carries `weight` as a whole."""
    segments = []
    for piece in pieces(text):
        if len(piece) > 1 and piece[0] == "(" and piece[-1] == ")":
            segments += read(*inside(piece[1:-1], weight * 1.1))
        else:
            segments.append((piece, weight))
    return segments


def inside(text: str, weight: float) -> tuple[str, float]:
    """A group's text and weight: what follows its last colon, where that is a number, else `weight`."""
    head, _, tail = text.rpartition(":")
    try:
        own = float(tail)
    except ValueError:
        return text, weight
    return (head, own) if head and math.isfinite(own) else (text, weight)


def pieces(text: str) -> list[str]:
    """The text cut around its outermost groups: "a (b (c)) d" → ["a ", "(b (c))", " d"]."""
    found, start, depth = [], 0, 0
    for i, character in enumerate(text):
        if character == "(":
            if depth == 0:
                found.append(text[start:i])
                start = i
            depth += 1
        elif character == ")":
            depth -= 1
            if depth == 0:
                found.append(text[start : i + 1])
                start = i + 1
    return [piece for piece in (*found, text[start:]) if piece]
