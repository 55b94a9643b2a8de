"""Loopback hosts with scripted responses, and a resolver with scripted results."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from antiphon.egress import EgressClient, EgressPolicy
from tests.support.local_servers import Reader, Writer, serve_tcp

# arguments: the head of a request, and the writer of the connection
Behaviour = Callable[[bytes, Writer], Awaitable[None]]


class Host:
    """A host that records the heads of its requests and counts its connections."""

    def __init__(self, behave: Behaviour) -> None:
        self._behave = behave
        self.port = 0
        self.connects = 0
        self.heads: list[bytes] = []

    async def serve(self, reader: Reader, writer: Writer) -> None:
        self.connects += 1
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        await self._behave(self.heads[-1], writer)
        await writer.drain()

    @property
    def paths(self) -> list[str]:
        return [head.split(b" ")[1].decode() for head in self.heads]


@asynccontextmanager
async def run_host(
    behave: Behaviour, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Host]:
    host = Host(behave)
    async with serve_tcp(host.serve, host=address, ssl=tls) as host.port:
        yield host


def respond_with(body: bytes, *headers: str, status: str = "200 OK") -> Behaviour:
    async def behave(head: bytes, writer: Writer) -> None:
        writer.write(build_response(body, *headers, status=status))

    return behave


def build_response(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def build_redirect(location: str, status: int = 302) -> bytes:
    return build_response(b"", f"Location: {location}", status=f"{status} Moved")


class FakeResolver:
    """A resolver with scripted results: one for each lookup of a name, the last one repeated."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self.answers = {name.replace("_", "."): [*results] for name, results in answers.items()}
        self.queries: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.queries.append(host)
        remaining = self.answers.get(host)
        if not remaining:
            raise OSError("no such host")
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]


def make_egress_client(
    *opened: str, resolver: FakeResolver | None = None, tls: ssl.SSLContext | None = None
) -> EgressClient:
    return EgressClient(EgressPolicy(opened), resolver or FakeResolver(), tls)
