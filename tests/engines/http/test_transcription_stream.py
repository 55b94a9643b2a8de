"""Streams of what was heard: told in OpenAI's events, whole or not at all."""

import json
from typing import Any

import pytest

from antiphon.engines.base import Relayed
from antiphon.engines.http.transcription_stream import EVENTS, retold
from antiphon.errors import EngineFailed
from tests.oracles.responses import check_transcript_event

DONE = "data: [DONE]\n\n"
USAGE = {"prompt_tokens": 204, "total_tokens": 208, "completion_tokens": 4}


def piece(text: str | None = None, **others: Any) -> str:
    choices = [] if text is None else [{"delta": {"content": text}}]
    return f"data: {json.dumps({'object': 'transcription.chunk', 'choices': choices, **others})}\n\n"


def events(*pieces: str) -> list[dict[str, Any]]:
    told = retold(Relayed("".join(pieces).encode(), EVENTS + "; charset=utf-8"), "The engine").body.decode()
    assert told.endswith(DONE)
    found = [json.loads(line.removeprefix("data: ")) for line in told.removesuffix(DONE).splitlines() if line]
    for event in found:
        check_transcript_event(event)
    return found


@pytest.mark.shows("G2.1")
def test_pieces_like_those_of_a_chat_become_openais_events() -> None:
    deltas = [{"type": "transcript.text.delta", "delta": text} for text in ("One, ", "two.")]
    assert events(piece("One, "), piece(""), piece("two."), DONE) == [
        *deltas,
        {"type": "transcript.text.done", "text": "One, two."},
    ]


def test_what_it_took_is_told_at_the_end() -> None:
    usage = {"type": "tokens", "input_tokens": 204, "output_tokens": 4, "total_tokens": 208}
    assert events(piece("One"), piece(usage=USAGE), DONE)[-1]["usage"] == usage


def test_silence_is_an_answer_too() -> None:
    assert events(DONE) == [{"type": "transcript.text.done", "text": ""}]


def test_openais_own_events_are_left_as_they_are() -> None:
    own = b'data: {"type":"transcript.text.delta","delta":"a"}\n\ndata: {"type":"transcript.text.done","text":"a"}\n\n'
    assert retold(Relayed(own, EVENTS), "The engine").body == own


def test_what_is_no_stream_is_left_as_it_is() -> None:
    whole = Relayed(b'{"text": "One"}')
    assert retold(whole, "The engine") is whole


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([piece("One")], "The engine broke off its answer"),
        ([], "The engine broke off its answer"),
        ([piece("One"), 'data: {"error": {"message": "no"}}\n\n', DONE], "failed in the middle"),
        ([piece("One"), "event: error\ndata: no\n\n"], "failed in the middle"),
        ([piece("One"), "data: {\n\n", DONE], "cannot be read"),
        (['data: {"choices": [{"delta": 1}]}\n\n', DONE], "cannot be read"),
        (["data: " + "[" * 100_000 + "\n\n", DONE], "cannot be read"),
    ],
    ids=["cut", "empty", "error", "error by its name", "half a line", "of another shape", "deep"],
)
def test_what_is_not_whole_is_an_error_and_no_answer(pieces: list[str], said: str) -> None:
    with pytest.raises(EngineFailed, match=said):
        events(*pieces)
