"""SIGHUP at a real server: the settings are read again, and nobody who listens notices."""

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

from tests.cli.process import COMMAND, DEADLINE, clean
from tests.engines.unix_server import END, STREAM, Reader, Writer, answer, event, request
from tests.support.local_servers import tcp
from tests.support.server_process import Live, serving

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
MODELS = answer(b'{"object":"list","data":[{"id":"fake"}]}')
HELLO = event(b'{"choices":[{"index":0,"delta":{"content":"Hello"}}]}')
STOP = event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}') + event(b"[DONE]")


def said(live: Live, words: str) -> None:
    """Wait until it has logged that."""
    deadline = time.monotonic() + DEADLINE
    while words.encode() not in live.output():
        assert time.monotonic() < deadline, live.news()
        time.sleep(0.02)


def engines(live: Live) -> dict[str, bool]:
    """By name, with whether they get no new work."""
    status, body = live.get("/v1/capabilities")
    assert status == 200
    return {one["name"]: one["draining"] for one in json.loads(body)["data"][0]["members"]}


class Slow:
    """An engine that says a word, and the rest when it is told to."""

    def __init__(self) -> None:
        self._goes_on = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def serve(self, reader: Reader, writer: Writer) -> None:
        while True:
            asked = await request(reader)
            if asked.startswith(b"/v1/chat/completions"):
                writer.write(STREAM + HELLO)
                await self._goes_on.wait()
                writer.write(STOP + END)
            else:
                writer.write(MODELS if asked.startswith(b"/v1/models") else answer(b"{}", "404 Not Found"))

    def go_on(self) -> None:
        self._loop.call_soon_threadsafe(self._goes_on.set)


@pytest.mark.anyio
@pytest.mark.shows("C.23")
async def test_a_sighup_changes_engines_names_and_bounds_and_drops_no_stream(tmp_path: Path) -> None:
    file, slow = tmp_path / "antiphon.toml", Slow()
    async with tcp(slow.serve) as port:
        file.write_text(FIRST.format(port=port))
        await asyncio.to_thread(_reloads, file, slow)


def _reloads(file: Path, slow: Slow) -> None:
    with contextlib.ExitStack() as opened:
        live = opened.enter_context(serving("--config", str(file)))
        connection = opened.enter_context(
            contextlib.closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=DEADLINE))
        )
        body = json.dumps({"model": "fake", "input": "hi", "stream": True})
        connection.request("POST", "/v1/responses", body, {"Content-Type": "application/json"})
        stream = connection.getresponse()
        beginning = stream.read(200)
        assert engines(live) == {"one": False}
        file.write_text(SECOND)
        live.process.send_signal(signal.SIGHUP)
        said(live, "engines that joined: two, that leave: one")
        said(live, "A restart is needed for what else has changed: ping_interval")
        assert engines(live) == {"two": False, "one": True}
        status, answer = live.post({"model": "fast", "input": "word " * 60})
        assert (status, json.loads(answer)["status"]) == (200, "incomplete")
        slow.go_on()
        rest = beginning + stream.read()
        assert b"event: response.completed" in rest
        assert rest.endswith(b"data: [DONE]\n\n")
        said(live, "one is closed")
        assert engines(live) == {"two": False}
        file.write_text("nonsense = ")
        live.process.send_signal(signal.SIGHUP)
        said(live, "The settings are left as they were")
        assert engines(live) == {"two": False}
        assert "Traceback" not in live.output().decode()


def test_a_server_whose_terminal_is_closed_ends(tmp_path: Path) -> None:
    """It gets a SIGHUP too, which is not an operator's word."""
    leader, follower = pty.openpty()
    begin = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", begin, *COMMAND, "serve", "--engine", "fake", "--port", "0", "--store", "memory"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=clean(tmp_path),
        cwd=tmp_path,
        start_new_session=True,
    )
    os.close(follower)
    try:
        seen = b""
        while b"Ctrl-C" not in seen:
            seen += os.read(leader, 4096)
        os.close(leader)
        assert process.wait(DEADLINE) is not None
    finally:
        process.kill()
        process.wait()
