"""What the tests of /v1/messages ask with, and how they read what comes back: everything is judged on the way."""

import json
from typing import Any

from tests.api.app import Api, Client
from tests.oracles.anthropic import check_message, check_problem, check_stream
from tests.support.asgi_client import Answer

HI = {"model": "fake", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello"}]}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR42mP438CAFTEMLQkAqbNfwTPooMgAAAAASUVORK5CYII="


async def made(server: Api, **body: Any) -> dict[str, Any]:
    answer = await server.post("messages", {**HI, **body})
    assert answer.status == 200, answer.body
    message: dict[str, Any] = answer.json()
    check_message(message)
    return message


def events_in(answer: Answer) -> list[dict[str, Any]]:
    """Of a stream as it came over the wire."""
    assert answer.ended
    *frames, rest = answer.body.decode().split("\n\n")
    assert rest == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    check_stream(events)
    return events


async def streamed(server: Api, **body: Any) -> list[dict[str, Any]]:
    answer = await server.post("messages", {**HI, "stream": True, **body})
    assert answer.status == 200, answer.body
    assert (answer.header(b"content-type") or b"").startswith(b"text/event-stream")
    return events_in(answer)


def problem_in(answer: Answer) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    check_problem(body)
    assert set(body) == {"type", "error", "request_id"}
    assert body["request_id"].encode() == answer.header(b"request-id") == answer.header(b"x-request-id")
    error: dict[str, Any] = body["error"]
    return error


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    blocks = [{name: held for name, held in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": "", "content": blocks}


def caller(server: Api, **body: Any) -> Client:
    return Client(server.app, "POST", "messages", **{**HI, **body})
