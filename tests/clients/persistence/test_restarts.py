"""What a server kept is there for the next one, after a stop and after a kill: to read, to resume and to continue."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.oracles.responses import check_response
from tests.support.server_process import Live, patiently, serving

SLOW = ("--fake-tokens", "4000", "--fake-rate", "20")  # minutes for an answer
LEASE = ("--lease-seconds", "1")
ENDED = ("completed", "incomplete", "failed", "cancelled")


def client(live: Live) -> OpenAI:
    return OpenAI(base_url=live.v1, api_key="unused", max_retries=0, timeout=60)


def polled(live: Live, response_id: str) -> dict[str, Any]:
    for _ in patiently():
        status, body = live.get(f"/v1/responses/{response_id}")
        assert status == 200, body
        response: dict[str, Any] = json.loads(body)
        if response["status"] in ENDED:
            check_response(response)
            return response
    raise AssertionError(f"{response_id} has not ended")


@pytest.mark.shows("B.1", "B.3", "B.5", "B.9", "B.12", "B.15")
def test_all_of_it_is_there_after_a_kill(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"))
    key = {"Idempotency-Key": "once"}
    with serving(*flags) as live, client(live) as openai:
        conversation = openai.conversations.create(items=[{"role": "user", "content": "one"}])
        first = openai.responses.create(model="fake", input="remember", extra_headers=key)
        with openai.responses.create(model="fake", input="two", conversation=conversation.id, stream=True) as stream:
            told: list[Any] = [event.to_dict() for event in stream]
        live.process.send_signal(signal.SIGKILL)
        live.process.wait(60)
    with serving(*flags) as live, client(live) as openai:
        assert openai.responses.retrieve(first.id).to_dict() == first.to_dict()
        again = openai.responses.create(model="fake", input="remember", extra_headers=key)
        assert again.to_dict() == first.to_dict()
        with openai.responses.retrieve(str(told[0]["response"]["id"]), stream=True) as stream:
            assert [event.to_dict() for event in stream] == told
        items: list[Any] = [*openai.conversations.items.list(conversation.id, order="asc")]
        assert [item.content[0].text for item in items] == ["one", "two", "You said: two"]
        more = openai.responses.create(model="fake", input="more", previous_response_id=first.id)
        assert more.output_text == "You said: more"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.shows("B.7")
def test_background_work_is_taken_up_by_the_next_server(tmp_path: Path, number: signal.Signals) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"), *LEASE)
    with serving(*flags, *SLOW, "--shutdown-grace", "0") as live:
        status, body = live.post({"model": "fake", "input": "hi", "background": True})
        assert status == 200, body
        live.process.send_signal(number)
        assert live.process.wait(60) == (0 if number == signal.SIGTERM else -number)
    with serving(*flags) as live:
        assert polled(live, json.loads(body)["id"])["status"] == "completed"


@pytest.mark.shows("B.7")
def test_a_server_that_stops_lets_background_work_end_within_its_grace(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"))
    with serving(*flags, "--fake-tokens", "10", "--fake-rate", "20") as live:
        _, body = live.post({"model": "fake", "input": "hi", "background": True})
        live.process.send_signal(signal.SIGTERM)
        assert live.process.wait(60) == 0
    with serving(*flags, "--fake-tokens", "1") as live:
        response = polled(live, json.loads(body)["id"])
    assert response["usage"]["output_tokens"] == 10  # and nobody did it again


@pytest.mark.shows("B.7")
def test_a_stream_in_the_background_that_died_is_closed_and_fails(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"), *LEASE)
    with serving(*flags, *SLOW) as live, client(live) as openai:
        heard: list[Any] = []
        stream = openai.responses.create(model="fake", input="hi", background=True, stream=True)
        for event in stream:
            heard.append(event.to_dict())
            if event.type == "response.output_text.delta":
                break
        live.process.send_signal(signal.SIGKILL)
        live.process.wait(60)
        stream.close()
    response_id = heard[0]["response"]["id"]
    with serving(*flags) as live:
        response = polled(live, response_id)
        assert (response["status"], response["error"]["code"]) == ("failed", "server_restarted")
        _, answer = live.get(f"/v1/responses/{response_id}?stream=true")
    *events, done = answer.removesuffix(b"\n\n").split(b"\n\n")
    told = [json.loads(event.partition(b"\ndata: ")[2]) for event in events]
    assert told[: len(heard)] == heard
    assert [event["type"] for event in told[-2:]] == ["error", "response.failed"]
    assert done == b"data: [DONE]"


@pytest.mark.shows("B.7")
def test_a_foreground_stream_that_died_fails_and_is_never_run_again(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"), *LEASE)
    with serving(*flags, *SLOW) as live, client(live) as openai:
        stream = openai.responses.create(model="fake", input="hi", stream=True)
        first = next(stream)
        assert first.type == "response.created"
        live.process.send_signal(signal.SIGKILL)
        live.process.wait(60)
        stream.close()
    with serving(*flags) as live:
        response = polled(live, first.response.id)
    assert (response["status"], response["error"]["code"]) == ("failed", "server_restarted")
