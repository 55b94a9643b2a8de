"""How changed requests are sent and judged: a few connections that stay open, and WebSockets beside them.

Whatever was sent, an answer comes in time. It is a success that is whole, or a refusal in the shape that clients know,
and never a failure of the server.
"""

import asyncio
import json
import re
from typing import Any

import msgspec

from bench.harness.turns import frame, upgrade
from drills.fuzz.bodies import CREATE, Given, Sent
from tests.faults.raw_client import Answer, read_answer, request

SECONDS = 20.0  # for one answer; whatever takes longer hangs
GONE = (ConnectionError, EOFError)
_LIMIT = 1 << 24
_MESSAGES = re.compile(r"^(/v1|/v3)?/messages(/count_tokens)?$")
_ENDS = re.compile(rb'^{"type":"(error|response\.(completed|failed|incomplete|cancelled|steer\.\w+))"')
_FAILED = re.compile(rb'"type":"response\.failed"')
_OURS = ("server_error", "processing_error")  # codes of what is a server's own fault
_CLOSED_FOR_TEXT = (1007, 1009)  # what is no UTF-8, and what is too large


class Wrong(Exception):
    """What is wrong with an answer."""


class Line:
    """A connection that stays, for one request after the other."""

    def __init__(self, port: int, seconds: float = SECONDS) -> None:
        self._port = port
        self._seconds = seconds
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, sent: Sent) -> int:
        """The status. Raises Wrong."""
        answer = await self._exchange(sent)
        judge(sent, answer)
        return answer.status

    async def given(self) -> Given:
        """New things with ids, which may be named, changed and deleted."""
        item = {"type": "message", "role": "user", "content": "hi"}
        made = await self._made("/v1/conversations", {"items": [item]})
        items = await self._made(f"/v1/conversations/{made['id']}/items", {"items": [item]})
        response = await self._made(CREATE, {"model": "fake", "input": "hi"})
        return {"conv": made["id"], "msg": items["data"][0]["id"], "resp": response["id"]}

    async def _made(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self._exchange(Sent(0, "POST", path, msgspec.json.encode(body)))
        if answer.status != 200:
            raise Wrong(f"a request as it should be got {answer.status}: {answer.body[:300]!r}")
        made: dict[str, Any] = json.loads(answer.body)
        return made

    async def _exchange(self, sent: Sent) -> Answer:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._asked(sent)
        except TimeoutError:
            self.hang_up()
            raise Wrong(f"no answer within {self._seconds:g} s")

    async def _asked(self, sent: Sent) -> Answer:
        for _ in range(2):  # a connection that was idle may have been closed just now
            fresh = self._streams is None
            try:
                return await self._ask(sent)
            except GONE as error:
                self.hang_up()
                if fresh:
                    raise Wrong(f"the server hung up: {error!r}")
        raise AssertionError("a fresh connection was tried")

    async def _ask(self, sent: Sent) -> Answer:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=_LIMIT)
        reader, writer = self._streams
        writer.write(http(sent))
        answer = await read_answer(reader)
        if answer.headers.get("connection") == "close":
            self.hang_up()
        return answer

    def hang_up(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class Socket:
    """A WebSocket, for one message after the other."""

    def __init__(self, port: int, seconds: float = SECONDS) -> None:
        self._port = port
        self._seconds = seconds
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, sent: Sent) -> int:
        """The status of an error, or 200. Raises Wrong."""
        try:
            async with asyncio.timeout(self._seconds):
                if self._streams is None:
                    await self._connect()
                return judge_event(await self._told(sent.body))
        except TimeoutError:
            self.hang_up()
            raise Wrong(f"no answer within {self._seconds:g} s")
        except GONE as error:
            self.hang_up()
            raise Wrong(f"the server hung up: {error!r}")

    async def _connect(self) -> None:
        self._streams = reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=_LIMIT)
        writer.write(upgrade(self._port))
        if not (head := await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101"):
            raise Wrong(f"not upgraded: {head[:300]!r}")

    async def _told(self, body: bytes) -> bytes:
        """The event that ends it; nothing, if the server closed as the protocol wants it."""
        assert self._streams is not None
        self._streams[1].write(frame(body))
        while True:
            kind, payload = await self._frame()
            if kind == 8:
                self.hang_up()
                if (code := int.from_bytes(payload[:2], "big")) not in _CLOSED_FOR_TEXT:
                    raise Wrong(f"the server closed with {code}")
                return b""
            if kind == 1 and _ENDS.match(payload):
                return payload

    async def _frame(self) -> tuple[int, bytes]:
        assert self._streams is not None
        reader, writer = self._streams
        kind, size = await reader.readexactly(2)
        if size >= 126:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        payload = await reader.readexactly(size)
        if kind & 15 == 9:
            writer.write(bytes((0x8A,)) + frame(payload)[1:])
        return kind & 15, payload

    def hang_up(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def http(sent: Sent) -> bytes:
    kept = [] if sent.body else [("Content-Type", "")]
    return request(sent.body, method=sent.method, path=sent.path, headers=kept)


def judge(sent: Sent, answer: Answer) -> None:
    if answer.status >= 500:
        raise Wrong(f"{answer.status}: {answer.body[:300]!r}")
    if answer.status >= 400:
        _judge_refusal(sent, answer)
    elif answer.headers.get("content-type", "").startswith("text/event-stream"):
        _judge_stream(sent, answer.body)
    elif answer.status != 200:
        raise Wrong(f"{answer.status}")
    elif answer.headers.get("content-type") == "application/json":
        _judge_reply(json.loads(answer.body))


def _judge_refusal(sent: Sent, answer: Answer) -> None:
    if sent.method == "POST" and _MESSAGES.match(sent.path.partition("?")[0]):
        told = json.loads(answer.body)
        if told.get("type") != "error" or not isinstance(told["error"]["message"], str):
            raise Wrong(f"not an error of this API: {answer.body[:300]!r}")
        return
    try:
        answer.error()
    except (AssertionError, KeyError, ValueError) as error:
        raise Wrong(f"not an error as clients know it: {answer.status} {answer.body[:300]!r} ({error!r:.200})")


def _judge_stream(sent: Sent, body: bytes) -> None:
    messages = _MESSAGES.match(sent.path.partition("?")[0])
    if not messages and not body.endswith(b"data: [DONE]\n\n"):
        raise Wrong(f"a stream without its end: …{body[-300:]!r}")
    for event in body.split(b"\n\n"):
        if _FAILED.search(event[:200]):
            _judge_reply(json.loads(event.partition(b"data: ")[2])["response"])


def _judge_reply(told: Any) -> None:
    if isinstance(told, dict) and isinstance(error := told.get("error"), dict) and error.get("code") in _OURS:
        raise Wrong(f"a response failed: {error}")


def judge_event(event: bytes) -> int:
    if not event:
        return 400
    told = json.loads(event)
    if told["type"] != "error":
        _judge_reply(told.get("response"))
        return 200
    status, error = told["status"], told["error"]
    if status >= 500 or error.get("code") in _OURS:
        raise Wrong(f"an error on a WebSocket: {event[:300]!r}")
    if not (isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)):
        raise Wrong(f"not an error as clients know it: {event[:300]!r}")
    return int(status)
