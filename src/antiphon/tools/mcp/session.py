"""A session with one MCP server, by the mcp package. It is loaded when the first one is wanted: that takes seconds.

    start ──▶ owner task: connect ─ greet ──▶ ready ──────────▶ close ─ goodbye
                               └─ refused      │ ask, ask, … (tasks of their own, each under its deadline)
                                               └─ broken: the server hung up, floods, or forgot the session

What one task opens the same task has to close, so the owner does nothing else. Nobody waits for it longer than they
like: whoever gives up leaves it to end by itself.
"""

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any, Final, TypeVar

from mcp import ClientSession, MCPError
from mcp.types import (
    PARSE_ERROR,
    CallToolRequest,
    CallToolRequestParams,
    Implementation,
    PaginatedRequestParams,
    ToolListChangedNotification,
)
from pydantic import BaseModel

from antiphon.egress import Egress
from antiphon.egress.wire_notes import CURRENT, Exchange
from antiphon.errors import McpFailed
from antiphon.observe.spans import handed_on
from antiphon.tools.mcp.message_limits import Incoming
from antiphon.tools.mcp.servers import Server
from antiphon.tools.mcp.settings import McpSettings
from antiphon.tools.mcp.transports import ways

log = logging.getLogger(__name__)

T = TypeVar("T")
Json = dict[str, Any]

TIMED_OUT: Final = -32001
_CLOSED: Final = -32000
_WRONG: Final = -32603
_GIVEN_UP: Final = 8  # calls that ran out of time until the session is not used any more
_PIECES: Final = 50_000  # brackets, commas and colons in an answer: what it costs to look at one
_PAGES: Final = 100
_SAID: Final = 500  # characters of a server's own words in an error
_GOODBYE_SECONDS: Final = 3.0
_PROGRAM_SECONDS: Final = 10.0
_ELSEWHERE: Final = frozenset({400, 404, 405, 415})  # an older server, which wants to be asked by GET
_MOVED, _REFUSED, _FORGOTTEN = 300, 400, 404
_FINAL: Final = frozenset({401, 403, 407, 429, 500, 502, 503, 504})  # asked in another way, it would say the same
_HUNG_UP: Final = "Connection closed"
_IMPLIED: Final = frozenset({"Server returned an error response", "Not Found", "Session terminated"})  # mcp's own words

for _name in ("mcp", "client", "httpx2", "httpcore2"):  # "client" is what mcp's sessions log as
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # they repeat what servers say, at length


class _AsItIs(BaseModel, extra="allow"):
    """An answer that was looked at already: to make objects of it costs as much again."""


