"""Secrets that go through every part of a server, and through its errors; and all that it wrote meanwhile."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any

from msgspec import Struct

import antiphon.tools.mcp.session  # noqa: F401 - here, since that takes seconds
from antiphon.config import Config
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text, Thought
from antiphon.engines.factory import build_pool
from antiphon.errors import EngineFailed
from antiphon.observe.logs import JsonLines, TextLines
from antiphon.service.access.api_key_format import issue
from antiphon.wiring import build_app
from tests.api.app import Api, api
from tests.engines.http.stubs.chat_stub import standing_in
from tests.support.asgi_client import JSON, Header, call
from tests.support.otlp_collector import collecting
from tests.tools.mcp.hostile_server import serving as mcp_server
from tests.transport.websocket.ws_client import talking


class Canaries:
    """Each is used once, and all of them are remembered."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.all: list[str] = []

    def __call__(self) -> str:
        self.all.append(f"canary{next(self._numbers):03d}{token_hex(8)}")
        return self.all[-1]


class Flight(Struct, frozen=True):
    """What was said to the server, and what it wrote: by place."""

    secrets: list[str]
    written: dict[str, str]

    def found(self) -> list[tuple[str, str]]:
        """Where there is one that should be nowhere."""
        return [(place, one) for place, text in self.written.items() for one in self.secrets if one in text]


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += JsonLines().format(record) + TextLines().format(record)


@contextmanager
def _logged() -> Iterator[_Lines]:
    root, kept = logging.getLogger(), _Lines()
    before = root.level
    root.addHandler(kept)
    root.setLevel(logging.DEBUG)
    try:
        yield kept
    finally:
        root.removeHandler(kept)
        root.setLevel(before)


async def flown(folder: Path) -> Flight:
    """Logs at their most talkative, everything that watches on, but for what is said."""
    secret, access = Canaries(), folder / "access"
    with _logged() as logged, collecting() as collector:
        settings: dict[str, Any] = {"otlp_endpoint": collector.url, "access_log": str(access)}
        async with mcp_server() as mcp, api(**settings) as server:
            await asked(server, secret)
            await refused(server, secret)
            await stored(server, secret)
            await other_apis(server, secret)
            await tools(server, secret, mcp.url("good"), mcp.url("rpc_error.call"))
            await sockets(server, secret)
            await failing(server, secret)
            metrics = (await call(server.app, "GET", "/metrics")).body.decode()
            await keys(server, secret)
        metrics += await with_an_engine_elsewhere(secret, settings)
        collector.wait_for("POST /v1/responses", "execute_tool echo", "websocket response.create")
        traces = b"".join(collector.bodies).decode("latin-1")
    written = {"log": logged.text, "access log": access.read_text(), "metrics": metrics, "traces": traces}
    return Flight(secret.all, written)


async def asked(server: Api, secret: Canaries) -> None:
    """What a request may have in it."""
    image = "data:image/png;base64," + secret()
    body = {
        "model": "fake",
        "input": [
            {"role": "user", "content": secret()},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps({"x": secret()})},
            {"type": "function_call_output", "call_id": "c", "output": secret()},
        ],
        "instructions": secret(),
        "metadata": {"note": secret()},
        "prompt_cache_key": secret(),
        "tools": [{"type": "function", "name": "f", "description": secret(), "parameters": {"type": "object"}}],
    }
    server.engine.says(Thought(secret()), Text(secret()))
    await server.made("responses", body)
    server.engine.says(Text(secret()))
    cookies: list[Header] = [(b"cookie", secret().encode()), (b"proxy-authorization", secret().encode())]
    key = (b"idempotency-key", secret().encode())
    assert (await server.post("responses", {**body, "stream": True}, *cookies, key)).status == 200
    await server.post("responses", {"model": "fake", "input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": image}]}]})  # fmt: skip
    fetched = f"http://127.0.0.1:9/{secret()}.png?token={secret()}"
    await server.post("responses", {"model": "fake", "input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": fetched}]}]})  # fmt: skip


async def refused(server: Api, secret: Canaries) -> None:
    """What is wrong with a request, or not known, is said to its client alone."""
    for body in (
        {"model": "fake", "input": "hi", "temperature": secret()},
        {"model": "fake", "input": "hi", secret(): True},
        {"model": "fake", "input": "hi", "previous_response_id": secret()},
        {"model": "fake", "input": "hi", "reasoning": {"effort": secret()}},
        {"model": "fake", "input": [{"type": secret()}]},
        {"model": "fake", "input": "hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": secret()}}},
        f'{{"model": "fake", "input": "{secret()}'.encode(),
    ):
        await server.post("responses", body)
    for path in (f"responses/resp_{secret()}", f"responses?after={secret()}", f"{secret()}", f"models/{secret()}%00"):
        await server.get(path)


