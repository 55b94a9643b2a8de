"""POST /v1/responses: a stream or one JSON body, as the request's `stream` says and never its Accept.

Both drive the same Run; a client that goes away ends it.
"""

import asyncio

from antiphon.limits import Limits
from antiphon.protocol.codec import Decoded, decode_create, encode
from antiphon.service.responses import Responses
from antiphon.transport import sse
from antiphon.transport.http import Header, Request
from antiphon.transport.listener import Listener
from antiphon.transport.outlet import open_outlet

# Bytes that are decoded where they arrive. The densest body takes 50 µs a KiB; with more than this it goes to a thread,
# so that others need not wait for it.
_AT_ONCE = 256 * 1024


class ResponsesEndpoint:
    def __init__(self, service: Responses, limits: Limits, ping_interval: float) -> None:
        self._service = service
        self._limits = limits
        self._ping_interval = ping_interval

    async def create(self, request: Request) -> None:
        decoded = await self._decoded(await request.read_body(self._limits))
        accepted = await self._service.create(decoded)
        run, headers = accepted.run, _ignored(accepted.ignored)
        try:
            async with Listener(request, run, self._ping_interval) as listener:
                if decoded.request.stream:
                    await request.begin(200, sse.HEADERS + headers)
                    listener.outlet = outlet = open_outlet(request.send)
                    await run.drive(outlet.tell)
                    await outlet.end()
                else:
                    await request.reply(200, encode(await run.result()), headers)
        finally:
            run.cancel()

    async def _decoded(self, body: bytes) -> Decoded:
        if len(body) <= _AT_ONCE:
            return decode_create(body, self._limits)
        return await asyncio.to_thread(decode_create, body, self._limits)


def _ignored(names: list[str]) -> list[Header]:
    return [(b"x-antiphon-ignored", ", ".join(map(_printable, names)).encode("ascii"))] if names else []


def _printable(name: str) -> str:
    """A field's name comes from a client: nothing in it may end a header or begin another."""
    return name.encode("unicode_escape").decode("ascii")[:200]
