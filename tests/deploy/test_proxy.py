"""deploy/Caddyfile, run by a real Caddy in front of real servers: streams go through as they come, WebSockets too, and
servers that are replaced in turn are noticed by nobody."""

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

from tests.plugins.services import caddy
from tests.support.paths import ROOT
from tests.support.server_process import Live, serving
from tests.support.services import Postgres, free_port

pytestmark = [pytest.mark.anyio, pytest.mark.needs("caddy"), pytest.mark.timeout(120)]

CADDYFILE = (ROOT / "deploy" / "Caddyfile").read_text("utf-8")
DEADLINE = 30.0
PAUSING = """
[[reply]]
when = { contains = "pause" }
steps = [{ say = "One" }, { delay = 0.05 }, { say = ", two" }, { silence = true }]
"""
SLOW = ("--engine", "fake", "--fake-tokens", "30", "--fake-rate", "30", "--lease-seconds", "1")  # a second each


@contextlib.contextmanager
def proxied(folder: Path, *ports: int) -> Iterator[int]:
    """Caddy with our file, in which the names of the compose file are addresses of this machine."""
    port = free_port()
    told = CADDYFILE.replace(":8080 {", f"http://127.0.0.1:{port} {{").replace(
        "antiphon-1:8000 antiphon-2:8000", _here(*ports)
    )
    assert told.count("127.0.0.1") == 1 + len(ports)
    (folder / "Caddyfile").write_text("{\n\tadmin off\n}\n" + told)
    program = caddy()
    assert program
    command = [program, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    homes = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "caddy.log").open("wb") as log, subprocess.Popen(command, stderr=log, env=homes) as process:
        try:
            _wait_for(port)
            yield port
        finally:
            process.kill()


def _here(*ports: int) -> str:
    return " ".join(f"127.0.0.1:{port}" for port in ports)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    raise TimeoutError("Caddy does not listen")


async def test_events_come_through_one_by_one_and_websockets_too(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text(PAUSING)
    flags = ("--engine", "fake", "--fake-script", str(script), "--ping-interval", "600")
    with serving(*flags) as live, proxied(tmp_path, live.port) as port:
        async with asyncio.timeout(DEADLINE):
            assert await _heard(port, "One, two") == "One, two"
        async with asyncio.timeout(DEADLINE), connect(f"ws://127.0.0.1:{port}/v1/responses") as one:
            await one.send(json.dumps({"type": "response.create", "model": "fake", "input": "hi"}))
            while json.loads(await one.recv())["type"] != "response.completed":
                pass


async def _heard(port: int, awaited: str) -> str:
    """Of an answer that never ends: up to these words, which must not wait for others."""
    said = ""
    async with (
        AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x") as client,
        await client.responses.create(model="fake", input="pause", stream=True) as stream,
    ):
        async for event in stream:
            said += event.delta if event.type == "response.output_text.delta" else ""
            if said == awaited:
                break
    return said


@pytest.mark.shows("H.10")
async def test_servers_that_are_replaced_in_turn_are_noticed_by_nobody(tmp_path: Path, postgres: Postgres) -> None:
    """By nobody who uses the openai package as it comes: it tries again where it is told to."""
    ports = free_port(), free_port()
    with postgres.database() as url, contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        replicas = first, second
        for own, number in zip(replicas, ports, strict=True):
            own.enter_context(_replica(url, number))
        with proxied(tmp_path, *ports) as port:
            async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", timeout=DEADLINE) as client:
                enough = asyncio.Event()
                clients = [asyncio.create_task(_use(client, enough, number)) for number in range(8)]
                for own, number in zip(replicas, ports, strict=True):
                    await asyncio.to_thread(own.close)
                    await asyncio.to_thread(own.enter_context, _replica(url, number))
                enough.set()
                await asyncio.gather(*clients)


@contextlib.contextmanager
def _replica(url: str, port: int) -> Iterator[Live]:
    with serving(*SLOW, "--store", url, "--port", str(port)) as live:
        assert re.search(rb"127\.0\.0\.1:" + str(port).encode(), live.output())
        yield live


async def _use(client: AsyncOpenAI, enough: asyncio.Event, number: int) -> None:
    """One after the other until it is enough, and one more of those who came back. Whatever goes wrong is raised."""
    ending = False
    while not ending:
        ending = enough.is_set()
        if number % 2:
            async with client.responses.stream(model="fake", input="hi") as stream:
                response = await stream.get_final_response()
        else:
            answer = await client.responses.create(model="fake", input="hi")
            response = await client.responses.retrieve(answer.id)  # type: ignore[assignment] # parsed or not
        assert response.status == "completed"
