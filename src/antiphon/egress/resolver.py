"""Names → addresses, asked once for every hop. Whoever asks vets all of the answer and connects to nothing else.

A name server that does not answer holds a thread of its own here, and no other work.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]  # a name and a port → addresses; OSError if there is none

_AT_ONCE = 16


class SystemResolver:
    def __init__(self) -> None:
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Cancelled, the thread goes on until its name server has answered, and keeps its place as long."""
        loop = asyncio.get_running_loop()
        await self._room.acquire()
        answered: asyncio.Future[Sequence[str]] = loop.create_future()
        asking = threading.Thread(target=self._ask, args=(host, port, loop, answered), daemon=True)
        asking.start()
        return await answered

    def _ask(
        self, host: str, port: int, loop: asyncio.AbstractEventLoop, answered: "asyncio.Future[Sequence[str]]"
    ) -> None:
        found: Sequence[str] | OSError
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))
        except (OSError, UnicodeError) as error:
            found = error if isinstance(error, OSError) else OSError(str(error))
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._tell, answered, found)

    def _tell(self, answered: "asyncio.Future[Sequence[str]]", found: Sequence[str] | OSError) -> None:
        self._room.release()
        if answered.done():
            return
        if isinstance(found, OSError):
            answered.set_exception(found)
        else:
            answered.set_result(found)
