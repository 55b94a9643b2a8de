"""Pool of the sessions with MCP servers, one per tenant, server and credential; sessions are opened on demand.

Sessions are never shared between tenants or credentials. Their number is limited; the least recently used idle session
is evicted. A broken session is removed, and the next call opens a new one. The tools of a server that are offered have
a limited size and acceptable schemas; names and descriptions are not changed here.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import UNSET

from antiphon.egress import EgressClient
from antiphon.errors import InvalidValue, McpFailed
from antiphon.limits import Limits
from antiphon.offload import BackgroundTasks
from antiphon.protocol.schemas.vetting import SchemaVetter
from antiphon.protocol.types.items import McpListedTool
from antiphon.tools.mcp.servers import TIMED_OUT, McpServer, McpSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

Json = dict[str, Any]

_MAX_DESCRIPTION_LENGTH: Final = 16 * 1024  # characters
_IGNORED_KEYWORDS: Final = frozenset({"$schema", "$id"})  # the draft does not matter for vetting the schema
SessionKey = tuple[str, str, bytes]  # tenant, server, digest of the credential

if TYPE_CHECKING:  # importing it takes seconds
    from antiphon.tools.mcp.session import Session


def select_tools(tools: Sequence[Json], label: str, limits: Limits) -> tuple[McpListedTool, ...]:
    """Return the tools that can be offered. A tool with an unacceptable schema is skipped with a log warning."""
    found: dict[str, McpListedTool] = {}
    for tool in tools:
        name = tool["name"]
        if name in found or not 0 < len(name) <= limits.id_length:
            log.warning("A tool of the MCP server %.64r is left out: its name is taken, empty or too long.", label)
            continue
        schema = {key: value for key, value in tool["inputSchema"].items() if key not in _IGNORED_KEYWORDS}
        try:
            SchemaVetter(limits).vet(schema, name)
        except InvalidValue as error:
            log.warning("A tool of the MCP server %.64r is left out. %.300s", label, error.message)
            continue
        description = tool.get("description")
        found[name] = McpListedTool(
            name=name,
            input_schema=tool["inputSchema"],
            description=UNSET if description is None else description[:_MAX_DESCRIPTION_LENGTH],
            annotations=tool.get("annotations") or UNSET,
        )
    return tuple(found.values())


class PooledSession:
    """A session and its bookkeeping."""

    def __init__(self, session: "Session", server: McpServer) -> None:
        self.session = session
        self.server = server
        # The last use by a caller, and the last response of the server.
        self.last_used = self.last_response = asyncio.get_running_loop().time()
        self.users = 0
        self.list_lock = asyncio.Lock()
        self.tools: tuple[McpListedTool, ...] | None = None  # as listed last, when
        self.list_changes = 0  # the counter of the session had this value,
        self.listed_at = 0.0  # at this time
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        return not self.users and not self.session.busy


class McpSessionPool:
    """The sessions of all tenants."""

    def __init__(self, settings: McpSettings, egress: EgressClient) -> None:
        self._settings = settings
        self._egress = egress
        self._sessions: dict[SessionKey, PooledSession] = {}
        self._retired: set[PooledSession] = set()  # closed when their last user is done
        self._closing_tasks = BackgroundTasks()
        self._session_class: type[Session] | None = None
        self._load_lock = asyncio.Lock()

    async def list_tools(self, tenant: str, server: McpServer, max_age: float) -> tuple[McpListedTool, ...]:
        """Return the tools of a server, from the cache if they are at most `max_age` seconds old.

        A session that broke while idle is replaced once, since listing has no side effects.
        """
        await self._load_session_class()
        until = self._now() + self._settings.list_seconds
        pooled, idle_seconds = await self._acquire(tenant, server, until)
        try:
            return await self._use(pooled, lambda: self._list_cached(pooled, max_age, until))
        except McpFailed:
            if idle_seconds is None:
                raise
        pooled, _ = await self._acquire(tenant, server, until)
        return await self._use(pooled, lambda: self._list_cached(pooled, max_age, until))

    def get_cached_tools(self, tenant: str, server: McpServer) -> tuple[McpListedTool, ...] | None:
        """Return the cached tools without I/O; None if unknown, () if the server announced a change."""
        pooled = self._sessions.get((tenant, *server.key))
        if pooled is None or pooled.session.broken:
            return None
        return pooled.tools if pooled.tools is None or pooled.list_changes == pooled.session.list_changes else ()

    async def call(
        self, tenant: str, server: McpServer, name: str, arguments: Json, on_progress: Callable[[], None] = lambda: None
    ) -> Json:
        """Call a tool, at most once. `on_progress` is called for every progress notification.

        A session that was idle for a while is pinged first, so that the restart of a server does not fail a call.
        """
        await self._load_session_class()
        until = self._now() + self._settings.call_seconds
        pooled, idle_seconds = await self._acquire(tenant, server, until)
        if idle_seconds is not None and idle_seconds > self._settings.check_seconds and pooled.session.is_stateful:
            ping_until = min(until, self._now() + self._settings.list_seconds)
            if not await self._use(pooled, lambda: pooled.session.ping(ping_until)):
                pooled, _ = await self._acquire(tenant, server, until)
        result = await self._use(pooled, lambda: pooled.session.call(name, arguments, until, on_progress))
        pooled.last_response = self._now()
        return result

    async def close(self) -> None:
        sessions = [*self._sessions.values(), *self._retired]
        self._sessions.clear()
        for pooled in sessions:
            self._close(pooled)
        await self._closing_tasks.wait_all()

    async def _use(self, pooled: PooledSession, operation: Callable[[], Awaitable[T]]) -> T:
        pooled.users += 1
        try:
            return await operation()
        finally:
            pooled.users -= 1
            pooled.last_used = self._now()
            if pooled in self._retired and not pooled.users:
                self._close(pooled)

    async def _list_cached(self, pooled: PooledSession, max_age: float, until: float) -> tuple[McpListedTool, ...]:
        """Return the cached list, or request it if the server announced a change or it is too old.

        Concurrent callers share one request.
        """
        since = self._now() - max_age
        try:
            async with asyncio.timeout_at(until):
                await pooled.list_lock.acquire()
        except TimeoutError:
            raise McpFailed(f"{pooled.server.name} did not list its tools in time.", rpc=TIMED_OUT)
        try:
            list_changes, requested_at = pooled.session.list_changes, self._now()
            if pooled.tools is None or pooled.list_changes != list_changes or pooled.listed_at < since:
                raw_tools = pooled.server.scrub_json(await pooled.session.list_tools(until))
                pooled.tools = select_tools(raw_tools, pooled.server.label, self._settings.limits)
                pooled.list_changes, pooled.listed_at = list_changes, requested_at
                pooled.last_response = self._now()
            return pooled.tools
        finally:
            pooled.list_lock.release()

    async def _acquire(self, tenant: str, server: McpServer, until: float) -> tuple[PooledSession, float | None]:
        """Return an open session and the seconds since the last response of the server; None if the session is new."""
        key = (tenant, *server.key)
        pooled = self._sessions.get(key)
        idle_seconds = None
        if pooled is None or pooled.session.broken:
            pooled = self._open_session(key, server)
        else:
            idle_seconds = self._now() - pooled.last_response
        self._schedule_expiry(key, pooled)
        open_until = min(until, self._now() + self._settings.list_seconds)
        await self._use(pooled, lambda: pooled.session.wait_ready(open_until))
        return pooled, idle_seconds

    async def _load_session_class(self) -> None:
        """Import the session module in a thread, once; it takes seconds, which do not count against any deadline."""
        if self._session_class is None:
            async with self._load_lock:
                self._session_class = (await asyncio.to_thread(import_module, "antiphon.tools.mcp.session")).Session

    def _open_session(self, key: SessionKey, server: McpServer) -> PooledSession:
        assert self._session_class is not None
        self._remove(key)
        self._evict(key[0])
        pooled = self._sessions[key] = PooledSession(self._session_class(server, self._settings, self._egress), server)
        return pooled

    def _evict(self, tenant: str) -> None:
        own = [key for key in self._sessions if key[0] == tenant]
        if len(own) >= self._settings.tenant_sessions:
            self._remove(self._find_least_recent(own))
        if len(self._sessions) >= self._settings.sessions:
            self._remove(self._find_least_recent(list(self._sessions)))

    def _find_least_recent(self, keys: list[SessionKey]) -> SessionKey:
        idle = [key for key in keys if self._sessions[key].is_idle or self._sessions[key].session.broken]
        if not idle:
            raise McpFailed("Too many MCP servers are in use at once; try again later.")
        return min(idle, key=lambda key: self._sessions[key].last_used)

    def _remove(self, key: SessionKey) -> None:
        """Remove the session, and close it as soon as it has no users."""
        if pooled := self._sessions.pop(key, None):
            self._retired.add(pooled)
            if not pooled.users:
                self._close(pooled)

    def _close(self, pooled: PooledSession) -> None:
        self._retired.discard(pooled)
        if pooled.timer is not None:
            pooled.timer.cancel()
        self._closing_tasks.start(pooled.session.close())

    def _schedule_expiry(self, key: SessionKey, pooled: PooledSession) -> None:
        """Schedule closing of the session after an idle period."""
        if pooled.timer is None and self._sessions.get(key) is pooled:
            expires_at = pooled.last_used + self._settings.session_idle_seconds
            pooled.timer = asyncio.get_running_loop().call_at(expires_at, self._expire, key, pooled)

    def _expire(self, key: SessionKey, pooled: PooledSession) -> None:
        pooled.timer = None
        if self._sessions.get(key) is not pooled:
            return
        idle_since = self._now() - self._settings.session_idle_seconds
        if pooled.session.broken or (pooled.is_idle and pooled.last_used <= idle_since):
            self._remove(key)
        else:
            if pooled.users:
                pooled.last_used = self._now()
            self._schedule_expiry(key, pooled)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
