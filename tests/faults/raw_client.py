"""A client that sends exactly the bytes it is given, and judges every answer by the same rules."""

import asyncio
import json
from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from typing import Any

from msgspec import Struct

ANSWER_SECONDS = 30.0  # for a busy machine; how fast an answer is, test_latency.py measures


class Answer(Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> dict[str, Any]:
        """The error of OpenAI's shape that the body must be."""
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


def request(
    body: bytes, *, method: str = "POST", path: str = "/v1/responses", headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    """A whole request; a header given here takes the place of the usual one, and one given as "" is left out."""
    usual = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(body))}
    given = list(headers)
    names = {name.lower() for name, _ in given}
    lines = [(name, value) for name, value in usual.items() if name.lower() not in names]
    lines += [(name, value) for name, value in given if value]
    head = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "fake", "input": "hi", **fields}).encode()


async def exchange(port: int, sent: bytes | AsyncIterable[bytes]) -> Answer:
    """Send, and read one answer, which may come before all is sent."""
    async with asyncio.timeout(ANSWER_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sending = asyncio.create_task(_send(writer, sent))
        try:
            return await read_answer(reader)
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await sending
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def _send(writer: asyncio.StreamWriter, sent: bytes | AsyncIterable[bytes]) -> None:
    """A server that has answered may close while we still send."""
    with suppress(ConnectionError):
        if isinstance(sent, bytes):
            writer.write(sent)
            await writer.drain()
            return
        async for piece in sent:
            writer.write(piece)
            await writer.drain()


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(first.split()[1]), headers, await _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    if headers.get("transfer-encoding") != "chunked":
        return await reader.read()
    pieces = []
    while size := int(await reader.readline(), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)  # and the end of trailers that are not there
    return b"".join(pieces)


async def refused(port: int, sent: bytes, *statuses: int, param: str | None = None) -> dict[str, Any]:
    """The error with which the server refuses, one of `statuses`; `param` is the field to blame, or its beginning."""
    answer = await exchange(port, sent)
    assert answer.status in statuses, answer
    error = answer.error()
    if param is not None:
        assert (error["param"] or "").startswith(param), answer
    return error
