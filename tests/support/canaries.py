"""Canary secrets sent through every part of a server, including its error paths, and everything that the server writes
meanwhile.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any

from msgspec import Struct

import antiphon.tools.mcp.session  # noqa: F401 - imported in advance because the import takes seconds
from antiphon.config import Config
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, ReasoningDelta, Text
from antiphon.engines.factory import build_pool
from antiphon.errors import EngineFailed
from antiphon.observe.logs import JsonLogFormatter, TextLogFormatter
from antiphon.service.access.api_keys import issue
from antiphon.wiring import build_app
from tests.api.app import ApiServer, run_api
from tests.engines.http.stubs.chat_stub import run_stub
from tests.support.asgi_client import JSON, Header, call
from tests.support.otlp_collector import run_collector
from tests.tools.mcp.hostile_server import run_hostile_server as mcp_server
from tests.transport.websocket.ws_client import open_websocket


class Canaries:
    """Generates secrets that are each used once, and records all of them."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.all: list[str] = []

    def __call__(self) -> str:
        self.all.append(f"canary{next(self._numbers):03d}{token_hex(8)}")
        return self.all[-1]


class CanaryRun(Struct, frozen=True):
    """The secrets that were sent to a server, and the text of each output of the server by name (log, metrics, traces
    …).
    """

    secrets: list[str]
    outputs: dict[str, str]

    def find_leaks(self) -> list[tuple[str, str]]:
        """Return (output, secret) for every secret that occurs in an output."""
        return [(name, secret) for name, text in self.outputs.items() for secret in self.secrets if secret in text]


