"""Name resolution, once per hop. The caller vets all returned addresses and connects to no other.

Each lookup has a thread of its own, so a name server that does not respond blocks no other work.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]  # name and port → addresses; raises OSError if there are none

_MAX_LOOKUPS = 16


class SystemResolver:
    """Resolves names with the resolver of the system."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_MAX_LOOKUPS)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Resolve a name. After a cancellation the thread occupies its slot until the lookup ends."""
        loop = asyncio.get_running_loop()
        await self._slots.acquire()
        result: asyncio.Future[Sequence[str]] = loop.create_future()
        thread = threading.Thread(target=self._look_up, args=(host, port, loop, result), daemon=True)
        thread.start()
        return await result

    def _look_up(
        self, host: str, port: int, loop: asyncio.AbstractEventLoop, result: "asyncio.Future[Sequence[str]]"
    ) -> None:
        found: Sequence[str] | OSError
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))
        except (OSError, UnicodeError) as error:
            found = error if isinstance(error, OSError) else OSError(str(error))
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._deliver, result, found)

    def _deliver(self, result: "asyncio.Future[Sequence[str]]", found: Sequence[str] | OSError) -> None:
        self._slots.release()
        if result.done():
            return
        if isinstance(found, OSError):
            result.set_exception(found)
        else:
            result.set_result(found)
