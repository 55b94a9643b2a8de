"""Splits text into chunks of a bounded number of tokens, which overlap.

A chunk ends at the end of a paragraph, a sentence, a line or a word, whichever of these comes first in this order and
lies in the last part of the chunk; a word that fills that part is cut. Chunks are exact parts of the text. Tokens are
counted by the embedding model, whose tokenizer reports no positions, so the end of a chunk is found by counting parts
of the text: about two calls for each chunk.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

CountTokens = Callable[[str], Awaitable[int]]

_TAIL: Final = 0.15  # fraction of a chunk in which its end is searched
_ENDS: Final = (
    re.compile(r"\n[ \t]*\n\s*"),  # of paragraphs
    re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]"),  # of sentences; CJK has no space after them
    re.compile(r"\n"),
    re.compile(r"\s+"),
)
_FIRST_RATIO: Final = 4.0  # characters of a token, until the text has shown its own
_HALF: Final = 0.54  # of a text: its first half ends between this and 15 % before
_FULL: Final = 0.9  # fraction of the tokens from which a chunk counts as full
_MARGIN: Final = 0.97  # of a corrected length, which would otherwise often be one token too long
_MAX_COUNTS: Final = 4  # for one chunk, before its length is halved until it fits


async def split_text(text: str, max_tokens: int, overlap: int, count: CountTokens) -> AsyncIterator[str]:
    """Yield the chunks of a text: at most `max_tokens` each, with about `overlap` tokens of the previous one."""
    start, ratio = 0, _FIRST_RATIO
    while start < len(text):
        end, ratio = await _fit(text, start, max_tokens, ratio, count)
        cut = end if end == len(text) else find_cut(text, start, end)
        if not (chunk := text[start:cut]).isspace():
            yield chunk
        if cut == len(text):
            return
        start = _find_start(text, start, cut, int(overlap * ratio))


async def split_windows(text: str, max_tokens: int, count: CountTokens) -> list[str]:
    """Split a text into parts of at most `max_tokens` each, by halving it until they fit."""
    if len(text) < 2 or await count(text) <= max_tokens:
        return [text]
    middle = find_cut(text, 0, int(len(text) * _HALF))
    return [
        *await split_windows(text[:middle], max_tokens, count),
        *await split_windows(text[middle:], max_tokens, count),
    ]


def find_cut(text: str, start: int, end: int) -> int:
    """Return the best position to cut at, in the last part of the range; `end` if there is none."""
    tail = end - int((end - start) * _TAIL)
    for pattern in _ENDS:
        if ends := [found.end() for found in pattern.finditer(text, tail, end)]:
            return ends[-1]
    return end


async def _fit(text: str, start: int, max_tokens: int, ratio: float, count: CountTokens) -> tuple[int, float]:
    """Return the end of a part from `start` that fits and is almost full, and its characters per token."""
    length, best, counts = max(int(max_tokens * ratio), 1), start, 0
    while True:
        end = min(start + length, len(text))
        tokens, counts = max(await count(text[start:end]), 1), counts + 1
        ratio = (end - start) / tokens
        if tokens <= max_tokens:
            best = max(best, end)
        is_full = best == end and (end == len(text) or tokens >= max_tokens * _FULL)
        if is_full or (counts > _MAX_COUNTS and best > start) or length == 1:
            return max(best, start + 1), ratio
        length = max(int(length / 2 if counts > _MAX_COUNTS else max_tokens * ratio * _MARGIN), 1)


def _find_start(text: str, start: int, cut: int, overlap: int) -> int:
    """Return the start of the next chunk: a sentence or word at most `overlap` characters before the last end."""
    earliest = max(cut - overlap, start + 1)
    for pattern in _ENDS[1:]:
        if (found := pattern.search(text, earliest, earliest + (cut - earliest) // 2)) is not None:
            return found.end()
    return earliest
