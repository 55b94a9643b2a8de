"""The application: guard, route, endpoint; and whatever is raised becomes an answer here, in one shape.

This is the outermost edge. Nothing comes between it and an endpoint: no middleware, no framework.
"""

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol

from antiphon.errors import AntiphonError, Busy, Forbidden
from antiphon.observe import Metrics
from antiphon.observe.log_context import ABOUT
from antiphon.transport.http import error_responses
from antiphon.transport.http.request import WEBSOCKET, ClientGone, Request, Route, received
from antiphon.transport.middleware.auth import Guard
from antiphon.transport.middleware.rate_limiting import Metering
from antiphon.transport.middleware.request_tracing import TRACEPARENT, UNWATCHED, Watching
from antiphon.transport.middleware.routing import Router
from antiphon.transport.middleware.standard_headers import StandardHeaders
from antiphon.transport.server.asgi_channel import AsgiLine, Receive, Scope, Send
from antiphon.transport.server.ws_upgrade import asked_upgrade

_log = logging.getLogger(__name__)
_NOWHERE = "none"  # the route of what was refused before it had one


class Lifecycle(Protocol):
    """What lives as long as the server: engines, stores, runs."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Also after an `open` that failed or was broken off."""

    def busy(self) -> bool:
        """Is there work that no client waits for?"""

    def reload(self) -> None:
        """The settings are to be read again."""

    def rest(self) -> None:
        """The doors are closed: go on with what runs, take up nothing more."""

    def interrupt(self) -> None:
        """The grace is over: end what runs, each with its terminal event."""


class App:
    def __init__(
        self,
        routes: Sequence[Route],
        guard: Guard,
        metrics: Metrics,
        lifecycle: Lifecycle,
        metering: Metering | None = None,
        headers: StandardHeaders | None = None,
        turned_away: Callable[[str], Busy | None] = lambda tenant: None,
    ) -> None:
        """`turned_away`: why a tenant can have nothing generated just now."""
        self.guard = guard
        self.lifecycle = lifecycle
        self._metrics = metrics
        self._metering = metering
        self._turned_away = turned_away
        self._headers = headers
        self.watching: Watching | None = None  # None: nobody wants to know of single requests
        self._router = Router(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """For servers that are not ours, and for WebSockets on ours."""
        if scope["type"] == "http":
            line = AsgiLine(scope, receive, send)
            try:
                await self.answer(received(line, Request))
            finally:
                ABOUT.set(None)  # the task is the server's, and what it does next is not for this request
                await line.ended()
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self.answer(asked_upgrade(scope, receive, send))

    def count_refusal(self, status: int) -> None:
        """The server refused what never became a request."""
        self._metrics.request_done(_NOWHERE, status, 0.0)

    async def answer(self, request: Request) -> None:
        label, span = _NOWHERE, None
        ABOUT.set(request.about)
        watched = self.watching is not None or TRACEPARENT in request.headers
        if watched:
            span = (self.watching or UNWATCHED).begin(request)
        if self._headers is not None:
            self._headers.put(request)
        try:
            if (asking := self.guard.check(request)) is not None:
                await asking
            if request.method == "OPTIONS" and (allowed := self.guard.preflight(request)):
                await request.begin(204, allowed)
                await request.end()
                return
            route = self._router.find(request)
            label = route.path if route.method != WEBSOCKET else f"{route.path} websocket"
            if route.needs not in request.principal.scopes and route.needs is not None:
                raise Forbidden(f"This API key may not do that: it lacks the scope {route.needs}.")
            metering = self._metering
            metered = metering is not None and metering.quotas.active and metering.find(route, request)
            if route.new_work:
                self.guard.check_new_work()
                # Before a body is read, so that a crowd costs little. What generates is what can be streamed.
                if route.streams is not None and (busy := self._turned_away(request.tenant)) is not None:
                    raise busy
            if metered and metering is not None:
                await metering.serve(route, request)
            else:
                await route.endpoint(request)
        except AntiphonError as error:
            await _refuse(request, error)
        except ClientGone:
            request.client_gone()
        except Exception as exc:
            _log.exception("A request failed.", extra={"request_id": request.id, "route": label})
            await _refuse(request, error_responses.as_client_error(exc, request.id))
        finally:
            request.line.close()
            self._metrics.request_done(label, request.status, perf_counter() - request.began)
            if watched:
                (self.watching or UNWATCHED).end(request, label, request.status, span)

    async def _live(self, receive: Receive, send: Send) -> None:
        """For servers that are not ours; ours opens and closes by itself, so that start-up errors stay sentences."""
        await receive()
        await self.lifecycle.open()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.lifecycle.close()
        await send({"type": "lifespan.shutdown.complete"})


async def _refuse(request: Request, error: AntiphonError) -> None:
    if request.status:  # too late for a status; a reply that stays unfinished makes the server hang up
        _log.warning("A reply broke off.", extra={"request_id": request.id, "code": error.code})
        return
    await request.reply(error.status, error_responses.body(error, request), error_responses.headers(error, request))
