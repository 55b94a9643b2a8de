"""deploy/Caddyfile, run by a real Caddy in front of real servers: it forwards streams without delay and WebSockets, and
a rolling restart of the servers fails no request.
"""

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import connect

from tests.plugins.services import find_caddy
from tests.support.paths import ROOT
from tests.support.server_process import ServerProcess, run_server
from tests.support.services import Postgres, free_port

pytestmark = [pytest.mark.anyio, pytest.mark.needs("caddy"), pytest.mark.timeout(120)]

CADDYFILE = (ROOT / "deploy" / "Caddyfile").read_text("utf-8")
TIMEOUT_SECONDS = 30.0
PAUSING_SCRIPT = """
[[reply]]
when = { contains = "pause" }
steps = [{ say = "One" }, { delay = 0.05 }, { say = ", two" }, { silence = true }]
"""
# One second per response. The leases are those of the default settings: a busy machine stalls a server for longer than
# a short lease, and the other one then takes over its streams, which is not what a restart does.
SLOW = ("--engine", "fake", "--fake-tokens", "30", "--fake-rate", "30")


@contextlib.contextmanager
def run_proxy(folder: Path, *ports: int) -> Iterator[int]:
    """Run Caddy with the Caddyfile, in which loopback addresses replace the service names of the compose file."""
    port = free_port()
    caddyfile = CADDYFILE.replace(":8080 {", f"http://127.0.0.1:{port} {{").replace(
        "antiphon-1:8000 antiphon-2:8000", _local_addresses(*ports)
    )
    assert caddyfile.count("127.0.0.1") == 1 + len(ports)
    (folder / "Caddyfile").write_text("{\n\tadmin off\n}\n" + caddyfile)
    program = find_caddy()
    assert program
    command = [program, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    homes = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "caddy.log").open("wb") as log, subprocess.Popen(command, stderr=log, env=homes) as process:
        try:
            _wait_for_port(port)
            yield port
        finally:
            process.kill()


def _local_addresses(*ports: int) -> str:
    return " ".join(f"127.0.0.1:{port}" for port in ports)


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    raise TimeoutError("Caddy does not listen on its port")


async def test_the_proxy_forwards_each_event_at_once_and_websockets(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text(PAUSING_SCRIPT)
    flags = ("--engine", "fake", "--fake-script", str(script), "--ping-interval", "600")
    with run_server(*flags) as server, run_proxy(tmp_path, server.port) as port:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert await _receive_text(port, "One, two") == "One, two"
        async with asyncio.timeout(TIMEOUT_SECONDS), connect(f"ws://127.0.0.1:{port}/v1/responses") as websocket:
            await websocket.send(json.dumps({"type": "response.create", "model": "fake", "input": "hi"}))
            while json.loads(await websocket.recv())["type"] != "response.completed":
                pass


async def _receive_text(port: int, expected: str) -> str:
    """Read an endless answer up to the expected text, which the proxy must forward without waiting for more."""
    text = ""
    async with (
        AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x") as client,
        await client.responses.create(model="fake", input="pause", stream=True) as stream,
    ):
        async for event in stream:
            text += event.delta if event.type == "response.output_text.delta" else ""
            if text == expected:
                break
    return text


@pytest.mark.slow
@pytest.mark.shows("H.10")
async def test_a_rolling_restart_fails_no_client_request(tmp_path: Path, postgres: Postgres) -> None:
    """The clients use the openai package with its default retries."""
    ports = free_port(), free_port()
    with postgres.temporary_database() as url, contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        replicas = first, second
        for stack, number in zip(replicas, ports, strict=True):
            stack.enter_context(_run_replica(url, number))
        with run_proxy(tmp_path, *ports) as port:
            async with AsyncOpenAI(
                base_url=f"http://127.0.0.1:{port}/v1", api_key="x", timeout=TIMEOUT_SECONDS
            ) as client:
                stop = asyncio.Event()
                clients = [asyncio.create_task(_send_requests(client, stop, number)) for number in range(8)]
                for stack, number in zip(replicas, ports, strict=True):
                    await asyncio.to_thread(stack.close)
                    await asyncio.to_thread(stack.enter_context, _run_replica(url, number))
                stop.set()
                await asyncio.gather(*clients)


@contextlib.contextmanager
def _run_replica(url: str, port: int) -> Iterator[ServerProcess]:
    with run_server(*SLOW, "--store", url, "--port", str(port)) as server:
        assert re.search(rb"127\.0\.0\.1:" + str(port).encode(), server.read_output())
        yield server


async def _send_requests(client: AsyncOpenAI, stop: asyncio.Event, number: int) -> None:
    """Send requests one after the other until `stop` is set, and one more after that. Every failure is raised."""
    ending = False
    while not ending:
        ending = stop.is_set()
        if number % 2:
            async with client.responses.stream(model="fake", input="hi") as stream:
                response = await stream.get_final_response()
        else:
            answer = await client.responses.create(model="fake", input="hi")
            response = await client.responses.retrieve(answer.id)  # type: ignore[assignment] # parsed or not
        assert response.status == "completed"
