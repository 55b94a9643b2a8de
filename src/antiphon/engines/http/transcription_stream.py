"""Streams of what was heard in audio, told as OpenAI tells them: engines have made up pieces like those of a chat.

A stream is whole when it is told again, so one that broke off, or ends in an error, is an error and no answer.
"""

import msgspec
from msgspec import Struct
from msgspec.json import Decoder, encode

from antiphon.engines.base import Relayed, believed
from antiphon.engines.sse import EventSplitter
from antiphon.errors import EngineFailed

EVENTS = "text/event-stream"


class _Delta(Struct):
    content: str | None = None


class _Choice(Struct):
    delta: _Delta


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Piece(Struct):
    type: str | None = None  # the event is OpenAI's own
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_PIECE = Decoder(_Piece)


def retold(answer: Relayed, who: str) -> Relayed:
    """`who` begins the sentences about what went wrong."""
    if not answer.media_type.startswith(EVENTS):
        return answer
    splitter = EventSplitter()
    pieces = [_decoded(event, who) for event in [*splitter.feed(answer.body), *splitter.finish()]]
    if any(bytes(piece.error) for piece in pieces):
        raise EngineFailed(f"{who} failed in the middle of its answer.")
    if pieces and pieces[-1].type:
        return answer
    if not splitter.done:
        raise EngineFailed(f"{who} broke off its answer.")
    return Relayed(b"".join(_events(pieces)), EVENTS)


def _decoded(event: bytes, who: str) -> _Piece:
    try:
        return _PIECE.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineFailed(f"{who} sent an event that cannot be read.") from None


def _events(pieces: list[_Piece]) -> list[bytes]:
    said = [choice.delta.content for piece in pieces for choice in piece.choices if choice.delta.content]
    done: dict[str, object] = {"type": "transcript.text.done", "text": "".join(said)}
    if usage := next((piece.usage for piece in reversed(pieces) if piece.usage), None):
        done["usage"] = _usage(usage)
    deltas = [{"type": "transcript.text.delta", "delta": text} for text in said]
    return [*[b"data: %b\n\n" % encode(event) for event in [*deltas, done]], b"data: [DONE]\n\n"]


def _usage(usage: _Usage) -> dict[str, object]:
    came, made = believed(usage.prompt_tokens), believed(usage.completion_tokens)
    return {"type": "tokens", "input_tokens": came, "output_tokens": made, "total_tokens": came + made}
