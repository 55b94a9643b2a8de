"""Aligns log probabilities with tokens, and with text by the character positions of their tokens.

A token may be part of a character, or arrive before its text, which the engine held back. So the length of a token is
computed from its bytes, and the position is corrected whenever the last token of a chunk is the end of the chunk's
text.
"""

from collections import deque
from collections.abc import Sequence

from antiphon.core.prompt import Chunk
from antiphon.protocol.types.parts import Logprob


class LogprobAligner:
    """Maps character ranges of the output to log probabilities."""

    def __init__(self, received: int) -> None:
        """`received`: characters of the output that came without log probabilities."""
        self._received = received
        self._token_end = received  # end of the last token
        self._text_end = received  # end of the last text that took tokens
        self._same_message = False  # the next text belongs to the same message
        self._tokens: deque[tuple[int, int, Logprob]] = deque()  # (begin, end, log probability)

    @property
    def is_empty(self) -> bool:
        return not self._tokens

    def add_chunk(self, chunk: Chunk) -> None:
        self._token_end = max(self._token_end, self._received)  # text may arrive without log probabilities
        self._received += len(chunk.text)
        if chunk.logprobs and (last := chunk.logprobs[-1].token) and chunk.text.endswith(last):
            self._token_end = self._received - sum([_count_characters(logprob) for logprob in chunk.logprobs])
        for logprob in chunk.logprobs:
            end = self._token_end + _count_characters(logprob)
            self._tokens.append((self._token_end - _starts_mid_character(logprob), end, logprob))
            self._token_end = end

    def end_message(self) -> None:
        """Mark the end of a message: text that follows belongs to another one."""
        self._same_message = False

    def take_overlapping(self, begin: int, end: int) -> tuple[Logprob, ...]:
        """Remove and return the log probabilities of this range of text; earlier ones belong to no text."""
        taken: list[Logprob] = []
        tokens, overhanging, min_start = self._tokens, None, self._text_end if self._same_message else 0
        while tokens and tokens[0][0] < end:
            first, last, logprob = token = tokens.popleft()
            if (last > begin and first >= min_start) or first == last == begin == self._text_end:
                taken.append(logprob)
            if last > end:
                overhanging = token
        if overhanging is not None:  # it may overlap the next message as well
            tokens.appendleft(overhanging)
        self._text_end, self._same_message = end, True
        return tuple(taken)


def pair_logprobs(text_flags: Sequence[bool], logprobs: Sequence[Logprob]) -> Sequence[Logprob | None]:
    """Return the log probability of each token; `text_flags` tells for each whether it is text or a control token.

    Engines leave out those of control tokens, or that of the token that ended the answer. If the assignment is
    ambiguous, all are dropped.
    """
    if len(logprobs) == sum(text_flags):
        remaining = iter(logprobs)
        return [next(remaining) if is_text else None for is_text in text_flags]
    missing = len(text_flags) - len(logprobs)
    return [*logprobs, None][: len(text_flags)] if missing in (0, 1) else [None] * len(text_flags)


def _count_characters(logprob: Logprob) -> int:
    """Count the characters that begin in the token."""
    if (token := logprob.token).isascii() or not logprob.bytes:
        return len(token)
    return sum([byte & 0xC0 != 0x80 for byte in logprob.bytes])


def _starts_mid_character(logprob: Logprob) -> bool:
    """Return whether the token begins within a character."""
    return bool(logprob.bytes) and logprob.bytes[0] & 0xC0 == 0x80
