"""The application: authentication, routing, the endpoint; every exception becomes an error response here, in one
format.

This is the outermost layer. Nothing comes between it and an endpoint: no middleware stack, no framework.
"""

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol

from antiphon.errors import AntiphonError, Busy, Forbidden
from antiphon.observe import Metrics
from antiphon.observe.logs import LOG_CONTEXT
from antiphon.transport.http import error_responses
from antiphon.transport.http.channel import ClientGone
from antiphon.transport.http.request import WEBSOCKET, Request, build_request
from antiphon.transport.http.route import Route
from antiphon.transport.middleware.auth import Authenticator
from antiphon.transport.middleware.rate_limiting import RateLimitingMiddleware
from antiphon.transport.middleware.request_tracing import PROPAGATE_ONLY, TRACEPARENT, RequestTracing
from antiphon.transport.middleware.routing import Router
from antiphon.transport.middleware.standard_headers import StandardHeaders
from antiphon.transport.server.asgi_channel import AsgiChannel, Receive, Scope, Send
from antiphon.transport.server.ws_upgrade import upgrade_from_scope

_log = logging.getLogger(__name__)
_NO_ROUTE = "none"  # the route label of requests that were rejected before routing


class AppLifecycle(Protocol):
    """Components that live as long as the server: engines, stores, runs."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Close everything, also after an `open` that failed or was cancelled."""

    def is_busy(self) -> bool:
        """Whether there is work that no client waits for."""

    def reload(self) -> None:
        """Read the settings again."""

    def drain(self) -> None:
        """Let running work continue, and start no more."""

    def interrupt(self) -> None:
        """End all running work, each with its terminal event: the grace period is over."""


class App:
    """The ASGI 3 application, which our own server calls directly."""

    def __init__(
        self,
        routes: Sequence[Route],
        authenticator: Authenticator,
        metrics: Metrics,
        lifecycle: AppLifecycle,
        rate_limiting: RateLimitingMiddleware | None = None,
        headers: StandardHeaders | None = None,
        admission_error: Callable[[str], Busy | None] = lambda tenant: None,
    ) -> None:
        """`admission_error`: returns the error if a tenant can have nothing generated now."""
        self.authenticator = authenticator
        self.lifecycle = lifecycle
        self._metrics = metrics
        self._rate_limiting = rate_limiting
        self._admission_error = admission_error
        self._headers = headers
        self.tracing: RequestTracing | None = None  # None: requests are neither traced nor logged
        self._router = Router(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point, for other servers, and for WebSockets on ours."""
        if scope["type"] == "http":
            channel = AsgiChannel(scope, receive, send)
            try:
                await self.answer(build_request(channel, Request))
            finally:
                LOG_CONTEXT.set(None)  # the task belongs to the server, which may reuse it
                await channel.aclose()
        elif scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        else:
            await self.answer(upgrade_from_scope(scope, receive, send))

    def count_refusal(self, status: int) -> None:
        """Count input that the server rejected before it became a request."""
        self._metrics.record_request(_NO_ROUTE, status, 0.0)

    async def answer(self, request: Request) -> None:
        """Process one request to the end of its reply."""
        label, span = _NO_ROUTE, None
        LOG_CONTEXT.set(request.log_context)
        is_traced = self.tracing is not None or TRACEPARENT in request.headers
        if is_traced:
            span = (self.tracing or PROPAGATE_ONLY).start_request(request)
        if self._headers is not None:
            self._headers.add_headers(request)
        try:
            if (lookup := self.authenticator.check(request)) is not None:
                await lookup
            if request.method == "OPTIONS" and (allowed := self.authenticator.preflight_headers(request)):
                await request.begin(204, allowed)
                await request.end()
                return
            route = self._router.find(request)
            label = route.path if route.method != WEBSOCKET else f"{route.path} websocket"
            if route.needs not in request.principal.scopes and route.needs is not None:
                raise Forbidden(f"This API key may not do that: it lacks the scope {route.needs}.")
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
                await route.endpoint(request)
        except AntiphonError as error:
            await _reply_error(request, error)
        except ClientGone:
            request.record_client_gone()
        except Exception as exc:
            _log.exception("A request failed.", extra={"request_id": request.id, "route": label})
            await _reply_error(request, error_responses.to_client_error(exc, request.id))
        finally:
            request.channel.close()
            self._metrics.record_request(label, request.status, perf_counter() - request.began)
            if is_traced:
                (self.tracing or PROPAGATE_ONLY).finish(request, label, request.status, span)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        """The ASGI lifespan, for other servers; ours opens and closes by itself, so that startup errors stay
        sentences.
        """
        await receive()
        await self.lifecycle.open()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.lifecycle.close()
        await send({"type": "lifespan.shutdown.complete"})


async def _reply_error(request: Request, error: AntiphonError) -> None:
    if request.status:  # too late for a status; the server closes the connection of an incomplete reply
        _log.warning("A reply was cut off by an error.", extra={"request_id": request.id, "code": error.code})
        return
    await request.reply(
        error.status, error_responses.render_body(error, request), error_responses.render_headers(error, request)
    )
