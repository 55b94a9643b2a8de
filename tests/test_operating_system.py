"""Systems that lack uvloop, or everything that only POSIX systems have: the server runs on asyncio's event loop."""

import asyncio
import json
import math
import signal
from pathlib import Path

import pytest
import uvloop

from antiphon import operating_system
from antiphon.operating_system import find_libc_function, get_file_limits, new_event_loop, raise_file_limit
from tests.cli.process import run_antiphon
from tests.support.server_process import run_server
from tests.support.without_posix import WITHOUT_POSIX


@pytest.mark.shows("I4.5")
def test_a_server_without_posix_answers_streams_stores_and_stops(tmp_path: Path) -> None:
    """The second server has the first one as its engine, over HTTP."""
    store = str(tmp_path / "store.db")
    with (
        run_server("--engine", "fake", program=WITHOUT_POSIX) as engine,
        run_server("--engine", f"openai://127.0.0.1:{engine.port}", "--store", store, program=WITHOUT_POSIX) as server,
    ):
        status, body = server.post({"model": "fake", "input": "Hello!"})
        assert status == 200
        created = json.loads(body)
        assert created["status"] == "completed"
        assert json.loads(server.get(f"/v1/responses/{created['id']}")[1])["output"] == created["output"]
        status, streamed = server.post({"model": "fake", "input": "Hello!", "stream": True})
        assert status == 200
        assert b"event: response.completed" in streamed
        assert b"antiphon_requests_total" in server.get("/metrics")[1]
        for process in (server.process, engine.process):
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0


def test_what_such_a_system_cannot_do_is_a_startup_error(tmp_path: Path) -> None:
    for flags, message in (
        (("llamacpp",), "This system cannot run models in the server. Use that of an engine: --engine"),
        (
            ("fake", "--workers", "2", "--store", "store.db"),
            "This system cannot run several workers: leave --workers at 1.",
        ),
        (("fake", "--files", "files"), "Files cannot be kept in a folder on this system: set --files store."),
    ):
        ran = run_antiphon(tmp_path, "serve", "--port", "0", "--engine", *flags, program=WITHOUT_POSIX)
        assert (ran.returncode, message in ran.stderr) == (2, True), ran.stderr


def test_the_event_loop_is_that_of_uvloop_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, kind in ((uvloop, uvloop.Loop), (None, asyncio.SelectorEventLoop)):
        monkeypatch.setattr(operating_system, "uvloop", module)
        loop = new_event_loop()
        assert isinstance(loop, kind)
        loop.close()


def test_a_system_without_limits_of_open_files_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = get_file_limits()
    assert limits is not None
    assert 0 < limits[0] <= limits[1] <= math.inf
    monkeypatch.setattr(operating_system, "resource", None)
    assert get_file_limits() is None
    raise_file_limit()


def test_only_functions_of_the_c_library_are_found() -> None:
    assert find_libc_function("strlen") is not None
    assert find_libc_function("no_such_function") is None
