"""Conversion of transcription streams to OpenAI's events; an incomplete stream is an error."""

import json
from typing import Any

import pytest

from antiphon.engines.base import PassthroughReply
from antiphon.engines.http.tasks import EVENT_STREAM, normalise_transcription
from antiphon.errors import EngineFailed
from tests.oracles.responses import check_transcript_event

DONE = "data: [DONE]\n\n"
USAGE = {"prompt_tokens": 204, "total_tokens": 208, "completion_tokens": 4}


def make_chunk(text: str | None = None, **others: Any) -> str:
    choices = [] if text is None else [{"delta": {"content": text}}]
    return f"data: {json.dumps({'object': 'transcription.chunk', 'choices': choices, **others})}\n\n"


def normalise(*pieces: str) -> list[dict[str, Any]]:
    body = normalise_transcription(
        PassthroughReply("".join(pieces).encode(), EVENT_STREAM + "; charset=utf-8"), "The engine"
    ).body.decode()
    assert body.endswith(DONE)
    found = [json.loads(line.removeprefix("data: ")) for line in body.removesuffix(DONE).splitlines() if line]
    for event in found:
        check_transcript_event(event)
    return found


@pytest.mark.shows("G2.1")
def test_chat_style_chunks_become_openai_events() -> None:
    deltas = [{"type": "transcript.text.delta", "delta": text} for text in ("One, ", "two.")]
    assert normalise(make_chunk("One, "), make_chunk(""), make_chunk("two."), DONE) == [
        *deltas,
        {"type": "transcript.text.done", "text": "One, two."},
    ]


def test_the_usage_is_in_the_last_event() -> None:
    usage = {"type": "tokens", "input_tokens": 204, "output_tokens": 4, "total_tokens": 208}
    assert normalise(make_chunk("One"), make_chunk(usage=USAGE), DONE)[-1]["usage"] == usage


def test_an_empty_transcript_is_valid() -> None:
    assert normalise(DONE) == [{"type": "transcript.text.done", "text": ""}]


def test_openai_events_are_passed_through_unchanged() -> None:
    own = b'data: {"type":"transcript.text.delta","delta":"a"}\n\ndata: {"type":"transcript.text.done","text":"a"}\n\n'
    assert normalise_transcription(PassthroughReply(own, EVENT_STREAM), "The engine").body == own


def test_an_unstreamed_reply_is_passed_through_unchanged() -> None:
    whole = PassthroughReply(b'{"text": "One"}')
    assert normalise_transcription(whole, "The engine") is whole


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([make_chunk("One")], "The engine ended its response early"),
        ([], "The engine ended its response early"),
        ([make_chunk("One"), 'data: {"error": {"message": "no"}}\n\n', DONE], "failed in the middle"),
        ([make_chunk("One"), "event: error\ndata: no\n\n"], "failed in the middle"),
        ([make_chunk("One"), "data: {\n\n", DONE], "cannot be decoded"),
        (['data: {"choices": [{"delta": 1}]}\n\n', DONE], "cannot be decoded"),
        (["data: " + "[" * 100_000 + "\n\n", DONE], "cannot be decoded"),
    ],
    ids=["cut", "empty", "error", "error event", "truncated JSON", "wrong type", "deep"],
)
def test_an_incomplete_or_invalid_stream_is_an_error(pieces: list[str], message: str) -> None:
    with pytest.raises(EngineFailed, match=message):
        normalise(*pieces)
