"""Engines that already parse: answer, thoughts, refusals and calls come apart, and are only renamed here.

A call is done when something else follows and its arguments are complete JSON, at the latest at the end;
so engines that send the pieces of parallel calls in turns lose nothing. Where the operator says that an engine leaves
thoughts or calls in the text (`reading`), the text is read as raw output is.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Refusal, Text, Thought
from antiphon.core.prompt import CallPiece, ChatPrompt, Chunk, Prompt
from antiphon.errors import EngineFailed
from antiphon.parsers.base import PLAIN, Reading
from antiphon.parsers.raw import RawParser


class ChatParser(Struct, eq=False):
    prompt: Prompt
    reading: Reading = PLAIN
    reasoning_tokens: int = 0  # those of a text that is read here, once it has ended; else the engine tells
    _raw: RawParser | None = None  # who reads the text, once there is some to read
    _open: dict[int, list[str]] = {}  # the arguments of calls that are not done
    _started: set[int] = set()

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        reading = self.reading
        if not (reading.thoughts or reading.calls or chunk.calls or chunk.thought or chunk.refusal or self._open):
            return (Text(chunk.text, chunk.logprobs),) if chunk.text or chunk.logprobs else ()
        return self._feed_all(chunk)

    def finish(self) -> Sequence[Delta]:
        if self._raw is None and not self._open:
            return ()
        done: list[Delta] = []
        if self._raw is not None:
            done += map(_own, self._raw.finish())
            self.reasoning_tokens = self._raw.reasoning_tokens
        done += [CallDone(key) for key in self._open]
        self._open.clear()
        return done

    def _feed_all(self, chunk: Chunk) -> list[Delta]:
        out: list[Delta] = []
        if self._open and (chunk.text or chunk.thought or chunk.refusal):
            self._settle(out)
        if chunk.thought:
            self._trust()
            out.append(Thought(chunk.thought))
        if chunk.text or chunk.logprobs:
            out += self._said(chunk)
        if chunk.refusal:
            out.append(Refusal(chunk.refusal))
        for piece in chunk.calls:
            self._take(piece, out)
        return out

    def _said(self, chunk: Chunk) -> Iterable[Delta]:
        if not (self.reading.thoughts or self.reading.calls):
            return (Text(chunk.text, chunk.logprobs),)
        if self._raw is None:
            self._raw = RawParser(self.prompt, self.reading)
        tokens = () if chunk.thought or chunk.calls else chunk.tokens  # nobody knows which of them are the text's
        return map(_own, self._raw.feed(Chunk(text=chunk.text, logprobs=chunk.logprobs, tokens=tokens)))

    def _trust(self) -> None:
        """It does tell thoughts apart: what it calls text is none."""
        if self.reading.thoughts is not None:
            self.prompt, self.reading, self._raw = ChatPrompt(()), replace(self.reading, thoughts=None), None

    def _take(self, piece: CallPiece, out: list[Delta]) -> None:
        if piece.index not in self._started:
            self._start(piece, out)
        if not piece.arguments:
            return
        if piece.index in self._open:
            self._open[piece.index].append(piece.arguments)
            out.append(CallDelta(piece.index, piece.arguments))
        elif not piece.arguments.isspace():
            raise EngineFailed("The engine went on with a tool call that was complete.")

    def _start(self, piece: CallPiece, out: list[Delta]) -> None:
        if not piece.name:
            raise EngineFailed("The engine sent a tool call without a name.")
        self._settle(out)
        self._started.add(piece.index)
        self._open[piece.index] = []
        out.append(CallStarted(piece.index, piece.name))

    def _settle(self, out: list[Delta]) -> None:
        for key in [key for key, arguments in self._open.items() if _complete(arguments)]:
            del self._open[key]
            out.append(CallDone(key))


def _own(delta: Delta) -> Delta:
    """Calls that were found in the text have keys below those that the engine counts."""
    return replace(delta, key=-1 - delta.key) if isinstance(delta, CallStarted | CallDelta | CallDone) else delta


def _complete(arguments: list[str]) -> bool:
    try:
        msgspec.json.decode("".join(arguments))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True
