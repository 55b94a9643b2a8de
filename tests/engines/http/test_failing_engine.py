"""A whole server in front of an engine that does not do well: what its clients are told, in a stream and in JSON."""

import json
from typing import Any

import pytest

from tests.engines.http.stubs.chat_stub import DIALECTS, standing_in, tcp
from tests.engines.http.stubs.generation import post, server
from tests.engines.unix_server import END, STREAM, Reader, Writer, answer, event, request
from tests.support.asgi_client import Answer

pytestmark = pytest.mark.anyio

HELLO = event(b'{"choices":[{"index":0,"delta":{"content":"Hello"}}]}')
TOO_LONG = answer(b'{"error":{"message":"maximum context length is 8 tokens","code":400}}', "400 Bad Request")
BUSY = answer(b"{}", "429 Too Many Requests").replace(b"\r\n\r\n", b"\r\nRetry-After: 7\r\n\r\n", 1)
FATES: dict[str, tuple[bytes, int, str, str]] = {
    "dies at once": (b"", 500, "server_error", ""),
    "dies in the middle": (STREAM + HELLO, 500, "server_error", "Hello"),
    "ends without an end": (STREAM + HELLO + event(b"[DONE]") + END, 500, "server_error", "Hello"),
    "talks nonsense": (STREAM + HELLO + event(b"{]") + END, 500, "server_error", "Hello"),
    "says that it failed": (STREAM + HELLO + event(b'{"error":"boom"}') + END, 500, "server_error", "Hello"),
    "answers with a page": (answer(b"<html>", "502 Bad Gateway"), 500, "server_error", ""),
    "finds it too long": (TOO_LONG, 400, "context_length_exceeded", ""),
    "finds it too long in the stream": (
        STREAM + event(b'{"error":{"message":"prompt is too long"}}') + END, 400, "context_length_exceeded", "",
    ),
    "is busy": (BUSY, 429, "rate_limit_exceeded", ""),
}  # fmt: skip


def events(told: Answer) -> list[dict[str, Any]]:
    blocks = told.body.decode().split("\n\n")
    lines = [line[6:] for block in blocks for line in block.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.shows("C.28", "A.29")
async def test_an_engine_that_fails_ends_a_stream_with_failed_and_json_with_an_error(fate: str) -> None:
    wire, status, code, text = FATES[fate]

    async def behave(reader: Reader, writer: Writer) -> None:
        while True:
            asked = await request(reader)
            if asked.startswith(b"/v1/chat"):
                writer.write(wire)
                return
            writer.write(answer(b'{"data":[{"id":"m"}]}'))

    async with tcp(behave) as port, server(f"vllm://127.0.0.1:{port}") as app:
        told = events(await post(app, stream=True))
        assert [event["type"] for event in told[-2:]] == ["error", "response.failed"]
        assert told[-1]["response"]["error"]["code"] == code
        assert not [event for event in told if event["type"] == "response.completed"]
        assert "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta") == text
        whole = await post(app)
        assert (whole.status, whole.error["code"]) == (status, code)
        if status == 429:
            assert whole.header(b"retry-after") == b"7"


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_stream_and_json_say_the_same(name: str) -> None:
    async with standing_in(name) as stub, server(stub.url) as app:
        for asked in ({}, {"max_output_tokens": 2}, {"tools": [{"type": "function", "name": "f"}]}):
            last = events(await post(app, stream=True, **asked))[-1]["response"]
            whole = (await post(app, **asked)).json()
            assert last["status"] == whole["status"] == ("incomplete" if "max_output_tokens" in asked else "completed")
            assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"] > 0
            assert [_said(item) for item in last["output"]] == [_said(item) for item in whole["output"]]


def _said(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


@pytest.mark.shows("A.27", "A.28")
async def test_a_prompt_that_is_too_long_is_counted_where_the_engine_counts() -> None:
    long = [{"role": "user", "content": "many words " * 15_000}, {"role": "user", "content": "short"}]
    async with standing_in("vllm") as stub, server(stub.url) as app:
        told = await post(app, input=long)
        assert (told.status, told.error["code"]) == (400, "context_length_exceeded")
        assert not stub.seen
        assert (await post(app, input=long, truncation="auto")).json()["status"] == "completed"
        assert [message["content"] for message in stub.seen[0]["messages"]] == ["short"]
        asked = len(stub.heads)
        told = await post(app, input="word " * 1_500_000)
        assert (told.status, told.error["code"]) == (400, "context_length_exceeded")
        assert len(stub.heads) == asked, "what is far too long is not even counted"
