"""A session with one MCP server, based on the mcp package, whose import takes seconds and is therefore done on demand.

    start ──▶ owner task: connect ─ initialise ──▶ ready ──────────▶ close
                                 └─ open error      │ requests (one task each, with its own deadline)
                                                    └─ broken: the server closed the connection, sent too many
                                                       messages, or lost the session

The task that opens a connection must also close it, so the owner task does nothing else. Callers do not wait for it
beyond their deadline: an abandoned session ends by itself.
"""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from mcp import ClientSession, MCPError, types
from pydantic import BaseModel

from antiphon.egress import EgressClient
from antiphon.egress.mcp_transport import CURRENT_NOTES, WireNotes
from antiphon.errors import McpFailed
from antiphon.observe.spans import make_trace_headers
from antiphon.tools.mcp.servers import TIMED_OUT, McpServer, McpSettings
from antiphon.tools.mcp.transports import MessageLimits, list_transports
from antiphon.version import VERSION

log = logging.getLogger(__name__)

T = TypeVar("T")
Json = dict[str, Any]

_CONNECTION_CLOSED: Final = -32000
_INTERNAL_ERROR: Final = -32603
_MAX_TIMEOUTS: Final = 8  # timed-out requests before the session is abandoned
_MAX_PIECES: Final = 50_000  # brackets, commas and colons of a response; bounds the cost of parsing
_MAX_PAGES: Final = 100
_MAX_MESSAGE_LENGTH: Final = 500  # characters of an error message, which may quote the server
_CLOSE_SECONDS: Final = 3.0
_PROGRAM_EXIT_SECONDS: Final = 10.0
_FALLBACK_STATUSES: Final = frozenset({400, 404, 405, 415})  # of an older server, which expects a GET for SSE
_FIRST_REDIRECT, _FIRST_ERROR, _NOT_FOUND = 300, 400, 404
# statuses that another protocol version or transport would not change
_FINAL_STATUSES: Final = frozenset({401, 403, 407, 429, 500, 502, 503, 504})
_CLOSED_MESSAGE: Final = "Connection closed"
# messages of the mcp package without information
_GENERIC_MESSAGES: Final = frozenset({"Server returned an error response", "Not Found", "Session terminated"})

for _name in ("mcp", "client", "httpx2", "httpcore2"):  # sessions of mcp log as "client"
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # they log server messages at length


class _RawResult(BaseModel, extra="allow"):
    """A response whose fields are not parsed into models, because that would cost as much again."""


