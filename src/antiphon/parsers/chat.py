"""Parser for engines that parse their output themselves: text, reasoning, refusals and calls arrive separately.

A call is done once other output follows and its arguments are complete JSON, at the latest at the end; so no data is
lost with engines that interleave the pieces of parallel calls. If the operator configures that an engine leaves
reasoning or calls in the text (`options`), the text is parsed as raw output.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, ReasoningDelta, Refusal, Text
from antiphon.core.prompt import CallPiece, ChatPrompt, Chunk, Prompt
from antiphon.errors import EngineFailed
from antiphon.parsers.base import DEFAULT_OPTIONS, ParserOptions
from antiphon.parsers.raw import RawParser


class ChatParser(Struct, eq=False):
    """Converts chunks of an engine that parses its output itself."""

    prompt: Prompt
    options: ParserOptions = DEFAULT_OPTIONS
    reasoning_tokens: int = 0  # tokens of text that is parsed here, set at the end; otherwise the engine reports them
    _raw: RawParser | None = None  # parses the text; created with the first text
    _open_calls: dict[int, list[str]] = {}  # arguments of calls that are not done, by index
    _started: set[int] = set()

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        options = self.options
        if not (
            options.reasoning or options.calls or chunk.calls or chunk.reasoning or chunk.refusal or self._open_calls
        ):
            return (Text(chunk.text, chunk.logprobs),) if chunk.text or chunk.logprobs else ()
        return self._feed_mixed(chunk)

    def finish(self) -> Sequence[Delta]:
        if self._raw is None and not self._open_calls:
            return ()
        done: list[Delta] = []
        if self._raw is not None:
            done += map(_negate_key, self._raw.finish())
            self.reasoning_tokens = self._raw.reasoning_tokens
        done += [CallDone(key) for key in self._open_calls]
        self._open_calls.clear()
        return done

    def _feed_mixed(self, chunk: Chunk) -> list[Delta]:
        out: list[Delta] = []
        if self._open_calls and (chunk.text or chunk.reasoning or chunk.refusal):
            self._end_complete_calls(out)
        if chunk.reasoning:
            self._disable_reasoning()
            out.append(ReasoningDelta(chunk.reasoning))
        if chunk.text or chunk.logprobs:
            out += self._parse_text(chunk)
        if chunk.refusal:
            out.append(Refusal(chunk.refusal))
        for piece in chunk.calls:
            self._add_call_piece(piece, out)
        return out

    def _parse_text(self, chunk: Chunk) -> Iterable[Delta]:
        if not (self.options.reasoning or self.options.calls):
            return (Text(chunk.text, chunk.logprobs),)
        if self._raw is None:
            self._raw = RawParser(self.prompt, self.options)
        # in a mixed chunk the tokens of the text are unknown
        tokens = () if chunk.reasoning or chunk.calls else chunk.tokens
        return map(_negate_key, self._raw.feed(Chunk(text=chunk.text, logprobs=chunk.logprobs, tokens=tokens)))

    def _disable_reasoning(self) -> None:
        """Stop splitting reasoning from text: this engine reports reasoning separately."""
        if self.options.reasoning is not None:
            self.prompt, self.options, self._raw = ChatPrompt(()), replace(self.options, reasoning=None), None

    def _add_call_piece(self, piece: CallPiece, out: list[Delta]) -> None:
        if piece.index not in self._started:
            self._start_call(piece, out)
        if not piece.arguments:
            return
        if piece.index in self._open_calls:
            self._open_calls[piece.index].append(piece.arguments)
            out.append(CallDelta(piece.index, piece.arguments))
        elif not piece.arguments.isspace():
            raise EngineFailed("The engine sent more arguments for a tool call that was already complete.")

    def _start_call(self, piece: CallPiece, out: list[Delta]) -> None:
        if not piece.name:
            raise EngineFailed("The engine sent a tool call without a name.")
        self._end_complete_calls(out)
        self._started.add(piece.index)
        self._open_calls[piece.index] = []
        out.append(CallStarted(piece.index, piece.name))

    def _end_complete_calls(self, out: list[Delta]) -> None:
        for key in [key for key, arguments in self._open_calls.items() if _is_complete(arguments)]:
            del self._open_calls[key]
            out.append(CallDone(key))


def _negate_key(delta: Delta) -> Delta:
    """Give calls found in the text negative keys, which cannot collide with the engine's indices."""
    return replace(delta, key=-1 - delta.key) if isinstance(delta, CallStarted | CallDelta | CallDone) else delta


def _is_complete(arguments: list[str]) -> bool:
    try:
        msgspec.json.decode("".join(arguments))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True