class Session:
    def __init__(self, server: Server, settings: McpSettings, egress: Egress) -> None:
        self._server = server
        self._settings = settings
        self._ways = ways(server, settings, egress)
        self._client: ClientSession | None = None
        self._incoming: Incoming | None = None
        self._opening = Exchange(settings.list_bytes, _PIECES)
        self._refusal: McpFailed | None = None
        self._fault = ""  # why it broke
        self._ready = asyncio.Event()
        self._closing = asyncio.Event()
        self._room = asyncio.Semaphore(settings.calls_at_once)
        self._asking: set[asyncio.Task[Any]] = set()
        self._given_up = 0
        self._waiting = 0
        self._apart = False  # answers come in a stream of their own
        self.changes = 0  # how often the server said that its tools are others now
        self.broken = False
        # In no context: it outlives the request that wanted it first, and is nobody's.
        nowhere = contextvars.Context()
        self._owner = asyncio.create_task(self._own(), name=f"mcp {server.label[:32]}", context=nowhere)
        self._owner.add_done_callback(self._ended)

    @property
    def busy(self) -> bool:
        return bool(self._asking) or not self._ready.is_set()

    @property
    def remembers(self) -> bool:
        """Whether the server has to remember the session, and may forget it."""
        return self._client is not None and self._client.initialize_result is not None

    async def ready(self, until: float) -> None:
        self._waiting += 1
        try:
            async with asyncio.timeout_at(until):
                await self._ready.wait()
        except TimeoutError:
            raise self._failure(self._opening, "cannot be connected to in time", TIMED_OUT)
        finally:
            self._waiting -= 1
            if not self._waiting and not self._ready.is_set():
                self.leave()
        if self._refusal is not None:
            raise self._refusal

    async def tools(self, until: float) -> list[Json]:
        """All that it lists, as it lists them, page by page."""
        found: list[Json] = []
        cursor: str | None = None
        size = 0
        for _ in range(_PAGES):
            client = self._open_client()
            params = PaginatedRequestParams(cursor=cursor) if cursor is not None else None
            exchange = Exchange(self._settings.list_bytes - size, _PIECES)
            page = await self._ask(partial(client.list_tools, params=params), exchange, lambda: until)
            size += exchange.measure.came
            found += [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in page.tools]
            if len(found) > self._settings.tools:
                raise McpFailed(f"{self._server.name} lists more than {self._settings.tools} tools.", rpc=_WRONG)
            cursor = page.next_cursor
            if cursor is None:
                return found
        raise McpFailed(f"{self._server.name} lists its tools on more than {_PAGES} pages.", rpc=_WRONG)

    async def call(self, name: str, arguments: Json, until: float, alive: Callable[[], None]) -> Json:
        """Once. `until` moves on with every sign of life, up to a bound; `alive` is told of each."""
        loop = asyncio.get_running_loop()
        longest = loop.time() + self._settings.longest_seconds
        deadline = until

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            nonlocal deadline
            log.debug("%s is at %s of %s.", self._server.name, progress, total)
            deadline = min(longest, loop.time() + self._settings.call_seconds)
            alive()

        client = self._open_client()
        # By _meta: that is where MCP has the context of a trace, whatever carries its messages.
        params = CallToolRequestParams(name=name, arguments=arguments)
        if told := handed_on():
            params = CallToolRequestParams.model_validate({**params.model_dump(), "_meta": dict(told)})
        request = CallToolRequest(params=params)
        exchange = Exchange(self._settings.answer_bytes, _PIECES)
        # Not client.call_tool, which checks the result by a schema of the server's making, with patterns of its choice.
        answer = await self._ask(
            lambda: client.send_request(request, _AsItIs, progress_callback=heard), exchange, lambda: deadline
        )
        result = answer.model_extra or {}
        if result.get("resultType", "complete") != "complete":
            raise McpFailed(f"{self._server.name} wants to ask somebody something, and nobody is here.", rpc=_WRONG)
        return result

    async def alive(self, until: float) -> bool:
        """Ask it, which has no effect."""
        client = self._open_client()
        try:
            await self._ask(client.send_ping, Exchange(self._settings.list_bytes, _PIECES), lambda: until)
        except McpFailed as error:
            if not self.broken and error.http is None and error.rpc not in (TIMED_OUT, _CLOSED):
                return True  # it knows no pings, and says so
            self.leave()
        return not self.broken

    def leave(self) -> None:
        """Use it no more, and let it end by itself."""
        self.broken = True
        self._closing.set()
        if not self._ready.is_set():
            self._owner.cancel()

    async def close(self) -> None:
        self.leave()
        for task in list(self._asking):
            task.cancel()
        # A program gets time to end by itself, and is killed by the owner, who must not be cancelled before that.
        seconds = _PROGRAM_SECONDS if self._server.command else _GOODBYE_SECONDS
        await asyncio.wait({self._owner}, timeout=seconds)
        self._owner.cancel()
        await asyncio.wait({self._owner, *self._asking}, timeout=_GOODBYE_SECONDS)

    def _open_client(self) -> ClientSession:
        if self._client is None or self.broken:
            raise self._failure(self._opening, "hung up", _CLOSED)
        return self._client

    async def _ask(self, asked: Callable[[], Awaitable[T]], exchange: Exchange, until: Callable[[], float]) -> T:
        """In a task of its own: whoever waits leaves in time, and what is left to do, such as to tell the server that
        nobody waits any more, is done without them."""
        loop = asyncio.get_running_loop()
        async with _place(self._room, until()) as placed:
            if not placed:
                raise McpFailed(f"{self._server.name} has too much to do.", rpc=TIMED_OUT)
            task = self._begun(asked, exchange)
            try:
                while not (task.done() or exchange.fault or self._owner.done()) and (left := until() - loop.time()) > 0:
                    waited: set[asyncio.Future[Any]] = {task, exchange.failed, self._owner}
                    await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                exchange.over = True
                if not task.done():
                    task.cancel()
            if not task.done() and not exchange.fault and not self._owner.done():
                self._give_up()
                raise self._failure(exchange, "did not answer in time", TIMED_OUT)
            return self._outcome(task, exchange)

    def _begun(self, asked: Callable[[], Awaitable[T]], exchange: Exchange) -> "asyncio.Task[T]":
        async def ask() -> T:
            return await asked()

        assert self._incoming is not None
        self._incoming.expect()
        context = contextvars.copy_context()
        context.run(CURRENT.set, exchange)
        task = asyncio.get_running_loop().create_task(ask(), context=context)
        self._asking.add(task)
        task.add_done_callback(self._asked)
        return task

    def _asked(self, task: "asyncio.Task[Any]") -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; nobody else needs it

    def _outcome(self, task: "asyncio.Task[T]", exchange: Exchange) -> T:
        if exchange.fault or not task.done() or task.cancelled():
            self.broken = self.broken or self._apart  # nothing can be said there any more
            raise self._failure(exchange, "hung up", _CLOSED)
        try:
            return task.result()
        except MCPError as error:
            if exchange.status == _FORGOTTEN or self._fault or error.message == _HUNG_UP:
                self.broken = True
            if exchange.status < _MOVED:
                raise self._failure(exchange, _said(error), error.code)
            said = "" if error.message in _IMPLIED or exchange.status < _REFUSED else f": {error.message}"
            raise self._failure(exchange, f"answered with the HTTP status {exchange.status}{said}", _WRONG)
        except (ValueError, RuntimeError, OSError):  # pydantic's errors are ValueErrors; they repeat what came
            raise self._failure(exchange, "sent something that the protocol does not know", _WRONG)

    def _give_up(self) -> None:
        """What is not answered stays open in the server, and in the client: not without end."""
        self._given_up += 1
        if self._given_up >= _GIVEN_UP:
            self.broken = True

    def _failure(self, exchange: Exchange, what: str, code: int) -> McpFailed:
        what = exchange.fault or self._fault or what
        sentence = what if exchange.whole else f"{self._server.name} {what.rstrip('.')}."
        http = exchange.status if exchange.status >= _MOVED else None
        return McpFailed(self._server.scrub(sentence)[:_SAID], http=http, rpc=code)

    # The owner.

    async def _own(self) -> None:
        CURRENT.set(self._opening)
        for way in self._ways:
            self._apart = way.apart
            self._opening.status = 0
            async with way.open() as (messages, out):
                self._incoming = Incoming(messages, self._hung_up)
                async with ClientSession(self._incoming, out, message_handler=self._heard, client_info=_US) as client:
                    self._refusal = await self._greet(client)
                    if self._refusal is None:
                        self._client = client
                        self._opening.over = True
                        self._ready.set()
                        await self._closing.wait()
                        return
            if self._opening.status not in _ELSEWHERE or self._fault:
                return

    async def _greet(self, client: ClientSession) -> McpFailed | None:
        """By the newest protocol, or by the one before that, unless it is clear that neither will do."""
        try:
            try:
                await client.discover()
            except (MCPError, ValueError, RuntimeError):
                if self._opening.fault or self._opening.status in _FINAL:
                    raise
                await client.initialize()
        except (MCPError, ValueError, RuntimeError) as error:
            said, code = (_said(error), error.code) if isinstance(error, MCPError) else ("cannot be understood", _WRONG)
            if self._opening.status >= _MOVED:
                said = f"answered with the HTTP status {self._opening.status}"
            return self._failure(self._opening, said, code)
        return None

    async def _heard(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.changes += 1

    def _hung_up(self, why: str) -> None:
        self._fault = why
        self.leave()

    def _ended(self, owner: "asyncio.Task[None]") -> None:
        self.broken = True
        if self._refusal is None and not self._opening.over:
            self._refusal = self._failure(self._opening, "cannot be connected to", _CLOSED)
        self._ready.set()
        if not owner.cancelled() and (error := owner.exception()) is not None:
            log.debug("A session with %s ended: %s.", self._server.name, type(error).__name__)


def _said(error: MCPError) -> str:
    if error.code == PARSE_ERROR:  # pydantic's words about it say nothing to anybody
        return "sent something that is no message of the protocol"
    return "hung up" if error.message == _HUNG_UP else f"answers with an error: {error.message}"


_US: Final = Implementation(name="antiphon", version=version("antiphon"))


@asynccontextmanager
async def _place(room: asyncio.Semaphore, until: float) -> AsyncIterator[bool]:
    try:
        async with asyncio.timeout_at(until):
            await room.acquire()
    except TimeoutError:
        yield False
        return
    try:
        yield True
    finally:
        room.release()
