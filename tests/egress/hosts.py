"""Hosts on loopback that answer as a test wants, and a resolver that says what a test wants."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from antiphon.egress import Egress, Policy
from tests.support.local_servers import Reader as Reader
from tests.support.local_servers import Writer as Writer
from tests.support.local_servers import tcp
from tests.support.paths import TLS as TLS

Behaviour = Callable[[bytes, Writer], Awaitable[None]]  # the head of a request, and where to write


class Host:
    """What it was asked, and how often somebody connected."""

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
async def hosting(
    behave: Behaviour, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Host]:
    host = Host(behave)
    async with tcp(host.serve, host=address, ssl=tls) as host.port:
        yield host


def saying(body: bytes, *headers: str, status: str = "200 OK") -> Behaviour:
    async def behave(head: bytes, writer: Writer) -> None:
        writer.write(answer(body, *headers, status=status))

    return behave


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def moved(to: str, status: int = 302) -> bytes:
    return answer(b"", f"Location: {to}", status=f"{status} Moved")


class Names:
    """Each name has its answers, one for each time that it is asked for; the last one stays."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self.answers = {name.replace("_", "."): [*given] for name, given in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        left = self.answers.get(host)
        if not left:
            raise OSError("no such host")
        return left.pop(0) if len(left) > 1 else left[0]


def egress(*opened: str, names: Names | None = None, tls: ssl.SSLContext | None = None) -> Egress:
    return Egress(Policy(opened), names or Names(), tls)
