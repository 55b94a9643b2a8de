"""Parser of raw model output: reasoning is split off first, then calls; the remaining text is the answer.

White space between calls, or between reasoning and a call, is dropped. Once neither reasoning nor calls are expected,
chunks pass unchanged.
"""

from collections import deque
from collections.abc import Sequence

from antiphon.core.deltas import CallDelta, Delta, ReasoningDelta, Text
from antiphon.core.prompt import Chunk, Prompt
from antiphon.parsers.base import DEFAULT_OPTIONS, ParserOptions
from antiphon.parsers.calls.base import Piece, TextPiece
from antiphon.parsers.calls.delimited_calls import DelimitedCalls
from antiphon.parsers.calls.registry import load_format
from antiphon.parsers.logprob_alignment import LogprobAligner
from antiphon.parsers.reasoning import REASONING_FORMATS, ReasoningSplitter, opens_reasoning


class RawParser:
    """Parses raw text output by the formats in `options`."""

    def __init__(self, prompt: Prompt, options: ParserOptions = DEFAULT_OPTIONS) -> None:
        self._call_format = load_format(options.calls)(options.tools) if options.calls else None
        self._splitter = _build_splitter(prompt, options, self._call_format)
        self._passthrough = self._call_format is None and self._splitter is None
        calls_only = self._call_format is not None and self._splitter is None  # no reasoning is expected
        self._feed_calls = self._call_format.feed if calls_only and self._call_format is not None else None
        self._aligner: LogprobAligner | None = None
        self._received = 0  # characters of the output
        self._fed = 0  # characters passed to the call format
        self._offset = 0  # characters received before the current position but not passed to the call format
        self._offsets = deque([(0, 0)])  # (position in the fed text, offset from there on)
        self._pending_space: list[Text] = []  # space that counts only if text follows, or if there was no other output
        self._text_started = False
        self._had_call = False
        self.reasoning_tokens = 0

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        text = chunk.text
        if self._passthrough:
            return (Text(text, chunk.logprobs),) if text or chunk.logprobs else ()
        if self._feed_calls is not None and not chunk.logprobs:  # true for most tokens
            self._received += len(text)
            pieces = self._feed_calls(text)
            if len(pieces) == 1:
                piece = pieces[0]
                if type(piece) is CallDelta:  # part of a call that has started, so no state changes
                    return (piece,)
                if type(piece) is TextPiece and self._text_started:
                    return (Text(piece.text),)
            if not pieces:
                return ()
            out: list[Delta] = []
            self._add_pieces(pieces, out)
            return out
        return self._feed_slow(chunk, text)

    def _feed_slow(self, chunk: Chunk, text: str) -> Sequence[Delta]:
        """Parse a chunk with reasoning or log probabilities."""
        if chunk.logprobs or self._aligner is not None:
            self._align(chunk)
        self._received += len(text)
        out: list[Delta] = []
        if self._splitter is not None:
            parts = self._splitter.feed(text)
            if len(parts) == 1 and type(parts[0]) is TextPiece:
                self._add_answer(parts[0].text, parts[0].end, out)
            else:
                self._add_parts(parts, out)
            if chunk.tokens:
                self.reasoning_tokens += _count_reasoning_tokens(chunk, out)
            if self._splitter.is_answering:
                self._splitter = None
                self._record_offset(self._received - self._fed)
                if self._call_format is not None and self._aligner is None:
                    self._feed_calls = self._call_format.feed
        elif text:
            self._add_answer(text, self._received, out)
        if self._call_format is None and self._splitter is None:
            self._passthrough = not self._pending_space and (self._aligner is None or self._aligner.is_empty)
        return out

    def finish(self) -> Sequence[Delta]:
        out: list[Delta] = []
        if self._splitter is not None:
            self._add_parts(self._splitter.finish(), out)
        if self._call_format is not None:
            self._add_pieces(self._call_format.finish(), out)
        if not (self._text_started or self._had_call):
            out += self._pending_space
        self._pending_space.clear()
        return out

    def _align(self, chunk: Chunk) -> None:
        if self._feed_calls is not None:
            self._fed = self._received - self._offset
            self._feed_calls = None
        self._aligner = self._aligner or LogprobAligner(self._received)
        self._aligner.add_chunk(chunk)

    def _add_parts(self, parts: Sequence[ReasoningDelta | TextPiece], out: list[Delta]) -> None:
        for part in parts:
            if type(part) is TextPiece:
                self._add_answer(part.text, part.end, out)
            else:
                if self._aligner is not None:
                    self._aligner.end_message()
                out.append(part)  # type: ignore[arg-type]  # a reasoning delta

    def _add_answer(self, text: str, end: int, out: list[Delta]) -> None:
        """Add answer text that ends at position `end` of the output."""
        self._record_offset(end - len(text) - self._fed)
        self._fed += len(text)
        pieces: Sequence[Piece] = (
            (TextPiece(text, self._fed),) if self._call_format is None else self._call_format.feed(text)
        )
        if self._text_started and self._aligner is None and len(pieces) == 1 and type(pieces[0]) is TextPiece:
            out.append(Text(pieces[0].text))  # the common case
        else:
            self._add_pieces(pieces, out)

    def _record_offset(self, offset: int) -> None:
        if offset != self._offset:
            self._offset = offset
            self._offsets.append((self._fed, offset))

    def _add_pieces(self, pieces: Sequence[Piece], out: list[Delta]) -> None:
        for piece in pieces:
            if type(piece) is TextPiece:
                self._add_text(piece.text, piece.end, out)
            else:
                if self._aligner is not None:
                    self._aligner.end_message()
                self._had_call = True
                self._pending_space.clear()
                self._text_started = False  # space after the call is dropped again
                out.append(piece)  # type: ignore[arg-type]  # all other pieces are deltas

    def _add_text(self, text: str, end: int, out: list[Delta]) -> None:
        delta = (
            Text(text)
            if self._aligner is None
            else Text(text, self._aligner.take_overlapping(*self._output_range(text, end)))
        )
        if self._text_started:
            out.append(delta)
        elif text.isspace():
            self._pending_space.append(delta)
        else:
            out += self._pending_space
            out.append(delta)
            self._pending_space.clear()
            self._text_started = True

    def _output_range(self, text: str, end: int) -> tuple[int, int]:
        begin = end - len(text)
        while len(self._offsets) > 1 and self._offsets[1][0] <= begin:
            self._offsets.popleft()
        end_offset = next(offset for start, offset in reversed(self._offsets) if start < end)
        return begin + self._offsets[0][1], end + end_offset


def _build_splitter(prompt: Prompt, options: ParserOptions, calls: DelimitedCalls | None) -> ReasoningSplitter | None:
    if options.reasoning is None:
        return None
    markers = REASONING_FORMATS[options.reasoning]
    opened = opens_reasoning(prompt, markers) or (options.prompt_hidden and markers.implicit)
    splitter = ReasoningSplitter(markers, opened, *((calls.openings, calls.controls) if calls else ()))
    splitter.json_answer = options.json_answer
    return splitter


def _count_reasoning_tokens(chunk: Chunk, deltas: Sequence[Delta]) -> int:
    """Count the reasoning tokens of a chunk; a mixed chunk is divided in proportion to the text lengths."""
    if len(deltas) == 1:
        return len(chunk.tokens) if type(deltas[0]) is ReasoningDelta else 0
    reasoning_length = sum([len(delta.text) for delta in deltas if type(delta) is ReasoningDelta])
    if reasoning_length and len(deltas) > sum([type(delta) is ReasoningDelta for delta in deltas]):
        return round(len(chunk.tokens) * min(1, reasoning_length / max(1, len(chunk.text))))
    return len(chunk.tokens) if reasoning_length else 0
