"""Serves the sandbox of this host to servers elsewhere: a connection of a server is one to the sandbox process.

Servers with the same key share their containers, and cannot reach those of servers with other keys: ids are prefixed by
the digest of the key. The containers of a key are stopped some time after its last server has disconnected.
"""

import asyncio
import hmac
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from http import HTTPStatus

from antiphon.errors import AntiphonError, SandboxUnavailable
from antiphon.sandbox import upgrade
from antiphon.sandbox.base import SandboxStatus
from antiphon.sandbox.local import LocalSandbox
from antiphon.sandbox.worker import frames

_MAX_CONNECTIONS = 128  # of servers; the sandbox process accepts some more
_MAX_NEWCOMERS = 128  # connections that have not authenticated themselves
_HEAD_SECONDS = 10.0
_STALL_SECONDS = 60.0  # until a server that does not read is disconnected
_log = logging.getLogger(__name__)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class SandboxGateway:
    def __init__(self, sandbox: LocalSandbox, keys: Sequence[str], grace: float) -> None:
        """`grace` is the time in seconds that containers outlive the last connection with their key."""
        self._sandbox = sandbox
        self._digests = [sha256(key.encode()).digest() for key in keys]
        self._grace = grace
        self._connections: Counter[str] = Counter()  # by owner
        self._newcomers = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._endings: dict[str, asyncio.Task[None]] = {}  # by owner

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until one of its ends closes it."""
        self._writers.add(writer)
        try:
            owner = await self._welcome(reader)
            upgrade.keep_alive(writer)
            async with self._joined(owner):
                await self._serve(owner, (reader, writer))
        except _Refused as refusal:
            writer.write(upgrade.write_response(refusal.status, str(refusal)))
        except (OSError, upgrade.InvalidHead):  # it has gone, or is no HTTP client
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def read_status(self) -> SandboxStatus:
        """Start the sandbox. Raises SandboxUnavailable."""
        return await self._sandbox.status()

    async def close(self) -> None:
        """End all containers."""
        for writer in self._writers:
            writer.transport.abort()
        await self._sandbox.close()

    async def _welcome(self, reader: asyncio.StreamReader) -> str:
        """Read the request and return the owner of its containers. Raises what `accept` answers."""
        if self._newcomers >= _MAX_NEWCOMERS:
            raise ConnectionAbortedError
        self._newcomers += 1
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                head = await upgrade.read_head(reader)
            return await self._check(head)
        finally:
            self._newcomers -= 1

    async def _check(self, head: upgrade.MessageHead) -> str:
        target = head.first_line[1]
        if target == "/health":
            raise _Refused(HTTPStatus.OK, "The sandbox worker is running.")
        if target == "/ready":
            await self._check_sandbox()
            raise _Refused(HTTPStatus.OK, "The sandbox is ready.")
        if target != upgrade.PATH:
            raise _Refused(HTTPStatus.NOT_FOUND, "This is a sandbox worker of Antiphon; it has no such path.")
        owner = self._authenticate(head.headers.get("authorization", ""))
        if not head.is_upgrade:
            raise _Refused(HTTPStatus.UPGRADE_REQUIRED, f"This worker has the protocol {upgrade.PROTOCOL}.")
        if self._connections.total() >= _MAX_CONNECTIONS:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"This worker serves {_MAX_CONNECTIONS} connections.")
        return owner

    def _authenticate(self, authorization: str) -> str:
        scheme, _, key = authorization.partition(" ")
        digest = sha256(key.strip().encode()).digest()
        matches = [hmac.compare_digest(digest, one) for one in self._digests]  # all of them, in constant time
        if scheme.lower() != "bearer" or not any(matches):
            raise _Refused(HTTPStatus.UNAUTHORIZED, "The key is not one of this worker's.")
        return digest.hex()[:16]

    async def _check_sandbox(self) -> None:
        """Start the sandbox process again if it has died."""
        try:
            await self._sandbox.status()
        except SandboxUnavailable as error:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, error.message)

    @asynccontextmanager
    async def _joined(self, owner: str) -> AsyncIterator[None]:
        self._connections[owner] += 1
        if (ending := self._endings.pop(owner, None)) is not None:
            ending.cancel()
        try:
            yield
        finally:
            self._connections[owner] -= 1
            if not self._connections[owner]:
                self._endings[owner] = asyncio.get_running_loop().create_task(self._end_later(owner))

    async def _end_later(self, owner: str) -> None:
        """Stop all containers of an owner, unless one of its servers connects again."""
        await asyncio.sleep(self._grace)
        with suppress(SandboxUnavailable):  # then they have ended with the sandbox process
            names = [name for name in (await self._sandbox.status()).containers if name.startswith(f"{owner}/")]
            for name in names:
                with suppress(AntiphonError):
                    await self._sandbox.stop(name)
            if names:
                _log.info("stopped %d containers of a key without connections", len(names))

    async def _serve(self, owner: str, server: Streams) -> None:
        await self._check_sandbox()
        host = await self._sandbox.open_streams()
        server[1].write(upgrade.write_switch())
        loop = asyncio.get_running_loop()
        copies = [
            loop.create_task(_copy_requests(owner, server[0], host[1])),
            loop.create_task(_copy_answers(owner, host[0], server[1])),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            host[1].close()  # running calls of this server are killed
            for task in copies:
                task.cancel()
            await asyncio.gather(*copies, return_exceptions=True)


async def _copy_requests(owner: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while (frame := await frames.read(reader)) is not None:
        header, payload = frame
        if "id" in header:
            header["id"] = f"{owner}/{header['id']}"
        await _send(writer, header, payload)


async def _copy_answers(owner: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    prefix = f"{owner}/"
    while (frame := await frames.read(reader)) is not None:
        header, payload = frame
        if "containers" in header:  # a status
            own = [name for name in header["containers"] if name.startswith(prefix)]
            header["containers"] = [name.removeprefix(prefix) for name in own]
        await _send(writer, header, payload)


async def _send(writer: asyncio.StreamWriter, header: frames.Header, payload: bytes) -> None:
    writer.write(frames.pack(header, payload))
    async with asyncio.timeout(_STALL_SECONDS):
        await writer.drain()
