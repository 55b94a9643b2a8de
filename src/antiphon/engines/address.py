"""Where an engine is: a unix socket, or a host and a port, with TLS or without."""

import asyncio
import ssl
from typing import Protocol

from msgspec import Struct

from antiphon.engines.connection import Connection


class Address(Protocol):
    async def connect(self, who: str) -> Connection:
        """A new one. OSError if that cannot be; `who` is for its sentences."""


class UnixAddress(Struct, frozen=True):
    path: str

    async def connect(self, who: str) -> Connection:
        _, connection = await asyncio.get_running_loop().create_unix_connection(lambda: Connection(who), self.path)
        return connection


class TcpAddress(Struct, frozen=True):
    """`tls` holds what is trusted; None for a connection in the clear."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    async def connect(self, who: str) -> Connection:
        loop = asyncio.get_running_loop()
        name = None if self.tls is None else self.host
        _, connection = await loop.create_connection(
            lambda: Connection(who), self.host, self.port, ssl=self.tls, server_hostname=name
        )
        return connection


def trusted(authorities: str | None = None) -> ssl.SSLContext:
    """Certificates and names are checked, against the system's authorities or those of a file."""
    context = ssl.create_default_context(cafile=authorities)
    context.set_alpn_protocols(["http/1.1"])
    return context
