"""A complete server in front of a failing engine: the errors that clients receive, in a stream and in JSON."""

import json
from typing import Any

import pytest

from tests.engines.http.stubs.chat_stub import run_stub
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.generation import open_app, post_response
from tests.engines.unix_server import END, STREAM, json_response, read_request, sse_event
from tests.support.asgi_client import AsgiResponse
from tests.support.local_servers import Reader, Writer, serve_tcp

pytestmark = pytest.mark.anyio

HELLO = sse_event(b'{"choices":[{"index":0,"delta":{"content":"Hello"}}]}')
TOO_LONG = json_response(b'{"error":{"message":"maximum context length is 8 tokens","code":400}}', "400 Bad Request")
BUSY = json_response(b"{}", "429 Too Many Requests").replace(b"\r\n\r\n", b"\r\nRetry-After: 7\r\n\r\n", 1)
FAILURES: dict[str, tuple[bytes, int, str, str]] = {
    "closes at once": (b"", 500, "server_error", ""),
    "closes in the middle": (STREAM + HELLO, 500, "server_error", "Hello"),
    "ends without a finish reason": (STREAM + HELLO + sse_event(b"[DONE]") + END, 500, "server_error", "Hello"),
    "sends invalid JSON": (STREAM + HELLO + sse_event(b"{]") + END, 500, "server_error", "Hello"),
    "sends an error": (STREAM + HELLO + sse_event(b'{"error":"boom"}') + END, 500, "server_error", "Hello"),
    "sends an HTML page": (json_response(b"<html>", "502 Bad Gateway"), 500, "server_error", ""),
    "rejects the prompt as too long": (TOO_LONG, 400, "context_length_exceeded", ""),
    "rejects the prompt as too long with status 200": (
        TOO_LONG.replace(b"400 Bad Request", b"200 OK"), 400, "context_length_exceeded", "",
    ),
    "rejects the prompt as too long in the stream": (
        STREAM + sse_event(b'{"error":{"message":"prompt is too long"}}') + END, 400, "context_length_exceeded", "",
    ),
    "is busy": (BUSY, 429, "rate_limit_exceeded", ""),
}  # fmt: skip


def parse_events(response: AsgiResponse) -> list[dict[str, Any]]:
    blocks = response.body.decode().split("\n\n")
    lines = [line[6:] for block in blocks for line in block.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.shows("C.28", "A.29")
async def test_an_engine_failure_ends_a_stream_with_response_failed_and_json_with_an_error(failure: str) -> None:
    reply, status, code, text = FAILURES[failure]

    async def behave(reader: Reader, writer: Writer) -> None:
        while True:
            received = await read_request(reader)
            if received.startswith(b"/v1/chat"):
                writer.write(reply)
                return
            writer.write(json_response(b'{"data":[{"id":"m"}]}'))

    async with serve_tcp(behave) as port, open_app(f"vllm://127.0.0.1:{port}") as app:
        streamed = parse_events(await post_response(app, stream=True))
        assert [event["type"] for event in streamed[-2:]] == ["error", "response.failed"]
        assert streamed[-1]["response"]["error"]["code"] == code
        assert not [event for event in streamed if event["type"] == "response.completed"]
        assert "".join(event["delta"] for event in streamed if event["type"] == "response.output_text.delta") == text
        whole = await post_response(app)
        assert (whole.status, whole.error["code"]) == (status, code)
        if status == 429:
            assert whole.header(b"retry-after") == b"7"


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_stream_and_json_return_the_same_response(name: str) -> None:
    async with run_stub(name) as stub, open_app(stub.url) as app:
        for fields in ({}, {"max_output_tokens": 2}, {"tools": [{"type": "function", "name": "f"}]}):
            last = parse_events(await post_response(app, stream=True, **fields))[-1]["response"]
            whole = (await post_response(app, **fields)).json()
            assert last["status"] == whole["status"] == ("incomplete" if "max_output_tokens" in fields else "completed")
            assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"] > 0
            assert [_without_ids(item) for item in last["output"]] == [_without_ids(item) for item in whole["output"]]


def _without_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


@pytest.mark.shows("A.27", "A.28")
async def test_a_too_long_prompt_is_rejected_by_the_token_count_of_the_engine() -> None:
    long = [{"role": "user", "content": "many words " * 15_000}, {"role": "user", "content": "short"}]
    async with run_stub("vllm") as stub, open_app(stub.url) as app:
        response = await post_response(app, input=long)
        assert (response.status, response.error["code"]) == (400, "context_length_exceeded")
        assert not stub.chat_bodies
        assert (await post_response(app, input=long, truncation="auto")).json()["status"] == "completed"
        assert [message["content"] for message in stub.chat_bodies[0]["messages"]] == ["short"]
        request_count = len(stub.heads)
        response = await post_response(app, input="word " * 1_500_000)
        assert (response.status, response.error["code"]) == (400, "context_length_exceeded")
        assert len(stub.heads) == request_count, "a prompt that is far too long is rejected without counting"
