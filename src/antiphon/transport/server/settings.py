"""Settings of uvicorn, and those that our own protocols need besides."""

import math
from collections.abc import Callable
from typing import Any

import uvicorn

from antiphon.config import Config
from antiphon.transport.server.response_head import ResponseHeads

FINAL_WRITE_SECONDS = 2  # time for interrupted requests to send their terminal events, after the grace period


class HttpServerSettings(uvicorn.Config):
    """uvicorn's settings, extended by limits and counters of our protocols."""

    def __init__(
        self,
        app: Any,
        config: Config,
        http_protocol: Any,
        websocket_protocol: Any,
        count_refusal: Callable[[int], None],
    ) -> None:
        """`http_protocol`, `websocket_protocol`: the protocol classes of client connections."""
        super().__init__(
            app,
            http=http_protocol,
            ws=websocket_protocol if config.server.websocket == "on" else "none",
            ws_max_size=config.limits.body_bytes,
            ws_ping_interval=config.server.websocket_ping_interval or None,
            ws_ping_timeout=config.server.websocket_ping_timeout,
            ws_per_message_deflate=False,  # a few compressed bytes could expand to very many (RFC 7692)
            loop="none",  # process/server.py creates the loop
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            forwarded_allow_ips="",
            workers=1,
            timeout_keep_alive=math.ceil(config.server.keepalive_seconds),
            timeout_graceful_shutdown=FINAL_WRITE_SECONDS,
        )
        self.limits = config.limits
        self.stall_seconds = config.server.stall_seconds
        self.count_refusal = count_refusal
        self.heads = ResponseHeads()
