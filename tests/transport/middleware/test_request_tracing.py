"""Single requests, as operators see them: lines of the access log, and ids in every line of the log."""

import json
import logging
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from antiphon.errors import EngineFailed
from antiphon.observe.logs import JsonLines
from antiphon.service.access.api_key_format import issue
from tests.api.app import Api, api
from tests.support.asgi_client import JSON, call
from tests.transport.websocket.ws_client import talking

pytestmark = pytest.mark.anyio
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = (b"traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


async def test_every_request_has_a_line_by_the_template_of_its_route(tmp_path: Path) -> None:
    log = tmp_path / "access"
    async with api(access_log=str(log)) as server:
        body = {"model": "fake", "input": "hi", "safety_identifier": "user-7", "user": "u"}
        made = (await server.post("responses", body, TRACEPARENT, (b"x-request-id", b"mine"))).json()
        await server.get(f"responses/{made['id']}")
        await server.get("responses/resp_nothing?api_key=secret")
        await call(server.app, "GET", "/nowhere/at/all")
        await server.post("responses", b"{")
    created, read, unknown, nowhere, wrong = lines(log)
    assert created == {
        "time": created["time"],
        "request_id": "mine",
        "method": "POST",
        "route": "/v1/responses",
        "status": 200,
        "seconds": created["seconds"],
        "tenant": "default",
        "response_id": made["id"],
        "trace_id": TRACE,
        "input_tokens": made["usage"]["input_tokens"],
        "output_tokens": made["usage"]["output_tokens"],
        "safety_identifier": "user-7",
        "user": "u",
    }
    assert (read["route"], read["status"]) == ("/v1/responses/{response_id}", 200)
    assert (unknown["route"], unknown["status"]) == ("/v1/responses/{response_id}", 404)
    assert (nowhere["route"], nowhere["status"]) == ("none", 404)
    assert (wrong["route"], wrong["status"]) == ("/v1/responses", 400)
    assert "secret" not in log.read_text()


@pytest.mark.parametrize("path", ["responses", "chat/completions", "messages"])
async def test_tokens_are_told_whatever_api_was_spoken(tmp_path: Path, path: str) -> None:
    log = tmp_path / "access"
    asked = {"input": "hi"} if path == "responses" else {"messages": [{"role": "user", "content": "hi"}]}
    async with api(access_log=str(log)) as server:
        for stream in (False, True):
            body = {"model": "fake", "stream": stream, **asked, **({"max_tokens": 9} if path == "messages" else {})}
            assert (await server.post(path, body)).status == 200
    for line in lines(log):
        assert line["input_tokens"] > 0
        assert line["output_tokens"] > 0


async def test_messages_of_a_websocket_have_lines_of_their_own(tmp_path: Path) -> None:
    log = tmp_path / "access"
    async with api(access_log=str(log)) as server, talking(server.app) as talk:
        made = await talk.made()
        await talk.refused(model="")
    first, second, connection = lines(log)
    assert (first["route"], first["response_id"], first["status"]) == ("websocket response.create", made["id"], 200)
    assert first["connection_id"].startswith("conn_")
    assert first["output_tokens"] == made["usage"]["output_tokens"]
    assert (second["status"], second["connection_id"]) == (400, first["connection_id"])
    assert (connection["route"], connection["status"]) == ("/v1/responses websocket", 101)


async def test_whose_it_was_is_told_by_the_id_of_the_key_and_never_by_the_key(tmp_path: Path) -> None:
    log = tmp_path / "access"
    async with api(access_log=str(log)) as server:
        row, key = issue("acme", "", ("inference",), 1.0, None)
        await server.app.lifecycle.parts.store.add_api_key(row)  # type: ignore[attr-defined]  # as build_app makes it
        header = (b"authorization", f"Bearer {key}".encode())
        body = [b'{"model": "fake", "input": "hi"}']
        assert (await call(server.app, "POST", "/v1/responses", JSON, header, body=body)).status == 200
        assert (await call(server.app, "POST", "/v1/responses", JSON, body=body)).status == 401
    good, bad = lines(log)
    assert (good["tenant"], good["key"]) == ("acme", row.id)
    assert "tenant" not in bad
    assert key not in log.read_text()


@pytest.mark.parametrize("stream", [False, True])
async def test_off_nothing_of_it_is_called_for_a_request(stream: bool) -> None:
    """But for what counts operations of the store, and says which response a log line is about."""
    called: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called[f"{Path(frame.f_code.co_filename).stem} {frame.f_code.co_qualname}"] += 1

    async with api() as server:
        body = {"model": "fake", "input": "word " * 200, "stream": stream}
        assert (await server.post("responses", body)).status == 200
        sys.setprofile(note)
        try:
            assert (await server.post("responses", body)).status == 200
        finally:
            sys.setprofile(None)
    watching = {
        *("run_tracer", "otel_attributes", "spans", "tracing", "request_tracing", "access_log", "traces"),
        *("log_context", "store_metrics"),
    }
    found = {name: times for name, times in called.items() if name.split()[0] in watching}
    assert {*found} == {
        "log_context note_response",
        "store_metrics _Measured._watched.<locals>.operation",
    }
    assert sum(found.values()) <= 8


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonLines())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def logged() -> Any:
    logger, kept = logging.getLogger("antiphon"), Lines()
    before = logger.level
    logger.addHandler(kept)
    logger.setLevel(logging.DEBUG)
    yield kept.lines
    logger.removeHandler(kept)
    logger.setLevel(before)


async def broken(server: Api, **more: Any) -> str:
    """The id of a response in which something goes wrong that nobody expected."""
    server.engine.fails(ZeroDivisionError("A defect."))
    answer = await server.post("responses", {"model": "fake", "input": "hi", **more}, TRACEPARENT)
    return (answer.header(b"x-request-id") or b"").decode()


async def test_every_line_says_what_was_being_worked_on(logged: list[dict[str, Any]]) -> None:
    async with api() as server:
        request = await broken(server)
    [line] = [line for line in logged if line["level"] == "error"]
    assert line["request_id"] == request
    assert line["response_id"].startswith("resp_")
    assert line["response_id"] in line["message"]
    assert line["trace_id"] == TRACE
    assert "connection_id" not in line


async def test_on_a_websocket_it_says_which_connection_it_was(logged: list[dict[str, Any]]) -> None:
    async with api() as server, talking(server.app) as talk:
        server.engine.fails(ZeroDivisionError("A defect."))
        talk.asks()
        await talk.end()
    [line] = [line for line in logged if line["level"] == "error"]
    assert line["connection_id"].startswith("conn_")
    assert line["response_id"].startswith("resp_")


async def test_between_requests_nothing_is_left_of_the_last(logged: list[dict[str, Any]]) -> None:
    async with api() as server:
        server.engine.fails(EngineFailed("It died."))
        await server.post("responses", {"model": "fake", "input": "hi"}, TRACEPARENT)
        logging.getLogger("antiphon.x").info("later")
    [line] = [line for line in logged if line["message"] == "later"]
    assert not {"request_id", "response_id", "trace_id"} & {*line}
