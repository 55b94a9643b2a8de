"""Probe responses of an engine are untrusted: whatever an engine reports about itself, the server starts, lists its
models and capabilities, and answers requests or rejects them with a proper status.
"""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from antiphon.config import Config
from antiphon.engines.http.base import HttpSettings
from antiphon.errors import AntiphonError, StartupError
from antiphon.wiring import build_app
from drills.engines.event_mutations import insert_invalid_literal, mistype_value
from drills.engines.hostile_upstream import DefectLog
from tests.engines.http.stubs.chat_stub import EngineStub
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.mutations import mutate
from tests.engines.unix_server import json_response
from tests.support.asgi_client import JSON, call
from tests.support.local_servers import serve_tcp
from tools.engines_page import ENGINE_CLASSES

pytestmark = pytest.mark.anyio

MUTATIONS = 30  # per kind of engine
BODIES: tuple[bytes, ...] = (
    b"null", b"[]", b"7", b'"x"', b"{}", b'{"data":null}', b'{"data":[]}', b'{"data":[{}]}', b'{"data":[{"id":""}]}',
    b'{"data":[{"id":"m"},{"id":"m"}]}', b'{"data":[{"id":"m\\r\\nx: y\\u001b[31m"}]}', b'{"data":[{"id":"\\ud800"}]}',
    b'{"data":[{"id":"m","created":%b,"max_model_len":%b}]}' % (b"9" * 40, b"9" * 400),
    b'{"data":[{"id":"m","max_model_len":-1,"meta":{"n_ctx":"x"}}]}', b'{"data":[{"id":"m","meta":{"n_ctx":1e300}}]}',
    b'{"data":[{"id":"%b"}]}' % (b"m" * 300_000),
    b'{"data":[%b]}' % b",".join(b'{"id":"m%d"}' % number for number in range(5_000)),
    b'{"count":%b,"tokens":[%b]}' % (b"9" * 300, b"9" * 300), b'{"tokens":[-1,null]}', b'{"version":7}',
    b'{"version":"%b"}' % (b"9" * 300_000), b'{"models":[{"name":null}]}', b'{"total_slots":-5,"modalities":7}',
    b'{"total_slots":%b}' % (b"9" * 300), b"<html>", b"", b"\xff\xfe", b"[" * 10_000,
)  # fmt: skip


class BufferWriter:
    """Replaces a stream writer and collects the bytes."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


class MutatingStub(EngineStub):
    """Answers as the real engine would, and mutates some of the responses."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(DIALECTS[name])
        self._rng = random.Random(number)

    async def _respond(self, path: str, body: bytes, writer: Any) -> None:
        is_stream, buffer = b'"stream":true' in body, BufferWriter()
        try:
            await super()._respond(path, body, writer if is_stream else buffer)  # type: ignore[arg-type]  # only `write` is used
        except AntiphonError:  # from the stub's fake engine: the server may forward a mutated value to it
            raise ConnectionResetError
        if is_stream:
            return
        mutate = self._rng.choice(
            (
                _replace_body,
                _mutate_value,
                _mutate_value,
                _mutate_value,
                _mutate_bytes,
                _replace_status,
                _keep_response,
                _keep_response,
            )
        )
        writer.write(mutate(buffer.written, self._rng))


def _keep_response(response: bytes, rng: random.Random) -> bytes:
    return response


def _replace_body(response: bytes, rng: random.Random) -> bytes:
    return json_response(rng.choice(BODIES))


def _mutate_value(response: bytes, rng: random.Random) -> bytes:
    change: Callable[..., list[bytes]] = rng.choice((mistype_value, mistype_value, insert_invalid_literal))
    (event,) = change([b"data: " + response.partition(b"\r\n\r\n")[2]], rng)
    return json_response(event.removeprefix(b"data: "))


def _mutate_bytes(response: bytes, rng: random.Random) -> bytes:
    return json_response(mutate(response.partition(b"\r\n\r\n")[2], rng))


def _replace_status(response: bytes, rng: random.Random) -> bytes:
    return json_response(b'{"error":{"message":7}}', rng.choice(("500 X", "404 X", "302 X", "429 X", "503 X", "204 X")))


async def _collect_statuses(name: str, number: int) -> set[int]:
    """Return the statuses of responses from a server in front of a mutating stub."""
    async with serve_tcp(MutatingStub(name, number).serve) as port:
        url = f"{name}://127.0.0.1:{port}"
        by_tokens = number % 3 == 0 and "tokens" in ENGINE_CLASSES[name].levels
        engine = ENGINE_CLASSES[name](HttpSettings(engine=url, engine_level="tokens" if by_tokens else "chat"))
        app = build_app(Config.from_settings(engine=url, store="memory", ping_interval=0.0), engine)
        try:
            await app.lifecycle.open()
        except StartupError:
            return set()
        try:
            model = engine.models()[0].id if engine.models() else "m"
            body = json.dumps({"model": model, "input": "hi", "max_output_tokens": 3}).encode()
            replies = [
                await call(app, "GET", "/v1/models"),
                await call(app, "GET", "/v1/capabilities"),
                await call(app, "POST", "/v1/responses", JSON, body=[body]),
            ]
        finally:
            await app.lifecycle.close()
    assert replies[0].status == 200
    # Ollama's capabilities are probed again per model
    assert replies[1].status == 200 or replies[1].error["code"] == "server_error"
    for reply in replies:
        assert b"made a mistake" not in reply.body
        msgspec.json.decode(reply.body)
    return {replies[2].status}


@pytest.mark.seeds(1)
@pytest.mark.parametrize("name", sorted(ENGINE_CLASSES))
@pytest.mark.shows("C.28")
async def test_mutated_probe_responses_do_not_break_the_server(name: str, seed: int) -> None:
    statuses: set[int] = set()
    with DefectLog() as defects:
        async with asyncio.timeout(280):
            for number in range(MUTATIONS):
                statuses |= await _collect_statuses(name, MUTATIONS * seed + number)
    assert defects.seen == []
    assert statuses <= {200, 400, 404, 429, 500, 503}
    assert 200 in statuses
