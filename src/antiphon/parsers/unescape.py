"""Parsers that undo the escaping of control tokens (render/control_token_escape.py), since models repeat their prompt.

Gaps are removed after parsing, so the restored string is text and never a marker. Files that a model changes, and
strings that it searches for in them, then match the originals.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, Delta, ReasoningDelta, Text
from antiphon.core.multi_match import GAP, remove_gaps
from antiphon.core.prompt import Chunk, Prompt
from antiphon.parsers.base import DEFAULT_OPTIONS, Parser, ParserOptions
from antiphon.parsers.chat import ChatParser
from antiphon.parsers.raw import RawParser


class _UnescapingParser:
    """Removes the zero-width spaces that were inserted into control strings from the output of another parser."""

    _parser_type: ClassVar[type[Parser]]

    def __init__(self, prompt: Prompt, options: ParserOptions = DEFAULT_OPTIONS) -> None:
        self._parser = self._parser_type(prompt, options)
        # last character of each text that may continue, by delta type and call key
        self._last_characters: dict[tuple[type, int], str] = {}

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        return self._clean(self._parser.feed(chunk))

    def finish(self) -> Sequence[Delta]:
        return self._clean(self._parser.finish())

    def _clean(self, deltas: Iterable[Delta]) -> list[Delta]:
        out: list[Delta] = []
        for delta in deltas:
            if not isinstance(delta, Text | ReasoningDelta | CallDelta):
                out.append(delta)
            elif (
                (cleaned := self._clean_delta(delta)) is delta
                or cleaned.text
                or (isinstance(cleaned, Text) and cleaned.logprobs)
            ):
                out.append(cleaned)
        return out

    def _clean_delta(self, delta: Text | ReasoningDelta | CallDelta) -> Text | ReasoningDelta | CallDelta:
        key = type(delta), delta.key if isinstance(delta, CallDelta) else 0
        text, before = delta.text, self._last_characters.get(key, "")
        if text:
            self._last_characters[key] = text[-1]
        return replace(delta, text=remove_gaps(text, before)) if GAP in text else delta


class UnescapingChatParser(_UnescapingParser):
    _parser_type = ChatParser


class UnescapingRawParser(_UnescapingParser):
    _parser_type = RawParser
