"""The application: authentication, routing, the endpoint; every exception becomes an error response here, in one
format.

This is the outermost layer. Nothing comes between it and an endpoint: no middleware stack, no framework.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Protocol

from msgspec import Struct

from antiphon.errors import AntiphonError, Busy, Forbidden, StartupError
from antiphon.observe import Metrics
from antiphon.observe.logs import LOG_CONTEXT
from antiphon.protocol.types.operations.clients import UserAgentState
from antiphon.service.operations.user_agents import UserAgentLog
from antiphon.transport.http import error_responses
from antiphon.transport.http.channel import WEBSOCKET, ClientGone, HttpChannel, Receive, Scope, Send
from antiphon.transport.http.request import Request, build_request
from antiphon.transport.http.websocket_upgrade import upgrade_from_scope
from antiphon.transport.middleware.auth import Authenticator
from antiphon.transport.middleware.rate_limiting import RateLimitingMiddleware
from antiphon.transport.middleware.request_tracing import PROPAGATE_ONLY, TRACEPARENT, RequestTracing
from antiphon.transport.middleware.routing import Router
from antiphon.transport.middleware.standard_headers import StandardHeaders

_log = logging.getLogger(__name__)
_NOBODY = UserAgentState(user_agent="")
_API, _PAGE_ROUTES = "/v1/", "/v1/antiphon/"
_NO_ROUTE = "none"  # the route label of requests that were rejected before routing


class AppLifecycle(Protocol):
    """Components that live as long as the server: engines, stores, runs."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Close everything, also after an `open` that failed or was cancelled."""

    def is_busy(self) -> bool:
        """Return whether there is work that no client waits for."""

    def reload(self) -> None:
        """Read the settings again."""

    def drain(self) -> None:
        """Let running work continue, and start no more."""

    def interrupt(self) -> None:
        """End all running work, each with its terminal event: the grace period is over."""


class App(Struct, eq=False):
    """The ASGI 3 application.

    It can be mounted in another application, which then has to run `lifespan`: Starlette and FastAPI do not pass
    lifespan messages on to the applications that they mount.
    """

    _router: Router
    authenticator: Authenticator
    _metrics: Metrics
    lifecycle: AppLifecycle
    _rate_limiting: RateLimitingMiddleware | None = None
    _headers: StandardHeaders | None = None
    # returns the error if a tenant can have nothing generated now
    _admission_error: Callable[[str], Busy | None] = lambda tenant: None
    tracing: RequestTracing | None = None  # None: requests are neither traced nor logged
    user_agents: UserAgentLog | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point: processes one request to the end of its reply."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
            return
        if scope["type"] == "http":
            request = build_request(HttpChannel(scope, receive, send), Request)
        else:
            request = upgrade_from_scope(scope, receive, send)
        label, span, caller = _NO_ROUTE, None, _NOBODY
        LOG_CONTEXT.set(request.log_context)
        is_traced = self.tracing is not None or TRACEPARENT in request.headers
        if is_traced:
            span = (self.tracing or PROPAGATE_ONLY).start_request(request)
        if self._headers is not None:
            self._headers.add_headers(request)
        try:
            if (lookup := self.authenticator.check(request)) is not None:
                await lookup
            request.log_context.tenant, request.log_context.key = request.tenant, request.principal.key
            if request.method == "OPTIONS" and (allowed := self.authenticator.preflight_headers(request)):
                await request.begin(204, allowed)
                await request.end()
                return
            route = self._router.find(request)
            label = route.path if route.method != WEBSOCKET else f"{route.path} websocket"
            if route.needs not in request.principal.scopes and route.needs is not None:
                raise Forbidden(f"This API key may not do that: it lacks the scope {route.needs}.")
            caller = self._record_caller(request, label)
            rate_limiting = self._rate_limiting
            is_charged = (
                rate_limiting is not None
                and rate_limiting.rate_limits.active
                and rate_limiting.attach_limits(route, request)
            )
            if route.new_work:
                self.authenticator.check_new_work()
                # Before the body is read, so that overload costs little. Routes that can stream are those that
                # generate.
                if route.streams is not None and (busy := self._admission_error(request.tenant)) is not None:
                    raise busy
            if is_charged and rate_limiting is not None:
                await rate_limiting.serve(route, request)
            else:
                await route.serve(request)
        except AntiphonError as error:
            await _reply_error(request, error)
        except ClientGone:
            request.record_client_gone()
        except Exception as exc:
            _log.exception("A request failed.", extra={"request_id": request.id, "route": label})
            await _reply_error(request, error_responses.to_client_error(exc, request.id))
        finally:
            self._metrics.record_request(label, request.status, perf_counter() - request.began)
            caller.status = request.status
            if is_traced:
                (self.tracing or PROPAGATE_ONLY).finish(request, label, request.status, span)
            LOG_CONTEXT.set(None)  # the task belongs to the server, which may reuse it
            if request.channel.watch is not None:
                await request.channel.stop_watch()

    def _record_caller(self, request: Request, label: str) -> UserAgentState:
        """Record which program sends a request to the API. What the page asks for is left out."""
        if self.user_agents is None or not label.startswith(_API) or label.startswith(_PAGE_ROUTES):
            return _NOBODY
        return self.user_agents.record(request.tenant, request.headers.get(b"user-agent", b""), label)

    def count_refusal(self, status: int) -> None:
        """Count input that the server rejected before it became a request."""
        self._metrics.record_request(_NO_ROUTE, status, 0.0)

    @asynccontextmanager
    async def lifespan(self, outer_app: object = None) -> AsyncIterator[None]:
        """Open engines and stores, and close them at the end of the block.

        `outer_app`: ignored; Starlette and FastAPI pass themselves to the function that they get as `lifespan`.
        """
        try:
            await self.lifecycle.open()
            yield
        finally:
            await self.lifecycle.close()

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        """The ASGI lifespan. Our own process opens and closes by itself, so that startup errors stay sentences."""
        await receive()
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except StartupError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
        else:
            await send({"type": "lifespan.shutdown.complete"})


async def _reply_error(request: Request, error: AntiphonError) -> None:
    if request.status:  # too late for a status; the server closes the connection of an incomplete reply
        _log.warning("A reply was cut off by an error.", extra={"request_id": request.id, "code": error.code})
        return
    await request.reply(
        error.status, error_responses.render_body(error, request), error_responses.render_headers(error, request)
    )
