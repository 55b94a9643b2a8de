"""Charges a request to its key and tenant before any work is done for it, or rejects it; settles the charge at its end.

Requests that make a model work are charged. Other requests of the API only get the headers with the remaining limits.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.service.access.charges import CURRENT_CHARGE, LimitStatus
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.access.shared_rate_limits import SharedRateLimits
from antiphon.transport.http.channel import WEBSOCKET
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.routing import Route

_API = "/v1/"


class RateLimitingMiddleware:
    """Applies the rate limits to requests and to messages of WebSockets."""

    def __init__(self, rate_limits: RateLimits, shared_limits: SharedRateLimits | None = None) -> None:
        self.rate_limits = rate_limits
        self._shared_limits = shared_limits

    def attach_limits(self, route: Route, request: Request) -> bool:
        """Attach the limits of the principal, for the headers of the reply. Returns whether to charge the request."""
        if not route.path.startswith(_API):
            return False
        limit_set = self.rate_limits.get_limits(request.principal)
        if not limit_set.budgets:
            return False
        request.limit_set = limit_set
        return route.new_work and route.method != WEBSOCKET

    async def serve(self, route: Route, request: Request) -> None:
        """Charge the request and call its endpoint. Raises Busy."""
        async with self.charge(request, _body_size(request)):
            await route.serve(request)

    def limit_status(self, request: Request) -> tuple[LimitStatus | None, LimitStatus | None]:
        """Return the status of the limits of the request's principal: for requests, and for tokens."""
        return self.rate_limits.get_limits(request.principal).get_status() if self.rate_limits.active else (None, None)

    @asynccontextmanager
    async def charge(self, request: Request, size: int) -> AsyncIterator[None]:
        """Charge one request, or one message of a WebSocket. Raises Busy."""
        if not self.rate_limits.active:
            yield
            return
        limit_set = request.limit_set or self.rate_limits.get_limits(request.principal)
        if self._shared_limits is not None:
            await self._shared_limits.refill(limit_set, size)
        charge = limit_set.admit(size)
        token = CURRENT_CHARGE.set(charge)
        try:
            yield
        finally:
            CURRENT_CHARGE.reset(token)
            charge.leave()


def _body_size(request: Request) -> int:
    """Return the Content-Length if it is valid. 0 for forms: they contain audio, not text."""
    headers = request.headers
    length = headers.get(b"content-length", b"")
    if not length.isdigit() or len(length) > 18 or headers.get(b"content-type", b"").startswith(b"multipart/"):
        return 0
    return int(length)
