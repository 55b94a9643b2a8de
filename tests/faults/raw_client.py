"""A client that sends exactly the bytes it is passed, and checks every error with the same rules."""

import asyncio
import json
from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from typing import Any

from msgspec import Struct

RESPONSE_SECONDS = 30.0  # generous, for a busy machine; test_latency.py measures the latency


class RawResponse(Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes

    def parse_error(self) -> dict[str, Any]:
        """Parse the body, which must be an error in OpenAI's format."""
        assert self.headers["content-type"].startswith("application/json"), self
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}, self
        assert isinstance(error["message"], str), self
        assert error["message"], self
        assert isinstance(error["type"], str), self
        assert error["param"] is None or isinstance(error["param"], str), self
        assert error["code"] is None or isinstance(error["code"], str), self
        assert self.headers["x-request-id"], self
        assert "Traceback" not in error["message"], self
        return error


def build_request(
    body: bytes, *, method: str = "POST", path: str = "/v1/responses", headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    """Build a complete request. `headers` override the defaults; a header with the value "" is omitted."""
    defaults = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(body))}
    overrides = list(headers)
    names = {name.lower() for name, _ in overrides}
    lines = [(name, value) for name, value in defaults.items() if name.lower() not in names]
    lines += [(name, value) for name, value in overrides if value]
    head = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def build_body(**fields: Any) -> bytes:
    return json.dumps({"model": "fake", "input": "hi", **fields}).encode()


async def send_request(port: int, data: bytes | AsyncIterable[bytes]) -> RawResponse:
    """Send a request and read one response, which may arrive before everything is sent."""
    async with asyncio.timeout(RESPONSE_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        send_task = asyncio.create_task(_write_request(writer, data))
        try:
            return await read_response(reader)
        finally:
            send_task.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await send_task
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def _write_request(writer: asyncio.StreamWriter, data: bytes | AsyncIterable[bytes]) -> None:
    """Write the request. A server that has already answered may close the connection meanwhile."""
    with suppress(ConnectionError):
        if isinstance(data, bytes):
            writer.write(data)
            await writer.drain()
            return
        async for piece in data:
            writer.write(piece)
            await writer.drain()


async def read_response(reader: asyncio.StreamReader) -> RawResponse:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return RawResponse(int(first.split()[1]), headers, await _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    if headers.get("transfer-encoding") != "chunked":
        return await reader.read()
    pieces = []
    while size := int(await reader.readline(), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)  # the end of the empty trailer section
    return b"".join(pieces)


async def expect_error(port: int, data: bytes, *statuses: int, param: str | None = None) -> dict[str, Any]:
    """Return the error of a request that must fail with one of `statuses`.

    `param` is the expected param of the error, or a prefix of it.
    """
    answer = await send_request(port, data)
    assert answer.status in statuses, answer
    error = answer.parse_error()
    if param is not None:
        assert (error["param"] or "").startswith(param), answer
    return error
