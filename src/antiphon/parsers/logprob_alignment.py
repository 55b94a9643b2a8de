"""Log probabilities of tokens, by where in the output their characters are; text takes those that overlap it.

A token may be a part of a character, or be told before its text, which an engine held back. So tokens are measured by
their bytes, and set right again wherever the last token of a chunk is seen to be the end of its text.
"""

from collections import deque

from antiphon.core.prompt import Chunk
from antiphon.protocol.types.response import Logprob


class Ledger:
    def __init__(self, received: int) -> None:
        """`received`: characters of the output that came without any."""
        self._received = received
        self._reached = received  # where the last token ended
        self._taken = received  # where the text ended that took some last
        self._goes_on = False  # what is taken next is of the same message
        self._tokens: deque[tuple[int, int, Logprob]] = deque()  # begin, end

    @property
    def empty(self) -> bool:
        return not self._tokens

    def note(self, chunk: Chunk) -> None:
        self._reached = max(self._reached, self._received)  # text may come without any
        self._received += len(chunk.text)
        if chunk.logprobs and (last := chunk.logprobs[-1].token) and chunk.text.endswith(last):
            self._reached = self._received - sum([_length(logprob) for logprob in chunk.logprobs])
        for logprob in chunk.logprobs:
            end = self._reached + _length(logprob)
            self._tokens.append((self._reached - _continues(logprob), end, logprob))
            self._reached = end

    def part(self) -> None:
        """Something else was said: text that follows is another message's."""
        self._goes_on = False

    def take(self, begin: int, end: int) -> tuple[Logprob, ...]:
        """Of the text between the two; what came before it was no text, and is forgotten."""
        taken: list[Logprob] = []
        tokens, longer, told = self._tokens, None, self._taken if self._goes_on else 0
        while tokens and tokens[0][0] < end:
            first, last, logprob = token = tokens.popleft()
            if (last > begin and first >= told) or first == last == begin == self._taken:
                taken.append(logprob)
            if last > end:
                longer = token
        if longer is not None:  # it may be another message's as well
            tokens.appendleft(longer)
        self._taken, self._goes_on = end, True
        return tuple(taken)


def _length(logprob: Logprob) -> int:
    """The characters that begin in it."""
    if (token := logprob.token).isascii() or not logprob.bytes:
        return len(token)
    return sum([byte & 0xC0 != 0x80 for byte in logprob.bytes])


def _continues(logprob: Logprob) -> bool:
    """Whether it begins within a character."""
    return bool(logprob.bytes) and logprob.bytes[0] & 0xC0 == 0x80
