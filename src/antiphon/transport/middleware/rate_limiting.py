"""Before any work is done for a request, it is charged to its key and tenant, or refused; its bill is seen to the end.

What makes a model work is charged. Everything else of the API only tells how much is left.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.service.access.rate_limits import BILL, Quotas, Standing
from antiphon.service.access.shared_rate_limits import Sharing
from antiphon.transport.http.request import WEBSOCKET, Request, Route

_API = "/v1/"


class Metering:
    def __init__(self, quotas: Quotas, sharing: Sharing | None = None) -> None:
        self.quotas = quotas
        self._sharing = sharing

    def find(self, route: Route, request: Request) -> bool:
        """Whose account it is, of which every answer tells. Is it to be charged? For when quotas are active."""
        if not route.path.startswith(_API):
            return False
        account = self.quotas.account(request.principal)
        if not account.purses:
            return False
        request.account = account
        return route.new_work and route.method != WEBSOCKET

    async def serve(self, route: Route, request: Request) -> None:
        """The endpoint, if it may be. Raises Busy."""
        async with self.charged(request, _size(request)):
            await route.endpoint(request)

    def standing(self, request: Request) -> tuple[Standing | None, Standing | None]:
        """How it is with the limits of whom it comes from: with requests, and with tokens."""
        return self.quotas.account(request.principal).standing() if self.quotas.active else (None, None)

    @asynccontextmanager
    async def charged(self, request: Request, size: int) -> AsyncIterator[None]:
        """For one request, or one message of a WebSocket. Raises Busy."""
        if not self.quotas.active:
            yield
            return
        account = request.account or self.quotas.account(request.principal)
        if self._sharing is not None:
            await self._sharing.fetch(account, size)
        bill = account.admit(size)
        before = BILL.set(bill)
        try:
            yield
        finally:
            BILL.reset(before)
            bill.leave()


def _size(request: Request) -> int:
    """Of the body, if it is told beforehand and makes sense. A form brings sound, which is no text."""
    headers = request.headers
    length = headers.get(b"content-length", b"")
    if not length.isdigit() or len(length) > 18 or headers.get(b"content-type", b"").startswith(b"multipart/"):
        return 0
    return int(length)
