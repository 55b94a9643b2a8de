"""What uvicorn is told, and what our connections want to know beyond that."""

import math
from collections.abc import Callable
from typing import Any

import uvicorn

from antiphon.config import Config

LAST_WORDS = 2  # seconds for interrupted work to say so, after the grace


class ServerSettings(uvicorn.Config):
    def __init__(self, app: Any, config: Config, protocol: Any, count_refusal: Callable[[int], None]) -> None:
        super().__init__(
            app,
            http=protocol,
            ws="none",
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
