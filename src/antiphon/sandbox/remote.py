"""A sandbox worker on another host, at one of the addresses of --sandbox-url."""

import asyncio
import os
import ssl
from contextlib import ExitStack
from urllib.parse import SplitResult

from antiphon.config.areas import SandboxLevel
from antiphon.errors import SandboxUnavailable
from antiphon.sandbox import upgrade
from antiphon.sandbox.client import read_status
from antiphon.sandbox.connection import SandboxConnection
from antiphon.sandbox.link import SandboxLink

_CONNECT_SECONDS = 10.0
_TLS_CLOSE_SECONDS = 2.0
_PORTS = {"http": 80, "https": 443}
_SWITCHED, _UNAUTHORIZED = "101", "401"


class RemoteWorker(SandboxLink):
    stable_seconds = 0.0  # a connection that was lost is made again at once
    longest_pause = 5.0

    def __init__(self, url: SplitResult, address: str, key: str, level: SandboxLevel) -> None:
        super().__init__(level)
        self._url = url
        self._address = address
        self._key = key
        self.name = f"{address} port {find_port(url)}"
        self.paused = self._explain("cannot be reached")

    def _explain(self, problem: str) -> str:
        return f"The sandbox worker at {self.name} {problem} (--sandbox-url {self._url.geturl()})."

    async def _open(self) -> SandboxConnection:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await self._upgrade(*await self._open_streams())
        except TimeoutError:
            raise SandboxUnavailable(self._explain(f"did not answer within {_CONNECT_SECONDS:g} s"))
        except ssl.SSLCertVerificationError as error:
            reason = error.verify_message.rstrip(".")
            raise SandboxUnavailable(self._explain(f"has a certificate that is not trusted: {reason}"))
        except ssl.SSLError as error:
            raise SandboxUnavailable(self._explain(f"cannot be reached: the TLS handshake failed: {error.reason}"))
        except (OSError, upgrade.InvalidHead) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise SandboxUnavailable(self._explain(f"cannot be reached: {reason}"))

    async def _open_streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._url.scheme == "http":
            return await asyncio.open_connection(self._address, find_port(self._url))
        return await asyncio.open_connection(
            self._address, find_port(self._url), ssl=await asyncio.to_thread(ssl.create_default_context),
            server_hostname=self._url.hostname, ssl_shutdown_timeout=_TLS_CLOSE_SECONDS,
        )  # fmt: skip

    async def _upgrade(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> SandboxConnection:
        """Authenticate the connection, and check the level of the worker."""
        with ExitStack() as cleanup:
            cleanup.callback(writer.close)
            upgrade.keep_alive(writer)
            writer.write(upgrade.write_request(self._url.netloc, self._key))
            head = await upgrade.read_head(reader)
            if (status := head.first_line[1]) != _SWITCHED:
                reason = await upgrade.read_reason(reader)
                hint = "; see --sandbox-key-file" if status == _UNAUTHORIZED else ""
                raise SandboxUnavailable(self._explain(f"refuses the connection: {status} {reason.rstrip('.')}{hint}"))
            connection = SandboxConnection(reader, writer, self._explain("has ended the connection"))
            self.check_level((await read_status(connection)).level)
            cleanup.pop_all()
        return connection


def find_port(url: SplitResult) -> int:
    return url.port or _PORTS[url.scheme]
