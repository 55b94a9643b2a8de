"""The zero-width space that breaks up control strings in prompts, and its removal from what models repeat."""

from typing import Final

GAP: Final = "\u200b"  # a tokenizer that does not know it treats it as a space
GAP_PREDECESSORS: Final = frozenset(
    "<[]｜"
)  # inserted only after these characters: all control strings start with one of them


def remove_gaps(text: str, previous: str = "") -> str:
    """Remove inserted gaps. `previous` is the character before the text."""
    head, *pieces = (previous + text).split(GAP)
    out, last = [head], head[-1:]
    for piece in pieces:
        if last not in GAP_PREDECESSORS:
            out.append(GAP)
            last = GAP
        out.append(piece)
        last = piece[-1:] or last
    return "".join(out)[len(previous) :]
