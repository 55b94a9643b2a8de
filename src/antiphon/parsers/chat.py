"""Engines that already parse: answer, thoughts, refusals and calls come apart, and are only renamed here.

A call is done when something else follows and its arguments are complete JSON, at the latest at the end;
so engines that send the pieces of parallel calls in turns lose nothing.
"""

from collections.abc import Sequence

import msgspec

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Refusal, Text, Thought
from antiphon.core.prompt import CallPiece, Chunk, Prompt
from antiphon.errors import EngineFailed


class ChatParser:
    def __init__(self, prompt: Prompt) -> None:
        self._open: dict[int, list[str]] = {}  # the arguments of calls that are not done
        self._started: set[int] = set()

    def feed(self, chunk: Chunk) -> Sequence[Delta]:
        if not (chunk.calls or chunk.thought or chunk.refusal or self._open):
            return (Text(chunk.text, chunk.logprobs),) if chunk.text or chunk.logprobs else ()
        return self._feed_all(chunk)

    def finish(self) -> Sequence[Delta]:
        done = [CallDone(key) for key in self._open]
        self._open.clear()
        return done

    def _feed_all(self, chunk: Chunk) -> list[Delta]:
        out: list[Delta] = []
        if self._open and (chunk.text or chunk.thought or chunk.refusal):
            self._settle(out)
        if chunk.thought:
            out.append(Thought(chunk.thought))
        if chunk.text or chunk.logprobs:
            out.append(Text(chunk.text, chunk.logprobs))
        if chunk.refusal:
            out.append(Refusal(chunk.refusal))
        for piece in chunk.calls:
            self._take(piece, out)
        return out

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


def _complete(arguments: list[str]) -> bool:
    try:
        msgspec.json.decode("".join(arguments))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True
