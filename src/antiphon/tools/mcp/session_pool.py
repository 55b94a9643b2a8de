"""The sessions with MCP servers, one for each tenant, server and credential; nothing is opened before it is needed.

Nobody gets a session of another tenant or with another credential. There is a bound; the one that was longest unused
makes room. One that broke is forgotten, and the next who asks gets a new one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from antiphon.egress import Egress
from antiphon.errors import McpFailed
from antiphon.protocol.types.builtin_items import McpListedTool
from antiphon.tools.mcp.servers import Server
from antiphon.tools.mcp.settings import McpSettings
from antiphon.tools.mcp.tool_list import fit

T = TypeVar("T")
Json = dict[str, Any]
Key = tuple[str, str, bytes]  # tenant, place, digest of the credential

TIMED_OUT = -32001


class Session(Protocol):
    """antiphon.tools.mcp.session:Session."""

    broken: bool
    changes: int

    @property
    def busy(self) -> bool: ...

    @property
    def remembers(self) -> bool: ...

    async def ready(self, until: float) -> None: ...

    async def tools(self, until: float) -> list[Json]: ...

    async def call(self, name: str, arguments: Json, until: float, alive: Callable[[], None]) -> Json: ...

    async def alive(self, until: float) -> bool: ...

    def leave(self) -> None: ...

    async def close(self) -> None: ...


class _Listed(Struct, frozen=True):
    tools: tuple[McpListedTool, ...]
    changes: int  # of the session, when it was asked
    at: float


class Held:
    """A session, and what is known of it."""

    def __init__(self, session: Session, server: Server) -> None:
        self.session = session
        self.server = server
        self.used = self.heard = asyncio.get_running_loop().time()  # by somebody; of the server
        self.users = 0
        self.listing = asyncio.Lock()
        self.listed: _Listed | None = None
        self.timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        return not self.users and not self.session.busy


class Sessions:
    def __init__(self, settings: McpSettings, egress: Egress) -> None:
        self._settings = settings
        self._egress = egress
        self._held: dict[Key, Held] = {}
        self._given_up: set[Held] = set()  # closed when the last user has left
        self._ending: set[asyncio.Task[None]] = set()
        self._made: Callable[..., Session] | None = None
        self._loading = asyncio.Lock()

    async def listed(self, tenant: str, server: Server, oldest: float) -> tuple[McpListedTool, ...]:
        """Its tools, as they were at most so many seconds ago. What broke while it was not used is tried once more,
        since listing has no effect."""
        await self._load()
        until = self._now() + self._settings.list_seconds
        held, rested = await self._ready(tenant, server, until)
        try:
            return await self._use(held, lambda: self._listing(held, oldest, until))
        except McpFailed:
            if rested is None:
                raise
        held, _ = await self._ready(tenant, server, until)
        return await self._use(held, lambda: self._listing(held, oldest, until))

    def known(self, tenant: str, server: Server) -> tuple[McpListedTool, ...] | None:
        """What it listed last, without asking; None if that is not known. Nothing, if it said that this has changed."""
        held = self._held.get((tenant, *server.key))
        if held is None or held.listed is None or held.session.broken:
            return None
        return held.listed.tools if held.listed.changes == held.session.changes else ()

    async def call(
        self, tenant: str, server: Server, name: str, arguments: Json, alive: Callable[[], None] = lambda: None
    ) -> Json:
        """Once, whatever comes of it; `alive` is told of every progress. A session that was not used for a while is
        asked first whether it still is one, so that a server's restart costs no call."""
        await self._load()
        until = self._now() + self._settings.call_seconds
        held, rested = await self._ready(tenant, server, until)
        if rested is not None and rested > self._settings.check_seconds and held.session.remembers:
            soon = min(until, self._now() + self._settings.list_seconds)
            if not await self._use(held, lambda: held.session.alive(soon)):
                held, _ = await self._ready(tenant, server, until)
        result = await self._use(held, lambda: held.session.call(name, arguments, until, alive))
        held.heard = self._now()
        return result

    async def close(self) -> None:
        held = [*self._held.values(), *self._given_up]
        self._held.clear()
        for one in held:
            self._close(one)
        while self._ending:
            await asyncio.wait(self._ending)

    async def _use(self, held: Held, work: Callable[[], Awaitable[T]]) -> T:
        held.users += 1
        try:
            return await work()
        finally:
            held.users -= 1
            held.used = self._now()
            if held in self._given_up and not held.users:
                self._close(held)

    async def _listing(self, held: Held, oldest: float, until: float) -> tuple[McpListedTool, ...]:
        """From memory, unless the server said that it changed, or it is too old. What others asked for meanwhile will
        do."""
        since = self._now() - oldest
        try:
            async with asyncio.timeout_at(until):
                await held.listing.acquire()
        except TimeoutError:
            raise McpFailed(f"{held.server.name} did not list its tools in time.", rpc=TIMED_OUT)
        try:
            known = held.listed
            changes, began = held.session.changes, self._now()
            if known is None or known.changes != changes or known.at < since:
                listed = held.server.scrubbed(await held.session.tools(until))
                tools = fit(listed, held.server.label, self._settings.limits)
                held.heard = self._now()
                known = held.listed = _Listed(tools, changes, began)
            return known.tools
        finally:
            held.listing.release()

    async def _ready(self, tenant: str, server: Server, until: float) -> tuple[Held, float | None]:
        """A session that is open, and for how long the server was not heard of; None if it is new."""
        key = (tenant, *server.key)
        held = self._held.get(key)
        fresh = held is None or held.session.broken
        if held is None or held.session.broken:
            held = self._open(key, server)
        rested = None if fresh else self._now() - held.heard
        self._watch(key, held)
        opened = min(until, self._now() + self._settings.list_seconds)
        await self._use(held, lambda: held.session.ready(opened))
        return held, rested

    async def _load(self) -> None:
        """Takes seconds, once, which are nobody's fault."""
        if self._made is None:
            async with self._loading:
                self._made = (await asyncio.to_thread(import_module, "antiphon.tools.mcp.session")).Session

    def _open(self, key: Key, server: Server) -> Held:
        assert self._made is not None
        self._forget(key)
        self._make_room(key[0])
        held = self._held[key] = Held(self._made(server, self._settings, self._egress), server)
        return held

    def _make_room(self, tenant: str) -> None:
        own = [key for key in self._held if key[0] == tenant]
        if len(own) >= self._settings.tenant_sessions:
            self._forget(self._longest_unused(own))
        if len(self._held) >= self._settings.sessions:
            self._forget(self._longest_unused(list(self._held)))

    def _longest_unused(self, keys: list[Key]) -> Key:
        idle = [key for key in keys if self._held[key].idle or self._held[key].session.broken]
        if not idle:
            raise McpFailed("Too many MCP servers are in use at once; try again later.")
        return min(idle, key=lambda key: self._held[key].used)

    def _forget(self, key: Key) -> None:
        if held := self._held.pop(key, None):
            self._end(held)

    def _end(self, held: Held) -> None:
        """Whoever still uses it ends that first."""
        self._given_up.add(held)
        if not held.users:
            self._close(held)

    def _close(self, held: Held) -> None:
        self._given_up.discard(held)
        if held.timer is not None:
            held.timer.cancel()
        task = asyncio.create_task(self._closed(held))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _closed(self, held: Held) -> None:
        await held.session.close()

    def _watch(self, key: Key, held: Held) -> None:
        """Close it when nobody has used it for a while."""
        if held.timer is None and self._held.get(key) is held:
            loop = asyncio.get_running_loop()
            held.timer = loop.call_at(held.used + self._settings.session_idle_seconds, self._look, key, held)

    def _look(self, key: Key, held: Held) -> None:
        held.timer = None
        if self._held.get(key) is not held:
            return
        if held.session.broken or (held.idle and held.used + self._settings.session_idle_seconds <= self._now()):
            self._forget(key)
        else:
            if held.users:
                held.used = self._now()
            self._watch(key, held)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def installed() -> bool:
    return find_spec("mcp") is not None
