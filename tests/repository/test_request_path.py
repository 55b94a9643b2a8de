"""docs/development/request-path.md names the functions that a streamed request runs through, in their order."""

import asyncio
import re
import sys
from contextvars import ContextVar
from types import FrameType
from typing import Any

import pytest
from uvicorn.server import ServerState

from antiphon.http_server.http_protocol import HttpProtocol
from antiphon.http_server.settings import HttpServerSettings
from tests.engines.http.stubs.chat_stub import EngineStub
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.generation import open_app
from tests.http_server.recording_transport import RecordingHttpTransport, run_loop_once
from tests.support.local_servers import serve_tcp
from tests.support.paths import ROOT
from tests.transport.edge_process import DEADLINE_SECONDS, make_request

pytestmark = pytest.mark.anyio

PAGE = ROOT / "docs" / "development" / "request-path.md"
SOURCE = ROOT / "src" / "antiphon"
STEP = re.compile(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", re.MULTILINE)
MAX_FILES_BEFORE_THE_ENGINE = 80
BODY = b'{"model":"m","input":"hi","stream":true}'

Function = tuple[str, str]  # file and qualified name
IN_REQUEST = ContextVar("IN_REQUEST", default=False)  # tasks inherit it; those of periodic loops began without it


async def trace_streamed_request() -> list[Function]:
    """Return every call of a function of the server, in order, for one request."""
    calls: list[Function] = []

    def record(frame: FrameType, event: str, argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{SOURCE}/") and IN_REQUEST.get():
            calls.append((path[len(f"{SOURCE}/") :], frame.f_code.co_qualname))

    stub, transport = EngineStub(DIALECTS["openai"]), RecordingHttpTransport()
    async with serve_tcp(stub.serve) as port, open_app(f"openai://127.0.0.1:{port}") as app:
        connection = HttpProtocol(HttpServerSettings(app), ServerState(), {})
        connection.connection_made(transport)  # type: ignore[arg-type]  # has only the methods that are called
        request = make_request("/v1/responses", method="POST", body=BODY)
        IN_REQUEST.set(True)
        sys.setprofile(record)
        try:
            connection.data_received(request)
            async with asyncio.timeout(DEADLINE_SECONDS):
                while b"[DONE]" not in b"".join(transport.writes):
                    await run_loop_once()
        finally:
            sys.setprofile(None)
    return calls


async def test_a_streamed_request_runs_through_the_functions_of_the_page_in_order() -> None:
    steps, calls = STEP.findall(PAGE.read_text("utf-8")), iter(await trace_streamed_request())
    assert len(steps) > 30
    for step in steps:
        assert step in calls, f"{step} is not called after the step before it"


async def test_few_files_are_visited_before_the_engine_is_asked() -> None:
    calls = await trace_streamed_request()
    before = calls[: calls.index(("engines/connection.py", "EngineConnection.send_request"))]
    assert len({path for path, _ in before}) <= MAX_FILES_BEFORE_THE_ENGINE