class _LogCapture(logging.Handler):
    """Collects all log records, formatted both as JSON and as text."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += JsonLogFormatter().format(record) + TextLogFormatter().format(record)


@contextmanager
def _capture_logs() -> Iterator[_LogCapture]:
    """Capture the root logger at DEBUG level."""
    root, handler = logging.getLogger(), _LogCapture()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


async def run_canaries(folder: Path) -> CanaryRun:
    """Run all canaries with debug logs, access log, metrics and traces enabled; only the logging of content is off."""
    secret, access = Canaries(), folder / "access"
    with _capture_logs() as logs, run_collector() as collector:
        settings: dict[str, Any] = {"otlp_endpoint": collector.url, "access_log": str(access)}
        async with mcp_server() as mcp, run_api(**settings) as server:
            await send_requests(server, secret)
            await send_invalid_requests(server, secret)
            await use_stored_objects(server, secret)
            await call_other_apis(server, secret)
            await call_tools(server, secret, mcp.url("good"), mcp.url("rpc_error.call"))
            await use_websocket(server, secret)
            await fail_engine(server, secret)
            metrics = (await call(server.app, "GET", "/metrics")).body.decode()
            await send_api_keys(server, secret)
        metrics += await run_with_remote_engine(secret, settings)
        collector.wait_for("POST /v1/responses", "execute_tool echo", "websocket response.create")
        traces = b"".join(collector.bodies).decode("latin-1")
    outputs = {"log": logs.text, "access log": access.read_text(), "metrics": metrics, "traces": traces}
    return CanaryRun(secret.all, outputs)


async def send_requests(server: ApiServer, secret: Canaries) -> None:
    """Put secrets into every field that a valid request may carry."""
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
    server.engine.says(ReasoningDelta(secret()), Text(secret()))
    await server.post_ok("responses", body)
    server.engine.says(Text(secret()))
    cookies: list[Header] = [(b"cookie", secret().encode()), (b"proxy-authorization", secret().encode())]
    key = (b"idempotency-key", secret().encode())
    assert (await server.post("responses", {**body, "stream": True}, *cookies, key)).status == 200
    await server.post("responses", {"model": "fake", "input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": image}]}]})  # fmt: skip
    fetched = f"http://127.0.0.1:9/{secret()}.png?token={secret()}"
    await server.post("responses", {"model": "fake", "input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": fetched}]}]})  # fmt: skip


async def send_invalid_requests(server: ApiServer, secret: Canaries) -> None:
    """Put secrets into invalid requests and unknown paths; only the client may see them in the error."""
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


async def use_stored_objects(server: ApiServer, secret: Canaries) -> None:
    """Put secrets into stored responses and conversations."""
    conversation = await server.post_ok("conversations", {"metadata": {"k": secret()}})
    await server.create(conversation=conversation["id"], input=secret())
    made = await server.create(input=secret())
    await server.get(f"responses/{made['id']}")
    await server.get(f"responses/{made['id']}/input_items")
    await server.post(f"responses/{made['id']}/tool_outputs", {"tool_call_id": secret(), "output": secret()})
    waiting = await server.post_ok("responses", {"model": "fake", "input": secret(), "background": True})
    await server.post(f"responses/{waiting['id']}/cancel")
    await server.delete(f"responses/{made['id']}")


async def call_other_apis(server: ApiServer, secret: Canaries) -> None:
    for path in ("chat/completions", "messages"):
        for stream in (False, True):
            message = {"role": "user", "content": secret()}
            body = {"model": "fake", "messages": [message], "max_tokens": 9, "stream": stream}
            assert (await server.post(path, body)).status == 200
    await server.post("completions", {"model": "fake", "prompt": secret()})
    await server.post("embeddings", {"model": "fake", "input": secret()})
    await server.post("responses/input_tokens", {"model": "fake", "input": secret()})


async def call_tools(server: ApiServer, secret: Canaries, good: str, bad: str) -> None:
    for url in (good, bad):
        arguments = json.dumps({"message": secret()})
        server.engine.says(CallStarted(0, "s__echo"), CallDelta(0, arguments), CallDone(0))
        server.engine.says(Text(secret()))
        tool = {"type": "mcp", "server_label": "s", "server_url": f"{url}?key={secret()}", "require_approval": "never"}
        credentials = {"authorization": secret(), "headers": {"x-own": secret()}}
        await server.post("responses", {"model": "fake", "input": "hi", "tools": [{**tool, **credentials}]})


async def use_websocket(server: ApiServer, secret: Canaries) -> None:
    async with open_websocket(server.app, (b"cookie", secret().encode())) as websocket:
        server.engine.says(Text(secret()))
        await websocket.create(input=secret())
        websocket.send(f'{{"type": "response.create", "input": "{secret()}')
        assert (await websocket.receive_event())["type"] == "error"
        await websocket.create_rejected(model="fake", temperature=secret())


async def fail_engine(server: ApiServer, secret: Canaries) -> None:
    """Let the engine fail with an error message that quotes a secret."""
    for stream in (False, True):
        server.engine.says(Text(secret()))
        server.engine.fails(EngineFailed(f"It said {secret()}."), after=1)
        await server.post("responses", {"model": "fake", "input": secret(), "stream": stream})


async def send_api_keys(server: ApiServer, secret: Canaries) -> None:
    """Send valid and invalid API keys. From here on the server requires a key."""
    row, key = issue("default", "", ("inference",), 1.0, None)
    secret.all.append(key)
    await server.app.lifecycle.components.store.add_api_key(row)  # type: ignore[attr-defined]  # set by build_app
    for header in (
        (b"authorization", f"Bearer {key}".encode()),
        (b"x-api-key", key.encode()),
        (b"authorization", f"Bearer {secret()}".encode()),
        (b"authorization", f"Basic {secret()}".encode()),
        (b"x-api-key", f"ak_{'0' * 32}_{secret()}".encode()),
    ):
        await call(server.app, "POST", "/v1/responses", JSON, header, body=[b'{"model": "fake", "input": "hi"}'])
        await call(server.app, "GET", "/metrics", header)


async def run_with_remote_engine(secret: Canaries, settings: dict[str, Any]) -> str:
    """Run a second server in front of an HTTP engine with a secret engine key, and return its metrics."""
    async with run_stub("vllm") as stub:
        config = Config.from_settings(engine=stub.url, engine_key=secret(), store="memory", **settings)
        app = build_app(config, build_pool(config))
        await app.lifecycle.open()
        try:
            body = json.dumps({"model": "m", "input": secret(), "stream": True}).encode()
            assert (await call(app, "POST", "/v1/responses", JSON, body=[body])).status == 200
            invalid = json.dumps({"model": "m", "input": "hi", "stop": [secret()] * 99}).encode()
            await call(app, "POST", "/v1/chat/completions", JSON, body=[invalid])
            return (await call(app, "GET", "/metrics")).body.decode()
        finally:
            await app.lifecycle.close()
