"""A small client for a running server: what `chat` and `models` speak. Blocking, for one person at a terminal."""

import ssl
from collections.abc import Generator, Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Raw, Struct

from antiphon.errors import StartupError

T = TypeVar("T")
Json = dict[str, Any]
CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 900.0  # the server itself gives up on a silent engine before that


class Unanswered(Exception):
    """A sentence for the person at the terminal: the server is away, or said no."""


class Unreachable(Unanswered):
    """There is nobody."""


class Problem(Struct):
    message: str = ""


class Usage(Struct):
    output_tokens: int = 0


class Reason(Struct):
    reason: str = ""


class Answer(Struct):
    """What the chat needs of a Response; its items go back to the server as they came."""

    status: str = ""
    output: list[Raw] = []
    error: Problem | None = None
    incomplete_details: Reason | None = None
    usage: Usage | None = None


class Heard(Struct):
    """What the chat needs of an event."""

    type: str
    delta: str = ""
    message: str = ""
    response: Answer | None = None


class ModelName(Struct):
    id: str


class ModelList(Struct):
    data: list[ModelName]


class Refusal(Struct):
    error: Problem


class Client:
    def __init__(self, url: str, key: str | None) -> None:
        self.url = url
        self._parts = _parts(url)
        self._headers = {"content-type": "application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"

    def models(self) -> list[str]:
        with closing(self._connect()) as connection, closing(self._send(connection, "GET", "/v1/models")) as reply:
            return [model.id for model in _decode(reply.read(), ModelList).data]

    def ask(self, body: Json) -> Generator[Heard, None, None]:
        """The events of a streamed response. Closing the iterator closes the connection, which cancels the work."""
        with (
            closing(self._connect()) as connection,
            closing(self._send(connection, "POST", "/v1/responses", msgspec.json.encode(body))) as reply,
        ):
            for data in _data_lines(reply):
                yield _decode(data, Heard)

    def _connect(self) -> HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        connection = (
            HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=ssl.create_default_context())
            if self._parts.scheme == "https"
            else HTTPConnection(host, port, timeout=CONNECT_SECONDS)
        )
        try:
            connection.connect()
        except OSError as error:
            raise Unreachable(f"No server answers at {self.url} ({error}). Start one: antiphon serve")
        if connection.sock:
            connection.sock.settimeout(SILENCE_SECONDS)
        return connection

    def _send(self, connection: HTTPConnection, method: str, path: str, body: bytes | None = None) -> HTTPResponse:
        try:
            connection.request(method, self._parts.path + path, body, self._headers)
            reply = connection.getresponse()
        except (OSError, HTTPException) as error:
            raise Unanswered(f"{self.url} broke off: {error!r}.")
        if reply.status == 401:
            raise Unanswered(f"{self.url} wants a key: give --api-key, or set ANTIPHON_API_KEY.")
        if reply.status != 200:
            raise Unanswered(f"{self.url} says {reply.status}: {_decode(reply.read(65536), Refusal).error.message}")
        return reply


def _parts(url: str) -> SplitResult:
    """With or without /v1 at the end, as people paste it."""
    parts = urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise StartupError(f"{url!r} is not a server's address; expected something like http://127.0.0.1:8000.")
    return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"))


def _data_lines(reply: HTTPResponse) -> Iterator[bytes]:
    """One `data:` line per event is what Antiphon sends; the stream must say that it is done."""
    try:
        while line := reply.readline():
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data == b"[DONE]":
                return
            if data:
                yield data
    except (OSError, HTTPException) as error:
        raise Unanswered(f"The answer broke off: {error!r}.")
    raise Unanswered("The answer broke off: the server closed the connection.")


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError:
        raise Unanswered("What answered is not Antiphon: its reply has another shape.")
