"""An upstream that does to its server whatever a request asks for by number, and the whole server in front of it."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from antiphon.config import Config
from antiphon.engines.http.base import HttpEngine, HttpSettings
from antiphon.wiring import build_app
from drills.engines.http_framing import CANARY
from drills.engines.playbook import Play
from drills.harness.in_process import LocalClient
from tests.engines.http.stubs.chat_stub import tcp
from tests.engines.unix_server import Reader, Writer, answer, request

SILENCE = 1.0  # seconds that an engine may be silent here
Flood = Callable[[Writer], Awaitable[None]]
_MODELS = answer(b'{"object":"list","data":[{"id":"m","max_model_len":1000000}]}')
_ASKED_WRONGLY = answer(b'{"detail":"Bad Request"}', "400 Bad Request")  # so there is something
_NUMBER = re.compile(rb"\b(play|flood) (\d+)\b")


class Upstream:
    """Whatever is not asked for by number is answered as an engine in good order would."""

    def __init__(self) -> None:
        self.plays: dict[int, Play] = {}
        self.floods: list[Flood] = []
        self.visits = 0  # to where a redirect led
        self._canary = b""

    async def serve(self, reader: Reader, writer: Writer) -> None:
        while True:
            asked = await request(reader)
            path, found = asked.partition(b" ")[0], _NUMBER.search(asked)
            if not found:
                writer.write(_MODELS if path.endswith(b"/models") else _ASKED_WRONGLY)
            elif found[1] == b"flood":
                await self.floods[int(found[2])](writer)
                return
            elif not await self._perform(self.plays[int(found[2])], reader, writer):
                return

    async def _perform(self, play: Play, reader: Reader, writer: Writer) -> bool:
        """Whether the connection goes on."""
        for piece in play.pieces:
            writer.write(piece.replace(CANARY, self._canary))
            await writer.drain()
            await asyncio.sleep(0)
        if play.end == "reset":
            writer.transport.abort()
        elif play.end == "silent":
            await reader.read()
        return play.end == "keep"

    async def _visit(self, reader: Reader, writer: Writer) -> None:
        self.visits += 1

    @asynccontextmanager
    async def fronted(self, kinds: set[type[HttpEngine]]) -> AsyncIterator[dict[str, LocalClient]]:
        """By a whole server for each kind of engine, without a pool that would spare an engine that fails."""
        async with AsyncExitStack() as opened:
            port = await opened.enter_async_context(tcp(self.serve))
            self._canary = b"http://127.0.0.1:%d" % await opened.enter_async_context(tcp(self._visit))
            clients = {}
            for kind in kinds:
                url = f"{kind.name}://127.0.0.1:{port}"
                engine = kind(
                    HttpSettings(engine=url, first_token_timeout=SILENCE, idle_timeout=SILENCE, run_timeout=2 * SILENCE)
                )
                config = Config(engine=url, store="memory", first_token_timeout=SILENCE, idle_timeout=SILENCE)
                app = build_app(config, engine)
                await app.lifecycle.open()
                opened.push_async_callback(app.lifecycle.close)
                clients[kind.name] = LocalClient(app)
            yield clients


class Defects(logging.Handler):
    """What the server logs of itself with a traceback; nothing else of it is heard meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._log = logging.getLogger("antiphon")

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    def __enter__(self) -> "Defects":
        self._propagated, self._log.propagate = self._log.propagate, False
        self._log.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._log.removeHandler(self)
        self._log.propagate = self._propagated
