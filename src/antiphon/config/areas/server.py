"""Settings of the server itself: address, authentication, and connections."""

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct

from antiphon.config.help_text import SERVER
from antiphon.config.value_types import Amount, Count, Host, Interval, Key, Name, Origin, Port, Seconds


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Address, authentication and connections."""

    host: Annotated[Name, SERVER("Address to listen on. Addresses other than loopback require an API key.")] = (
        "127.0.0.1"
    )
    port: Annotated[Port, SERVER("Port to listen on; 0 selects a free port.")] = 8000
    api_key: Annotated[
        tuple[Key, ...],
        SERVER(
            "API key that clients must send, as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
            "none: all users of this machine have access",
        ),
    ] = ()
    api_key_file: Annotated[
        Path | None,
        SERVER("File of API keys, one per line: KEY, or TENANT KEY. SIGHUP reloads it (see keys).", "none"),
    ] = None
    allow_host: Annotated[
        tuple[Host, ...],
        SERVER("Additional `Host` header value to accept while listening on loopback.", "loopback names only"),
    ] = ()
    allow_origin: Annotated[
        tuple[Origin, ...],
        SERVER(
            "Origin of a web page that may call the server, such as https://app.example (CORS).",
            "pages of the server itself",
        ),
    ] = ()
    queue: Annotated[
        Amount, SERVER("Maximum number of requests that wait for each model; more are rejected with 429.")
    ] = 64
    ping_interval: Annotated[
        Interval, SERVER("Seconds without an event after which a stream sends a keepalive; 0 disables it.")
    ] = 15.0
    stall_seconds: Annotated[
        Seconds, SERVER("Seconds after which a client that does not read its stream is disconnected.")
    ] = 60.0
    keepalive_seconds: Annotated[Seconds, SERVER("Seconds before an idle connection is closed.")] = 75.0
    websocket: Annotated[
        Literal["on", "off"], SERVER("Accept WebSocket connections for responses; off: upgrades are rejected with 426.")
    ] = "on"
    websocket_lanes: Annotated[
        Literal["on", "off"],
        SERVER("Run several responses of one WebSocket concurrently; off: one at a time, others are rejected."),
    ] = "on"
    max_websocket_connections: Annotated[
        Amount, SERVER("Maximum number of open WebSockets; more are rejected with 503.")
    ] = 100
    max_websocket_connections_per_key: Annotated[
        Count | None,
        SERVER("Maximum number of open WebSockets per API key; more are rejected with 503.", "no limit per key"),
    ] = None
    websocket_lifetime: Annotated[Seconds, SERVER("Maximum lifetime of a WebSocket, in seconds.")] = 3600.0
    websocket_warning: Annotated[
        Interval,
        SERVER("Seconds before the end of its lifetime at which `connection_expiring` is sent; 0 disables it."),
    ] = 300.0
    websocket_ping_interval: Annotated[Interval, SERVER("Seconds between WebSocket pings; 0 disables them.")] = 20.0
    websocket_ping_timeout: Annotated[
        Seconds, SERVER("Seconds to wait for the pong before the WebSocket is closed.")
    ] = 20.0
    websocket_cache_bytes: Annotated[
        Count, SERVER("Bytes of responses that are not stored which a WebSocket keeps in memory.")
    ] = 32 * 1024 * 1024
    workers: Annotated[
        Count,
        SERVER(
            "Worker processes, which share the port, the store and the rate limits; other limits apply per process."
        ),
    ] = 1
    shutdown_grace: Annotated[Interval, SERVER("Seconds that running responses have to finish at shutdown.")] = 10.0

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def allow_loopback_urls(self) -> bool:
        """Whether requests may name loopback URLs: only local users can reach the server, and there are no API keys."""
        return self.on_loopback and not self.api_key and self.api_key_file is None
