"""An upstream that sends the play or flood whose number a request contains, and servers in front of it."""

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
from tests.engines.unix_server import json_response, read_request
from tests.support.local_servers import Reader, Writer, serve_tcp

IDLE_TIMEOUT = 1.0  # seconds without data after which the server gives up
Flood = Callable[[Writer], Awaitable[None]]
_MODELS = json_response(b'{"object":"list","data":[{"id":"m","max_model_len":1000000}]}')
_BAD_REQUEST = json_response(b'{"detail":"Bad Request"}', "400 Bad Request")  # shows probes that the endpoint exists
_NUMBER = re.compile(rb"\b(play|flood) (\d+)\b")


class HostileUpstream:
    """Answers requests without a number as a regular engine does."""

    def __init__(self) -> None:
        self.plays: dict[int, Play] = {}
        self.floods: list[Flood] = []
        self.visits = 0  # requests to the target of a redirect
        self._canary = b""

    async def serve(self, reader: Reader, writer: Writer) -> None:
        while True:
            received = await read_request(reader)
            path, found = received.partition(b" ")[0], _NUMBER.search(received)
            if not found:
                writer.write(_MODELS if path.endswith(b"/models") else _BAD_REQUEST)
            elif found[1] == b"flood":
                await self.floods[int(found[2])](writer)
                return
            elif not await self._perform(self.plays[int(found[2])], reader, writer):
                return

    async def _perform(self, play: Play, reader: Reader, writer: Writer) -> bool:
        """Send the play; return whether the connection stays open."""
        for piece in play.pieces:
            writer.write(piece.replace(CANARY, self._canary))
            await writer.drain()
            await asyncio.sleep(0)
        if play.end == "reset":
            writer.transport.abort()
        elif play.end == "silent":
            await reader.read()
        return play.end == "keep"

    async def _count_visit(self, reader: Reader, writer: Writer) -> None:
        self.visits += 1

    @asynccontextmanager
    async def run_servers(self, kinds: set[type[HttpEngine]]) -> AsyncIterator[dict[str, LocalClient]]:
        """Run a server for each kind of engine in front of the upstream, without a pool, which would avoid failing
        engines.
        """
        async with AsyncExitStack() as stack:
            port = await stack.enter_async_context(serve_tcp(self.serve))
            self._canary = b"http://127.0.0.1:%d" % await stack.enter_async_context(serve_tcp(self._count_visit))
            clients = {}
            for kind in kinds:
                url = f"{kind.name}://127.0.0.1:{port}"
                engine = kind(
                    HttpSettings(
                        engine=url,
                        first_token_timeout=IDLE_TIMEOUT,
                        idle_timeout=IDLE_TIMEOUT,
                        run_timeout=2 * IDLE_TIMEOUT,
                    )
                )
                config = Config.from_settings(
                    engine=url, store="memory", first_token_timeout=IDLE_TIMEOUT, idle_timeout=IDLE_TIMEOUT
                )
                app = build_app(config, engine)
                await app.lifecycle.open()
                stack.push_async_callback(app.lifecycle.close)
                clients[kind.name] = LocalClient(app)
            yield clients


class DefectLog(logging.Handler):
    """Collects log records with a traceback, and suppresses all other log output of the server."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._log = logging.getLogger("antiphon")

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    def __enter__(self) -> "DefectLog":
        self._propagated, self._log.propagate = self._log.propagate, False
        self._log.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._log.removeHandler(self)
        self._log.propagate = self._propagated
