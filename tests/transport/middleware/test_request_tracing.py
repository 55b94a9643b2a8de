"""The access log, with a line for every request, and the ids in every line of the log."""

import json
import logging
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from antiphon.errors import EngineFailed
from antiphon.observe.logs import JsonLogFormatter
from antiphon.service.access.api_keys import issue
from tests.api.app import ApiServer, run_api
from tests.support.asgi_client import JSON, call
from tests.transport.websocket.ws_client import open_websocket

pytestmark = pytest.mark.anyio
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = (b"traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode())


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


async def test_every_request_is_logged_under_the_template_of_its_route(tmp_path: Path) -> None:
    log = tmp_path / "access"
    async with run_api(access_log=str(log)) as server:
        body = {"model": "fake", "input": "hi", "safety_identifier": "user-7", "user": "u"}
        made = (await server.post("responses", body, TRACEPARENT, (b"x-request-id", b"mine"))).json()
        await server.get(f"responses/{made['id']}")
        await server.get("responses/resp_nothing?api_key=secret")
        await call(server.app, "GET", "/nowhere/at/all")
        await server.post("responses", b"{")
    created, read, unknown, nowhere, wrong = read_lines(log)
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
async def test_token_counts_are_logged_for_every_api(tmp_path: Path, path: str) -> None:
    log = tmp_path / "access"
    fields = {"input": "hi"} if path == "responses" else {"messages": [{"role": "user", "content": "hi"}]}
    async with run_api(access_log=str(log)) as server:
        for stream in (False, True):
            body = {"model": "fake", "stream": stream, **fields, **({"max_tokens": 9} if path == "messages" else {})}
            assert (await server.post(path, body)).status == 200
    for line in read_lines(log):
        assert line["input_tokens"] > 0
        assert line["output_tokens"] > 0


async def test_every_message_of_a_websocket_is_logged(tmp_path: Path) -> None:
    log = tmp_path / "access"
    async with run_api(access_log=str(log)) as server, open_websocket(server.app) as client:
        made = await client.create()
        await client.create_rejected(model="")
    first, second, connection = read_lines(log)
    assert (first["route"], first["response_id"], first["status"]) == ("websocket response.create", made["id"], 200)
    assert first["connection_id"].startswith("conn_")
    assert first["output_tokens"] == made["usage"]["output_tokens"]
    assert (second["status"], second["connection_id"]) == (400, first["connection_id"])
    assert (connection["route"], connection["status"]) == ("/v1/responses websocket", 101)


async def test_the_id_of_the_key_is_logged_and_never_the_key(tmp_path: Path) -> None:
    log = tmp_path / "access"
    async with run_api(access_log=str(log)) as server:
        row, key = issue("acme", "", ("inference",), 1.0, None)
        await server.app.lifecycle.components.store.add_api_key(row)  # type: ignore[attr-defined]  # from build_app
        header = (b"authorization", f"Bearer {key}".encode())
        body = [b'{"model": "fake", "input": "hi"}']
        assert (await call(server.app, "POST", "/v1/responses", JSON, header, body=body)).status == 200
        assert (await call(server.app, "POST", "/v1/responses", JSON, body=body)).status == 401
    good, bad = read_lines(log)
    assert (good["tenant"], good["key"]) == ("acme", row.id)
    assert "tenant" not in bad
    assert key not in log.read_text()


@pytest.mark.parametrize("stream", [False, True])
async def test_disabled_tracing_runs_no_tracing_code(stream: bool) -> None:
    """Exceptions are the counters of store operations, and the response id of log lines."""
    called: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called[f"{Path(frame.f_code.co_filename).stem} {frame.f_code.co_qualname}"] += 1

    async with run_api() as server:
        body = {"model": "fake", "input": "word " * 200, "stream": stream}
        assert (await server.post("responses", body)).status == 200
        sys.setprofile(note)
        try:
            assert (await server.post("responses", body)).status == 200
        finally:
            sys.setprofile(None)
    tracing_modules = {
        *("run_tracer", "spans", "tracing", "request_tracing", "traces", "logs"),
    }
    found = {
        name: times for name, times in called.items() if name.split()[0] in tracing_modules or "MeasuredProxy" in name
    }
    for first_use in ("__getattr__", "_wrap"):  # of an operation by a background loop, which may begin meanwhile
        found.pop(f"metrics MeasuredProxy.{first_use}", None)
    assert {*found} == {
        "logs set_response_id",
        "metrics MeasuredProxy._wrap.<locals>.operation",
    }
    assert sum(found.values()) <= 12  # with those of background loops


class CapturingHandler(logging.Handler):
    """Records log lines as they are rendered in JSON."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonLogFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def log_lines() -> Any:
    logger, handler = logging.getLogger("antiphon"), CapturingHandler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(before)


async def create_failing(server: ApiServer, **fields: Any) -> str:
    """Create a response that fails with an unexpected exception, and return the request id."""
    server.engine.fails(ZeroDivisionError("A defect."))
    answer = await server.post("responses", {"model": "fake", "input": "hi", **fields}, TRACEPARENT)
    return (answer.header(b"x-request-id") or b"").decode()


async def test_log_lines_have_the_request_response_and_trace_ids(log_lines: list[dict[str, Any]]) -> None:
    async with run_api() as server:
        request_id = await create_failing(server)
    [line] = [line for line in log_lines if line["level"] == "error"]
    assert line["request_id"] == request_id
    assert line["response_id"].startswith("resp_")
    assert line["response_id"] in line["message"]
    assert line["trace_id"] == TRACE
    assert "connection_id" not in line


async def test_log_lines_of_a_websocket_have_the_connection_id(log_lines: list[dict[str, Any]]) -> None:
    async with run_api() as server, open_websocket(server.app) as client:
        server.engine.fails(ZeroDivisionError("A defect."))
        client.send_create()
        await client.receive_end()
    [line] = [line for line in log_lines if line["level"] == "error"]
    assert line["connection_id"].startswith("conn_")
    assert line["response_id"].startswith("resp_")


async def test_log_lines_after_a_request_have_none_of_its_ids(log_lines: list[dict[str, Any]]) -> None:
    async with run_api() as server:
        server.engine.fails(EngineFailed("It died."))
        await server.post("responses", {"model": "fake", "input": "hi"}, TRACEPARENT)
        logging.getLogger("antiphon.x").info("later")
    [line] = [line for line in log_lines if line["message"] == "later"]
    assert not {"request_id", "response_id", "trace_id"} & {*line}
