"""Models repeat what they read. What was broken up in their prompt is put together again in what they say.

Only after it was parsed: it is text, and no mark. Files that a model changes, and texts that it looks for in them, are
then as they were.
"""

from collections.abc import Iterable, Sequence

from msgspec import field
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, Delta, Text, Thought
from antiphon.core.prompt import Chunk, Prompt
from antiphon.core.zero_width import GAP, without_gaps
from antiphon.parsers.base import PLAIN, Reading
from antiphon.parsers.chat import ChatParser
from antiphon.parsers.raw import RawParser


class _Mending:
    def __init__(self) -> None:
        self._before: dict[tuple[type, int], str] = {}  # the last character of each text that goes on

    def mended(self, deltas: Iterable[Delta]) -> list[Delta]:
        told: list[Delta] = []
        for delta in deltas:
            if not isinstance(delta, Text | Thought | CallDelta):
                told.append(delta)
            elif (made := self._mended(delta)) is delta or made.text or (isinstance(made, Text) and made.logprobs):
                told.append(made)
        return told

    def _mended(self, delta: Text | Thought | CallDelta) -> Text | Thought | CallDelta:
        key = type(delta), delta.key if isinstance(delta, CallDelta) else 0
        text, before = delta.text, self._before.get(key, "")
        if text:
            self._before[key] = text[-1]
        return replace(delta, text=without_gaps(text, before)) if GAP in text else delta


class UnbrokenChat(ChatParser):
    _mending: _Mending = field(default_factory=_Mending)

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        return self._mending.mended(super().feed(chunk))

    def finish(self) -> Sequence[Delta]:
        return self._mending.mended(super().finish())


class UnbrokenRaw(RawParser):
    def __init__(self, prompt: Prompt, reading: Reading = PLAIN) -> None:
        super().__init__(prompt, reading)
        self._mending = _Mending()

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        return self._mending.mended(super().feed(chunk))

    def finish(self) -> Sequence[Delta]:
        return self._mending.mended(super().finish())
