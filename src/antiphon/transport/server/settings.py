"""What uvicorn is told, and what our connections want to know beyond that."""

import math
from collections.abc import Callable
from typing import Any

import uvicorn

from antiphon.config import Config
from antiphon.transport.server.http_exchange import Heads

LAST_WORDS = 2  # seconds for interrupted work to say so, after the grace


class ServerSettings(uvicorn.Config):
    def __init__(
        self, app: Any, config: Config, protocol: Any, socket: Any, count_refusal: Callable[[int], None]
    ) -> None:
        """`protocol` and `socket`: of a client's connection, for HTTP and for a WebSocket."""
        super().__init__(
            app,
            http=protocol,
            ws=socket if config.websocket == "on" else "none",
            ws_max_size=config.limits.body_bytes,
            ws_ping_interval=config.websocket_ping_interval or None,
            ws_ping_timeout=config.websocket_ping_timeout,
            ws_per_message_deflate=False,  # a few bytes could be blown up to many
            loop="none",  # server.py makes the loop
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            forwarded_allow_ips="",
            workers=1,
            timeout_keep_alive=math.ceil(config.keepalive_seconds),
            timeout_graceful_shutdown=LAST_WORDS,
        )
        self.limits = config.limits
        self.stall_seconds = config.stall_seconds
        self.count_refusal = count_refusal
        self.heads = Heads()