class Session:
    """A session with one server."""

    def __init__(self, server: McpServer, settings: McpSettings, egress: EgressClient) -> None:
        self._server = server
        self._settings = settings
        self._transports = list_transports(server, settings, egress)
        self._client: ClientSession | None = None
        self._message_limits: MessageLimits | None = None
        self._opening_notes = WireNotes(settings.list_bytes, _MAX_PIECES)
        self._open_error: McpFailed | None = None
        self._fault = ""  # why the session broke
        self._ready = asyncio.Event()
        self._closing = asyncio.Event()
        self._call_slots = asyncio.Semaphore(settings.calls_at_once)
        self._requests: set[asyncio.Task[Any]] = set()
        self._timeouts = 0
        self._waiters = 0
        self._has_separate_stream = False  # responses arrive in a stream of their own
        self.list_changes = 0  # how often the server announced a changed tool list
        self.broken = False
        # An empty context: the session outlives the request that opened it and belongs to none.
        empty_context = contextvars.Context()
        self._owner = asyncio.create_task(self._run(), name=f"mcp {server.label[:32]}", context=empty_context)
        self._owner.add_done_callback(self._on_owner_done)

    @property
    def busy(self) -> bool:
        return bool(self._requests) or not self._ready.is_set()

    @property
    def is_stateful(self) -> bool:
        """Whether the server keeps state for the session, which it may lose."""
        return self._client is not None and self._client.initialize_result is not None

    async def wait_ready(self, until: float) -> None:
        """Wait until the session is open. The last waiter that gives up abandons it."""
        self._waiters += 1
        try:
            async with asyncio.timeout_at(until):
                await self._ready.wait()
        except TimeoutError:
            raise self._make_error(self._opening_notes, "cannot be connected to in time", TIMED_OUT)
        finally:
            self._waiters -= 1
            if not self._waiters and not self._ready.is_set():
                self.abandon()
        if self._open_error is not None:
            raise self._open_error

    async def list_tools(self, until: float) -> list[Json]:
        """Return all tools as the server lists them, page by page."""
        found: list[Json] = []
        cursor: str | None = None
        size = 0
        for _ in range(_MAX_PAGES):
            client = self._require_client()
            params = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
            notes = WireNotes(self._settings.list_bytes - size, _MAX_PIECES)
            page = await self._request(partial(client.list_tools, params=params), notes, lambda: until)
            size += notes.meter.received
            found += [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in page.tools]
            if len(found) > self._settings.tools:
                raise McpFailed(
                    f"{self._server.name} lists more than {self._settings.tools} tools.", rpc=_INTERNAL_ERROR
                )
            if (cursor := page.next_cursor) is None:
                return found
        raise McpFailed(f"{self._server.name} lists its tools on more than {_MAX_PAGES} pages.", rpc=_INTERNAL_ERROR)

    async def call(self, name: str, arguments: Json, until: float, on_progress: Callable[[], None]) -> Json:
        """Call a tool once. Progress notifications extend the deadline, up to a limit, and call `on_progress`."""
        loop = asyncio.get_running_loop()
        last_deadline = loop.time() + self._settings.longest_seconds
        deadline = until

        async def extend_deadline(progress: float, total: float | None, message: str | None) -> None:
            nonlocal deadline
            log.debug("%s reported progress: %s of %s.", self._server.name, progress, total)
            deadline = min(last_deadline, loop.time() + self._settings.call_seconds)
            on_progress()

        client = self._require_client()
        # MCP carries the trace context in `_meta`, on every transport.
        params = types.CallToolRequestParams(name=name, arguments=arguments)
        if trace_headers := make_trace_headers():
            params = types.CallToolRequestParams.model_validate({**params.model_dump(), "_meta": dict(trace_headers)})
        request = types.CallToolRequest(params=params)
        notes = WireNotes(self._settings.answer_bytes, _MAX_PIECES)
        # Not client.call_tool: it validates the result with the server's schema, which may contain arbitrary patterns.
        answer = await self._request(
            lambda: client.send_request(request, _RawResult, progress_callback=extend_deadline), notes, lambda: deadline
        )
        result = answer.model_extra or {}
        if result.get("resultType", "complete") != "complete":
            raise McpFailed(
                f"{self._server.name} requests input from a user, which the server does not support.",
                rpc=_INTERNAL_ERROR,
            )
        return result

    async def ping(self, until: float) -> bool:
        """Check that the session is usable; a ping has no side effects."""
        client = self._require_client()
        try:
            await self._request(client.send_ping, WireNotes(self._settings.list_bytes, _MAX_PIECES), lambda: until)
        except McpFailed as error:
            if not self.broken and error.http is None and error.rpc not in (TIMED_OUT, _CONNECTION_CLOSED):
                return True  # the server does not support ping, but it answered
            self.abandon()
        return not self.broken

    def abandon(self) -> None:
        """Mark the session as broken and let it end by itself."""
        self.broken = True
        self._closing.set()
        if not self._ready.is_set():
            self._owner.cancel()

    async def close(self) -> None:
        self.abandon()
        for task in list(self._requests):
            task.cancel()
        # A program gets time to exit before the owner kills it; do not cancel the owner earlier.
        await asyncio.wait({self._owner}, timeout=_PROGRAM_EXIT_SECONDS if self._server.command else _CLOSE_SECONDS)
        self._owner.cancel()
        await asyncio.wait({self._owner, *self._requests}, timeout=_CLOSE_SECONDS)

    def _require_client(self) -> ClientSession:
        if self._client is None or self.broken:
            raise self._make_error(self._opening_notes, "closed the connection", _CONNECTION_CLOSED)
        return self._client

    async def _request(
        self, send: Callable[[], Coroutine[Any, Any, T]], notes: WireNotes, until: Callable[[], float]
    ) -> T:
        """Send a request in its own task.

        The caller returns by its deadline; cleanup, such as a cancellation notice to the server, continues.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(until()):
                await self._call_slots.acquire()
        except TimeoutError:
            raise McpFailed(f"{self._server.name} has too much to do.", rpc=TIMED_OUT)
        task = self._start_request(send, notes)
        try:
            while not (task.done() or notes.fault or self._owner.done()) and (remaining := until() - loop.time()) > 0:
                pending: set[asyncio.Future[Any]] = {task, notes.failed, self._owner}
                await asyncio.wait(pending, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        finally:
            notes.abandoned = True
            self._call_slots.release()
            if not task.done():
                task.cancel()
        if task.done() or notes.fault or self._owner.done():
            return self._get_outcome(task, notes)
        # It stays open in server and client, so the number of such requests is limited.
        self._timeouts += 1
        self.broken = self.broken or self._timeouts >= _MAX_TIMEOUTS
        raise self._make_error(notes, "did not answer in time", TIMED_OUT)

    def _start_request(self, send: Callable[[], Coroutine[Any, Any, T]], notes: WireNotes) -> "asyncio.Task[T]":
        assert self._message_limits is not None
        self._message_limits.expect_response()
        context = contextvars.copy_context()
        context.run(CURRENT_NOTES.set, notes)
        task = asyncio.get_running_loop().create_task(send(), context=context)
        self._requests.add(task)
        task.add_done_callback(self._on_request_done)
        return task

    def _on_request_done(self, task: "asyncio.Task[Any]") -> None:
        self._requests.discard(task)
        if not task.cancelled():
            task.exception()  # retrieve the exception: the caller has it already, and asyncio would log it

    def _get_outcome(self, task: "asyncio.Task[T]", notes: WireNotes) -> T:
        if notes.fault or not task.done() or task.cancelled():
            self.broken = self.broken or self._has_separate_stream  # the separate stream is unusable
            raise self._make_error(notes, "closed the connection", _CONNECTION_CLOSED)
        try:
            return task.result()
        except MCPError as error:
            if notes.status == _NOT_FOUND or self._fault or error.message == _CLOSED_MESSAGE:
                self.broken = True
            if notes.status < _FIRST_REDIRECT:
                raise self._make_error(notes, _describe_error(error), error.code)
            detail = "" if error.message in _GENERIC_MESSAGES or notes.status < _FIRST_ERROR else f": {error.message}"
            raise self._make_error(notes, f"answered with the HTTP status {notes.status}{detail}", _INTERNAL_ERROR)
        except (ValueError, RuntimeError, OSError):  # pydantic's errors are ValueErrors, and quote the received data
            raise self._make_error(notes, "sent something that the protocol does not know", _INTERNAL_ERROR)

    def _make_error(self, notes: WireNotes, problem: str, code: int) -> McpFailed:
        problem = notes.fault or self._fault or problem
        sentence = problem if notes.is_sentence else f"{self._server.name} {problem.rstrip('.')}."
        http = notes.status if notes.status >= _FIRST_REDIRECT else None
        return McpFailed(self._server.scrub(sentence)[:_MAX_MESSAGE_LENGTH], http=http, rpc=code)

    # Owner task.

    async def _run(self) -> None:
        CURRENT_NOTES.set(self._opening_notes)
        for transport in self._transports:
            self._has_separate_stream = transport.has_separate_stream
            self._opening_notes.status = 0
            async with transport.open() as (messages, out):
                self._message_limits = MessageLimits(messages, self._on_stream_end)
                async with ClientSession(
                    self._message_limits, out, message_handler=self._on_message, client_info=_CLIENT_INFO
                ) as client:
                    self._open_error = await self._initialise(client)
                    if self._open_error is None:
                        self._client = client
                        self._opening_notes.abandoned = True
                        self._ready.set()
                        await self._closing.wait()
                        return
            if self._opening_notes.status not in _FALLBACK_STATUSES or self._fault:
                return

    async def _initialise(self, client: ClientSession) -> McpFailed | None:
        """Initialise with the newest protocol version, or else with the one before. Returns the error if both fail."""
        try:
            try:
                await client.discover()
            except (MCPError, ValueError, RuntimeError):
                if self._opening_notes.fault or self._opening_notes.status in _FINAL_STATUSES:
                    raise
                await client.initialize()
        except (MCPError, ValueError, RuntimeError) as error:
            problem, code = (
                (_describe_error(error), error.code)
                if isinstance(error, MCPError)
                else ("cannot be understood", _INTERNAL_ERROR)
            )
            if self._opening_notes.status >= _FIRST_REDIRECT:
                problem = f"answered with the HTTP status {self._opening_notes.status}"
            return self._make_error(self._opening_notes, problem, code)
        return None

    async def _on_message(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.list_changes += 1

    def _on_stream_end(self, reason: str) -> None:
        self._fault = reason
        self.abandon()

    def _on_owner_done(self, owner: "asyncio.Task[None]") -> None:
        self.broken = True
        if self._open_error is None and not self._opening_notes.abandoned:
            self._open_error = self._make_error(self._opening_notes, "cannot be connected to", _CONNECTION_CLOSED)
        self._ready.set()
        if not owner.cancelled() and (error := owner.exception()) is not None:
            log.debug("A session with %s ended: %s.", self._server.name, type(error).__name__)


def _describe_error(error: MCPError) -> str:
    if error.code == types.PARSE_ERROR:  # pydantic's message is not informative
        return "sent something that is no message of the protocol"
    return "closed the connection" if error.message == _CLOSED_MESSAGE else f"returned an error: {error.message}"


_CLIENT_INFO: Final = types.Implementation(name="antiphon", version=VERSION)
