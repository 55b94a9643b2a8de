"""What an engine says of itself is untrusted, too: whatever that is, the server starts, says what it knows, and answers
requests or refuses them in good order.
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
from drills.engines.event_mutations import huge, mistyped
from drills.engines.hostile_upstream import Defects
from tests.contracts.test_http_engines import KINDS
from tests.engines.http.stubs.chat_stub import DIALECTS, Stub, tcp
from tests.engines.http.stubs.mutations import mutated
from tests.engines.unix_server import answer
from tests.support.asgi_client import JSON, call

pytestmark = pytest.mark.anyio

LIES = 30  # of each kind of engine
WHOLE: tuple[bytes, ...] = (
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


class Gathered:
    """Stands in for a writer."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


class Liar(Stub):
    """Answers as its server would, and then changes some of it."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(DIALECTS[name])
        self._chance = random.Random(number)

    async def _answer(self, path: str, body: bytes, writer: Any) -> None:
        if b'"stream":true' in body:
            try:
                await super()._answer(path, body, writer)
            except AntiphonError:  # of the fake engine behind it: our own server may pass on a lie
                raise ConnectionResetError
            return
        gathered = Gathered()
        await super()._answer(path, body, gathered)  # type: ignore[arg-type]  # all that is used of a writer is there
        lie = self._chance.choice((_whole, _value, _value, _value, _bytes, _status, _truth, _truth))
        writer.write(lie(gathered.written, self._chance))


def _truth(said: bytes, chance: random.Random) -> bytes:
    return said


def _whole(said: bytes, chance: random.Random) -> bytes:
    return answer(chance.choice(WHOLE))


def _value(said: bytes, chance: random.Random) -> bytes:
    change: Callable[..., list[bytes]] = chance.choice((mistyped, mistyped, huge))
    (event,) = change([b"data: " + said.partition(b"\r\n\r\n")[2]], chance)
    return answer(event.removeprefix(b"data: "))


def _bytes(said: bytes, chance: random.Random) -> bytes:
    return answer(mutated(said.partition(b"\r\n\r\n")[2], chance))


def _status(said: bytes, chance: random.Random) -> bytes:
    return answer(b'{"error":{"message":7}}', chance.choice(("500 X", "404 X", "302 X", "429 X", "503 X", "204 X")))


async def _served(name: str, number: int) -> set[int]:
    """The statuses that a server in front of it answers with."""
    async with tcp(Liar(name, number).serve) as port:
        url = f"{name}://127.0.0.1:{port}"
        by_tokens = number % 3 == 0 and "tokens" in KINDS[name].levels
        engine = KINDS[name](HttpSettings(engine=url, engine_level="tokens" if by_tokens else "chat"))
        app = build_app(Config(engine=url, store="memory", ping_interval=0.0), engine)
        try:
            await app.lifecycle.open()
        except StartupError:
            return set()
        try:
            model = engine.models()[0].id if engine.models() else "m"
            asked = json.dumps({"model": model, "input": "hi", "max_output_tokens": 3}).encode()
            told = [
                await call(app, "GET", "/v1/models"),
                await call(app, "GET", "/v1/capabilities"),
                await call(app, "POST", "/v1/responses", JSON, body=[asked]),
            ]
        finally:
            await app.lifecycle.close()
    assert told[0].status == 200
    assert told[1].status == 200 or told[1].error["code"] == "server_error"  # Ollama is asked again what a model can do
    for one in told:
        assert b"made a mistake" not in one.body
        msgspec.json.decode(one.body)
    return {told[2].status}


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.shows("C.28")
async def test_whatever_an_engine_says_of_itself_the_server_keeps_its_head(name: str) -> None:
    statuses: set[int] = set()
    with Defects() as defects:
        async with asyncio.timeout(280):
            for number in range(LIES):
                statuses |= await _served(name, number)
    assert defects.seen == []
    assert statuses <= {200, 400, 404, 429, 500, 503}
    assert 200 in statuses
