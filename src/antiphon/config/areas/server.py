"""Settings of the server itself: where it listens, who is let in, how connections are kept."""

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct

from antiphon.config.help_text import SERVER
from antiphon.config.value_types import Amount, Count, Host, Interval, Key, Name, Origin, Port, Seconds


class ServerSettings(Struct, frozen=True, kw_only=True):
    config: Annotated[
        Path | None,
        SERVER("TOML file with settings.", "./antiphon.toml, else $XDG_CONFIG_HOME/antiphon/config.toml, if it exists"),
    ] = None
    host: Annotated[Name, SERVER("Address to listen on. Beyond loopback only with an API key.")] = "127.0.0.1"
    port: Annotated[Port, SERVER("Port to listen on; 0 takes a free one.")] = 8000
    api_key: Annotated[
        tuple[Key, ...],
        SERVER(
            "Key that clients must send, as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
            "none: everyone on this machine is let in",
        ),
    ] = ()
    api_key_file: Annotated[
        Path | None,
        SERVER("File of such keys, one on each line: KEY, or TENANT KEY. A SIGHUP reads it again (see keys).", "none"),
    ] = None
    allow_host: Annotated[
        tuple[Host, ...], SERVER("Another `Host` to answer to while on loopback.", "loopback names only")
    ] = ()
    allow_origin: Annotated[
        tuple[Origin, ...],
        SERVER("Origin of a web page that may call the server, such as https://app.example.", "the server's own pages"),
    ] = ()
    queue: Annotated[Amount, SERVER("Requests that may wait for each model; beyond, 429.")] = 64
    ping_interval: Annotated[
        Interval, SERVER("Seconds of silence in a stream before a keepalive event; 0 sends none.")
    ] = 15.0
    stall_seconds: Annotated[Seconds, SERVER("Seconds a client may leave its stream unread.")] = 60.0
    keepalive_seconds: Annotated[Seconds, SERVER("Seconds an idle connection is kept open.")] = 75.0
    websocket: Annotated[
        Literal["on", "off"], SERVER("Whether responses are made over WebSockets too; off: an upgrade is a 426.")
    ] = "on"
    websocket_lanes: Annotated[
        Literal["on", "off"],
        SERVER("Whether a WebSocket makes several responses at once; off: one, and no other is taken meanwhile."),
    ] = "on"
    max_websocket_connections: Annotated[Amount, SERVER("WebSockets that may be open; beyond, 503.")] = 100
    max_websocket_connections_per_key: Annotated[
        Count | None, SERVER("WebSockets that may be open with one API key; beyond, 503.", "no bound of its own")
    ] = None
    websocket_lifetime: Annotated[Seconds, SERVER("Seconds after which a WebSocket is closed.")] = 3600.0
    websocket_warning: Annotated[
        Interval, SERVER("Seconds before that at which it is told so (`connection_expiring`); 0 tells nothing.")
    ] = 300.0
    websocket_ping_interval: Annotated[Interval, SERVER("Seconds between pings of a WebSocket; 0 sends none.")] = 20.0
    websocket_ping_timeout: Annotated[Seconds, SERVER("Seconds that a WebSocket's client may take to answer one.")] = (
        20.0
    )
    websocket_cache_bytes: Annotated[
        Count, SERVER("Bytes that a WebSocket remembers of its responses that are not stored.")
    ] = 32 * 1024 * 1024
    workers: Annotated[
        Count,
        SERVER(
            "Processes that share the port, the store and limits of keys (see deployment); other bounds are of each."
        ),
    ] = 1
    shutdown_grace: Annotated[Interval, SERVER("Seconds that running responses get to end at shutdown.")] = 10.0

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def at_home(self) -> bool:
        """One person's machine: nobody else can reach the server, so loopback may be named in a request."""
        return self.on_loopback and not self.api_key and self.api_key_file is None
