"""Converts transcription streams to OpenAI's events; some engines send chunks like those of a chat instead.

The stream is complete when it is converted, so one that ends early or with an error raises EngineFailed.
"""

import msgspec
from msgspec import Struct
from msgspec.json import Decoder, encode

from antiphon.engines.base import PassthroughReply
from antiphon.engines.clamp import clamp_token_count
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


class _TranscriptEvent(Struct):
    type: str | None = None  # set in OpenAI's own events
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_EVENT = Decoder(_TranscriptEvent)


def normalise_transcription(reply: PassthroughReply, label: str) -> PassthroughReply:
    """Convert a streamed reply; others are returned unchanged. `label` is the subject of error messages."""
    if not reply.media_type.startswith(EVENTS):
        return reply
    splitter = EventSplitter()
    pieces = [_decode_event(event, label) for event in [*splitter.feed(reply.body), *splitter.finish()]]
    if any(bytes(piece.error) for piece in pieces):
        raise EngineFailed(f"{label} failed in the middle of its response.")
    if pieces and pieces[-1].type:
        return reply
    if not splitter.done:
        raise EngineFailed(f"{label} ended its response early.")
    return PassthroughReply(b"".join(_build_events(pieces)), EVENTS)


def _decode_event(event: bytes, label: str) -> _TranscriptEvent:
    try:
        return _EVENT.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineFailed(f"{label} sent an event that cannot be decoded.") from None


def _build_events(pieces: list[_TranscriptEvent]) -> list[bytes]:
    texts = [choice.delta.content for piece in pieces for choice in piece.choices if choice.delta.content]
    done: dict[str, object] = {"type": "transcript.text.done", "text": "".join(texts)}
    if usage := next((piece.usage for piece in reversed(pieces) if piece.usage), None):
        done["usage"] = _build_usage(usage)
    deltas = [{"type": "transcript.text.delta", "delta": text} for text in texts]
    return [*[b"data: %b\n\n" % encode(event) for event in [*deltas, done]], b"data: [DONE]\n\n"]


def _build_usage(usage: _Usage) -> dict[str, object]:
    input_tokens, output_tokens = clamp_token_count(usage.prompt_tokens), clamp_token_count(usage.completion_tokens)
    return {
        "type": "tokens",
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }
