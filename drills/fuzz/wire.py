"""Sends mutated requests over a few persistent connections and WebSockets, and checks the answers.

Every request is answered in time: with a complete success, or with an error in the documented format, but never with a
server error.
"""

import asyncio
import json
import re
from typing import Any

import msgspec

from bench.harness.websocket_frames import frame, upgrade
from drills.fuzz.bodies import CREATE, FuzzRequest, ObjectIds
from tests.faults.raw_client import RawResponse, build_request, read_response

TIMEOUT_SECONDS = 20.0  # for one answer
DISCONNECT_ERRORS = (ConnectionError, EOFError)
_LIMIT = 1 << 24
_ANTHROPIC_PATH = re.compile(r"^(/v1|/v3)?/messages(/count_tokens)?$")
_FINAL_EVENT = re.compile(rb'^{"type":"(error|response\.(completed|failed|incomplete|cancelled|steer\.\w+))"')
_FAILED_EVENT = re.compile(rb'"type":"response\.failed"')
_SERVER_FAULT_CODES = ("server_error", "processing_error")  # error codes for faults of the server
_ALLOWED_CLOSE_CODES = (1007, 1009)  # invalid UTF-8, and too large (RFC 6455 §7.4.1)


class BadAnswer(Exception):
    """The answer violates a rule; the message says which."""


class HttpConnection:
    """A persistent connection for sequential requests."""

    def __init__(self, port: int, seconds: float = TIMEOUT_SECONDS) -> None:
        self._port = port
        self._seconds = seconds
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, fuzz_request: FuzzRequest) -> int:
        """Send a request and return the status. Raises BadAnswer."""
        answer = await self._exchange(fuzz_request)
        check_answer(fuzz_request, answer)
        return answer.status

    async def create_objects(self) -> ObjectIds:
        """Create objects whose ids requests may name, change and delete."""
        item = {"type": "message", "role": "user", "content": "hi"}
        conversation = await self._create("/v1/conversations", {"items": [item]})
        items = await self._create(f"/v1/conversations/{conversation['id']}/items", {"items": [item]})
        response = await self._create(CREATE, {"model": "fake", "input": "hi"})
        return {"conv": conversation["id"], "msg": items["data"][0]["id"], "resp": response["id"]}

    async def _create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self._exchange(FuzzRequest(0, "POST", path, msgspec.json.encode(body)))
        if answer.status != 200:
            raise BadAnswer(f"a regular request returned {answer.status}: {answer.body[:300]!r}")
        created: dict[str, Any] = json.loads(answer.body)
        return created

    async def _exchange(self, fuzz_request: FuzzRequest) -> RawResponse:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._send_with_retry(fuzz_request)
        except TimeoutError:
            self.disconnect()
            raise BadAnswer(f"no answer within {self._seconds:g} s")

    async def _send_with_retry(self, fuzz_request: FuzzRequest) -> RawResponse:
        for _ in range(2):  # the server may just have closed an idle connection
            is_new = self._streams is None
            try:
                return await self._send_once(fuzz_request)
            except DISCONNECT_ERRORS as error:
                self.disconnect()
                if is_new:
                    raise BadAnswer(f"the server closed the connection: {error!r}")
        raise AssertionError("a new connection was tried")

    async def _send_once(self, fuzz_request: FuzzRequest) -> RawResponse:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=_LIMIT)
        reader, writer = self._streams
        writer.write(render_request(fuzz_request))
        answer = await read_response(reader)
        if answer.headers.get("connection") == "close":
            self.disconnect()
        return answer

    def disconnect(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class SocketConnection:
    """A WebSocket for sequential messages."""

    def __init__(self, port: int, seconds: float = TIMEOUT_SECONDS) -> None:
        self._port = port
        self._seconds = seconds
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, fuzz_request: FuzzRequest) -> int:
        """Send a message and return the status of an error, or 200. Raises BadAnswer."""
        try:
            async with asyncio.timeout(self._seconds):
                if self._streams is None:
                    await self._connect()
                return check_event(await self._send_message(fuzz_request.body))
        except TimeoutError:
            self.disconnect()
            raise BadAnswer(f"no answer within {self._seconds:g} s")
        except DISCONNECT_ERRORS as error:
            self.disconnect()
            raise BadAnswer(f"the server closed the connection: {error!r}")

    async def _connect(self) -> None:
        self._streams = reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=_LIMIT)
        writer.write(upgrade(self._port))
        if not (head := await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101"):
            raise BadAnswer(f"not upgraded: {head[:300]!r}")

    async def _send_message(self, body: bytes) -> bytes:
        """Send a message and return its final event, or nothing if the server closed with an allowed code."""
        assert self._streams is not None
        self._streams[1].write(frame(body))
        while True:
            kind, payload = await self._read_frame()
            if kind == 8:
                self.disconnect()
                if (code := int.from_bytes(payload[:2], "big")) not in _ALLOWED_CLOSE_CODES:
                    raise BadAnswer(f"the server closed with {code}")
                return b""
            if kind == 1 and _FINAL_EVENT.match(payload):
                return payload

    async def _read_frame(self) -> tuple[int, bytes]:
        assert self._streams is not None
        reader, writer = self._streams
        kind, size = await reader.readexactly(2)
        if size >= 126:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        payload = await reader.readexactly(size)
        if kind & 15 == 9:
            writer.write(bytes((0x8A,)) + frame(payload)[1:])
        return kind & 15, payload

    def disconnect(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def render_request(fuzz_request: FuzzRequest) -> bytes:
    headers = [] if fuzz_request.body else [("Content-Type", "")]
    return build_request(fuzz_request.body, method=fuzz_request.method, path=fuzz_request.path, headers=headers)


def check_answer(fuzz_request: FuzzRequest, answer: RawResponse) -> None:
    if answer.status >= 500:
        raise BadAnswer(f"{answer.status}: {answer.body[:300]!r}")
    if answer.status >= 400:
        _check_rejection(fuzz_request, answer)
    elif answer.headers.get("content-type", "").startswith("text/event-stream"):
        _check_stream(fuzz_request, answer.body)
    elif answer.status != 200:
        raise BadAnswer(f"{answer.status}")
    elif answer.headers.get("content-type") == "application/json":
        _check_reply(json.loads(answer.body))


def _check_rejection(fuzz_request: FuzzRequest, answer: RawResponse) -> None:
    if fuzz_request.method == "POST" and _ANTHROPIC_PATH.match(fuzz_request.path.partition("?")[0]):
        body = json.loads(answer.body)
        if body.get("type") != "error" or not isinstance(body["error"]["message"], str):
            raise BadAnswer(f"not an error in Anthropic's format: {answer.body[:300]!r}")
        return
    try:
        answer.parse_error()
    except (AssertionError, KeyError, ValueError) as error:
        raise BadAnswer(f"not an error in OpenAI's format: {answer.status} {answer.body[:300]!r} ({error!r:.200})")


def _check_stream(fuzz_request: FuzzRequest, body: bytes) -> None:
    is_anthropic = _ANTHROPIC_PATH.match(fuzz_request.path.partition("?")[0])
    if not is_anthropic and not body.endswith(b"data: [DONE]\n\n"):
        raise BadAnswer(f"a stream without its end: …{body[-300:]!r}")
    for event in body.split(b"\n\n"):
        if _FAILED_EVENT.search(event[:200]):
            _check_reply(json.loads(event.partition(b"data: ")[2])["response"])


def _check_reply(reply: Any) -> None:
    if (
        isinstance(reply, dict)
        and isinstance(error := reply.get("error"), dict)
        and error.get("code") in _SERVER_FAULT_CODES
    ):
        raise BadAnswer(f"a response failed: {error}")


def check_event(event: bytes) -> int:
    if not event:
        return 400
    decoded = json.loads(event)
    if decoded["type"] != "error":
        _check_reply(decoded.get("response"))
        return 200
    status, error = decoded["status"], decoded["error"]
    if status >= 500 or error.get("code") in _SERVER_FAULT_CODES:
        raise BadAnswer(f"an error on a WebSocket: {event[:300]!r}")
    if not (isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)):
        raise BadAnswer(f"not an error in OpenAI's format: {event[:300]!r}")
    return int(status)
