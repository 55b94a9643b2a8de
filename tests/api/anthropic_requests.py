"""Requests for the tests of /v1/messages, and parsers that validate every answer with the anthropic package."""

import json
from typing import Any

from tests.api.app import ApiServer, Client
from tests.oracles.anthropic import check_error, check_message, check_stream
from tests.support.asgi_client import AsgiResponse

HI = {"model": "fake", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello"}]}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PNG_BASE64 = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR42mP438CAFTEMLQkAqbNfwTPooMgAAAAASUVORK5CYII="


async def create_message(server: ApiServer, **body: Any) -> dict[str, Any]:
    answer = await server.post("messages", {**HI, **body})
    assert answer.status == 200, answer.body
    message: dict[str, Any] = answer.json()
    check_message(message)
    return message


def parse_message_events(answer: AsgiResponse) -> list[dict[str, Any]]:
    """Parse and validate the events of a complete stream."""
    assert answer.ended
    *frames, remainder = answer.body.decode().split("\n\n")
    assert remainder == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    check_stream(events)
    return events


async def stream_message(server: ApiServer, **body: Any) -> list[dict[str, Any]]:
    answer = await server.post("messages", {**HI, "stream": True, **body})
    assert answer.status == 200, answer.body
    assert (answer.header(b"content-type") or b"").startswith(b"text/event-stream")
    return parse_message_events(answer)


def parse_error(answer: AsgiResponse) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    check_error(body)
    assert set(body) == {"type", "error", "request_id"}
    assert body["request_id"].encode() == answer.header(b"request-id") == answer.header(b"x-request-id")
    error: dict[str, Any] = body["error"]
    return error


def strip_ids(message: dict[str, Any]) -> dict[str, Any]:
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": "", "content": blocks}


def start_client(server: ApiServer, **body: Any) -> Client:
    """Start a request whose stream the test reads by itself."""
    return Client(server.app, "POST", "messages", **{**HI, **body})
