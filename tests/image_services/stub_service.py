"""A real HTTP server in the role of an image service, whose answers a test scripts."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from antiphon.config.image_settings import ImageServiceSpec
from antiphon.egress import EgressClient
from antiphon.image_services.http_service import HttpImageService
from tests.support.local_servers import Reader, Writer, serve_tcp


def encode_image(body: bytes) -> str:
    return b64encode(body).decode()


def make_reply(*images: bytes, **fields: Any) -> bytes:
    return json.dumps(
        {"created": 1, "data": [{"b64_json": encode_image(image)} for image in images], **fields}
    ).encode()


class StubService:
    """Answers every request with `status`, `body` and `media_type`; `silent` keeps the connection open instead."""

    def __init__(self) -> None:
        self.status, self.body, self.media_type = 200, b"{}", "application/json"
        self.length: int | None = None  # the declared length, if it differs from that of the body
        self.pages: dict[str, tuple[int, bytes]] = {}  # by path: status and body of answers to GET
        self.port = 0
        self.silent = False
        self.paths: list[str] = []
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.requested = asyncio.Event()
        self.closed = asyncio.Event()  # the client has closed a connection

    @property
    def fields(self) -> Any:
        """The JSON of the last request."""
        return json.loads(self.bodies[-1])

    @property
    def form(self) -> dict[str, list[bytes]]:
        """The parts of the last request, which is a form, by name."""
        boundary = self.heads[-1].partition("boundary=")[2].partition("\r\n")[0].encode()
        parts: dict[str, list[bytes]] = {}
        for part in self.bodies[-1].split(b"--" + boundary)[1:-1]:
            head, _, content = part.partition(b"\r\n\r\n")
            name = head.partition(b'name="')[2].partition(b'"')[0].decode()
            parts.setdefault(name, []).append(content.removesuffix(b"\r\n"))
        return parts

    async def handle(self, reader: Reader, writer: Writer) -> None:
        self.connections += 1
        while await self._answer(reader, writer):
            pass
        self.closed.set()

    async def _answer(self, reader: Reader, writer: Writer) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return False
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
        self.bodies.append(await reader.readexactly(length))
        self.heads.append(head)
        self.paths.append(head.split(" ")[1])
        self.requested.set()
        if not self.silent:
            status, body = self.pages.get(self.paths[-1], (self.status, self.body))
            size = len(body) if self.length is None else self.length
            head = f"HTTP/1.1 {status} X\r\nContent-Type: {self.media_type}\r\nLocation: /other\r\n"
            writer.write(f"{head}Content-Length: {size}\r\n\r\n".encode() + body)
            await writer.drain()
        return self.length is None


@asynccontextmanager
async def run_stub(
    kind: Any = "openai", egress: EgressClient | None = None, path: str = "", **fields: Any
) -> AsyncIterator[tuple[HttpImageService, StubService]]:
    """Yield a client of a stub, and the stub."""
    stub = StubService()
    async with serve_tcp(stub.handle) as stub.port:
        spec = ImageServiceSpec(url=f"http://127.0.0.1:{stub.port}{path}", kind=kind, name="draw", **fields)
        service = HttpImageService(spec, egress or EgressClient())
        try:
            yield service, stub
        finally:
            await service.close()