async def stored(server: Api, secret: Canaries) -> None:
    """What is kept."""
    conversation = await server.made("conversations", {"metadata": {"k": secret()}})
    await server.create(conversation=conversation["id"], input=secret())
    made = await server.create(input=secret())
    await server.get(f"responses/{made['id']}")
    await server.get(f"responses/{made['id']}/input_items")
    await server.post(f"responses/{made['id']}/tool_outputs", {"tool_call_id": secret(), "output": secret()})
    waiting = await server.made("responses", {"model": "fake", "input": secret(), "background": True})
    await server.post(f"responses/{waiting['id']}/cancel")
    await server.delete(f"responses/{made['id']}")


async def other_apis(server: Api, secret: Canaries) -> None:
    for path in ("chat/completions", "messages"):
        for stream in (False, True):
            message = {"role": "user", "content": secret()}
            body = {"model": "fake", "messages": [message], "max_tokens": 9, "stream": stream}
            assert (await server.post(path, body)).status == 200
    await server.post("completions", {"model": "fake", "prompt": secret()})
    await server.post("embeddings", {"model": "fake", "input": secret()})
    await server.post("responses/input_tokens", {"model": "fake", "input": secret()})


async def tools(server: Api, secret: Canaries, good: str, bad: str) -> None:
    for url in (good, bad):
        arguments = json.dumps({"message": secret()})
        server.engine.says(CallStarted(0, "s__echo"), CallDelta(0, arguments), CallDone(0))
        server.engine.says(Text(secret()))
        tool = {"type": "mcp", "server_label": "s", "server_url": f"{url}?key={secret()}", "require_approval": "never"}
        given = {"authorization": secret(), "headers": {"x-own": secret()}}
        await server.post("responses", {"model": "fake", "input": "hi", "tools": [{**tool, **given}]})


async def sockets(server: Api, secret: Canaries) -> None:
    async with talking(server.app, (b"cookie", secret().encode())) as talk:
        server.engine.says(Text(secret()))
        await talk.made(input=secret())
        talk.sends(f'{{"type": "response.create", "input": "{secret()}')
        assert (await talk.next())["type"] == "error"
        await talk.refused(model="fake", temperature=secret())


async def failing(server: Api, secret: Canaries) -> None:
    """An engine that dies, and quotes what it was told."""
    for stream in (False, True):
        server.engine.says(Text(secret()))
        server.engine.fails(EngineFailed(f"It said {secret()}."), after=1)
        await server.post("responses", {"model": "fake", "input": secret(), "stream": stream})


async def keys(server: Api, secret: Canaries) -> None:
    """From here on the server wants keys."""
    row, key = issue("default", "", ("inference",), 1.0, None)
    secret.all.append(key)
    await server.app.lifecycle.parts.store.add_api_key(row)  # type: ignore[attr-defined]  # as build_app makes it
    for header in (
        (b"authorization", f"Bearer {key}".encode()),
        (b"x-api-key", key.encode()),
        (b"authorization", f"Bearer {secret()}".encode()),
        (b"authorization", f"Basic {secret()}".encode()),
        (b"x-api-key", f"ak_{'0' * 32}_{secret()}".encode()),
    ):
        await call(server.app, "POST", "/v1/responses", JSON, header, body=[b'{"model": "fake", "input": "hi"}'])
        await call(server.app, "GET", "/metrics", header)


async def with_an_engine_elsewhere(secret: Canaries, settings: dict[str, Any]) -> str:
    async with standing_in("vllm") as stub:
        config = Config(engine=stub.url, engine_key=secret(), store="memory", **settings)
        app = build_app(config, build_pool(config))
        await app.lifecycle.open()
        try:
            body = json.dumps({"model": "m", "input": secret(), "stream": True}).encode()
            assert (await call(app, "POST", "/v1/responses", JSON, body=[body])).status == 200
            refused = json.dumps({"model": "m", "input": "hi", "stop": [secret()] * 99}).encode()
            await call(app, "POST", "/v1/chat/completions", JSON, body=[refused])
            return (await call(app, "GET", "/metrics")).body.decode()
        finally:
            await app.lifecycle.close()
