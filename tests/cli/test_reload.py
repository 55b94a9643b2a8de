"""SIGHUP to a real server: the settings are reloaded, and running streams continue."""

import asyncio
import contextlib
import http.client
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.process import COMMAND, TIMEOUT_SECONDS, clean_environment
from tests.engines.unix_server import END, STREAM, json_response, read_request, sse_event
from tests.support.local_servers import Reader, Writer, serve_tcp
from tests.support.server_process import ServerProcess, run_server

FIRST = """
store = "memory"
[[engines]]
url = "openai://127.0.0.1:{port}"
name = "one"
"""
SECOND = """
store = "memory"
fake_rate = 1000
ping_interval = 3
[[engines]]
url = "fake"
name = "two"
[aliases]
fast = "fake"
[models.fake]
max_output_tokens = 3
"""
MODELS = json_response(b'{"object":"list","data":[{"id":"fake"}]}')
HELLO = sse_event(b'{"choices":[{"index":0,"delta":{"content":"Hello"}}]}')
STOP = sse_event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}') + sse_event(b"[DONE]")


def wait_for_log(server: ServerProcess, text: str) -> None:
    """Wait until the server has logged this text."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while text.encode() not in server.read_output():
        assert time.monotonic() < deadline, server.read_new_output()
        time.sleep(0.02)


def get_engines(server: ServerProcess) -> dict[str, bool]:
    """Return whether each engine is draining, by name."""
    status, body = server.get("/v1/capabilities")
    assert status == 200
    return {one["name"]: one["draining"] for one in json.loads(body)["data"][0]["members"]}


class SlowEngine:
    """Engine that streams one word, and the end of the answer once it is released."""

    def __init__(self) -> None:
        self._released = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def serve(self, reader: Reader, writer: Writer) -> None:
        while True:
            received = await read_request(reader)
            if received.startswith(b"/v1/chat/completions"):
                writer.write(STREAM + HELLO)
                await self._released.wait()
                writer.write(STOP + END)
            else:
                writer.write(MODELS if received.startswith(b"/v1/models") else json_response(b"{}", "404 Not Found"))

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._released.set)


@pytest.mark.anyio
@pytest.mark.shows("C.23")
async def test_sighup_changes_engines_aliases_and_limits_and_drops_no_stream(tmp_path: Path) -> None:
    file, engine = tmp_path / "antiphon.toml", SlowEngine()
    async with serve_tcp(engine.serve) as port:
        file.write_text(FIRST.format(port=port))
        await asyncio.to_thread(_run_reloads, file, engine)


def _run_reloads(file: Path, engine: SlowEngine) -> None:
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(run_server("--config", str(file)))
        connection = opened.enter_context(
            contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_SECONDS))
        )
        body = json.dumps({"model": "fake", "input": "hi", "stream": True})
        connection.request("POST", "/v1/responses", body, {"Content-Type": "application/json"})
        stream = connection.getresponse()
        beginning = stream.read(200)
        assert get_engines(server) == {"one": False}
        file.write_text(SECOND)
        server.process.send_signal(signal.SIGHUP)
        wait_for_log(server, "engines joined: two, leaving: one")
        wait_for_log(server, "These changed settings need a restart: ping_interval")
        assert get_engines(server) == {"two": False, "one": True}
        status, answer = server.post({"model": "fast", "input": "word " * 60})
        assert (status, json.loads(answer)["status"]) == (200, "incomplete")
        engine.release()
        events = beginning + stream.read()
        assert b"event: response.completed" in events
        assert events.endswith(b"data: [DONE]\n\n")
        wait_for_log(server, "one is closed")
        assert get_engines(server) == {"two": False}
        file.write_text("nonsense = ")
        server.process.send_signal(signal.SIGHUP)
        wait_for_log(server, "The settings were not reloaded")
        assert get_engines(server) == {"two": False}
        assert "Traceback" not in server.read_output().decode()


def test_a_server_exits_when_its_terminal_is_closed(tmp_path: Path) -> None:
    """Closing the terminal also sends SIGHUP, which must not be taken for a reload request."""
    leader, follower = pty.openpty()
    launcher = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", launcher, *COMMAND, "serve", "--engine", "fake", "--port", "0", "--store", "memory"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=clean_environment(tmp_path),
        cwd=tmp_path,
        start_new_session=True,
    )
    os.close(follower)
    try:
        seen = b""
        while b"Ctrl-C" not in seen:
            seen += os.read(leader, 4096)
        os.close(leader)
        assert process.wait(TIMEOUT_SECONDS) is not None
    finally:
        process.kill()
        process.wait()
