"""The space without width by which control strings are broken up in prompts, and taken out of what models repeat."""

from typing import Final

GAP: Final = "\u200b"  # a tokenizer that does not know it takes it for a space
BEFORE: Final = frozenset("<[]｜")  # it is put after these alone: with them all control strings begin


def without_gaps(text: str, before: str = "") -> str:
    """`before`: the character that came before the text."""
    head, *rest = (before + text).split(GAP)
    told, last = [head], head[-1:]
    for piece in rest:
        if last not in BEFORE:
            told.append(GAP)
            last = GAP
        told.append(piece)
        last = piece[-1:] or last
    return "".join(told)[len(before) :]
