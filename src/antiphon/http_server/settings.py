"""Settings of the server: limits of its connections, and what it leaves to the application that it serves."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import uvicorn
from msgspec import Struct

from antiphon.http_server.http_exchange import AsgiApp
from antiphon.http_server.request_parser import Header
from antiphon.http_server.response_head import ResponseHeads

FINAL_WRITE_SECONDS = 2  # time for interrupted requests to send their last data, after the grace period

# Renders the headers and the body of a refusal, from its status and its message.
RenderRefusal = Callable[[int, str], tuple[Sequence[Header], bytes]]


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Limits of one connection; times are in seconds."""

    header_bytes: int = 64 * 1024  # of the request line and the headers
    header_seconds: float = 10.0  # to receive the headers
    body_seconds: float = 60.0  # to receive the body
    keepalive_seconds: float = 75.0  # between two requests
    stall_seconds: float = 60.0  # in which a client reads nothing, although there is data for it
    websockets: bool = True  # whether WebSockets are accepted
    message_bytes: int = 16 * 1024 * 1024  # of one WebSocket message
    ping_interval: float = 20.0  # between two pings of a WebSocket; 0: none
    ping_timeout: float = 20.0  # until the pong


def render_plain_refusal(status: int, message: str) -> tuple[Sequence[Header], bytes]:
    return [(b"content-type", b"text/plain; charset=utf-8")], message.encode()


class HttpServerSettings(uvicorn.Config):
    """The settings that uvicorn's main loop and WebSocket protocol read, and ours.

    `on_refusal` is called with the status of each request that the server refuses itself.
    """

    def __init__(
        self,
        app: AsgiApp,
        limits: ConnectionLimits | None = None,
        *,
        on_refusal: Callable[[int], None] = lambda status: None,
        render_refusal: RenderRefusal = render_plain_refusal,
        lifespan: Literal["auto", "on", "off"] = "auto",
    ) -> None:
        self.limits = limits = limits or ConnectionLimits()
        super().__init__(
            app,
            http=asyncio.Protocol,  # not used: the server creates its protocols itself
            ws="none",
            ws_max_size=limits.message_bytes,
            ws_ping_interval=limits.ping_interval or None,
            ws_ping_timeout=limits.ping_timeout,
            ws_per_message_deflate=False,  # a few compressed bytes could expand to very many (RFC 7692)
            loop="none",  # the caller creates the loop
            lifespan=lifespan,
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            forwarded_allow_ips="",
            workers=1,
            timeout_keep_alive=math.ceil(limits.keepalive_seconds),
            timeout_graceful_shutdown=FINAL_WRITE_SECONDS,
        )
        self.asgi_app: Any = app
        self.on_refusal = on_refusal
        self.render_refusal = render_refusal
        self.heads = ResponseHeads()
