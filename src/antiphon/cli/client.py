"""Blocking HTTP client for a running server, used by `chat` and `models`, and the parts of replies that are used."""

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
READ_SECONDS = 900.0  # longer than the server's own timeout for a silent engine


class RequestFailed(Exception):
    """The server is unreachable or rejected the request; the message is printed in the terminal."""


class ServerUnreachable(RequestFailed):
    """No connection to the server could be opened."""


class TokenUsage(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None


class IncompleteReason(Struct):
    reason: str = ""


class ResponseReply(Struct):
    """The fields of a response that `chat` and `bench` use; items are sent back to the server unchanged."""

    output: list[Raw] = []
    error: Any = None
    incomplete_details: IncompleteReason | None = None
    usage: TokenUsage | None = None


class StreamedEvent(Struct, gc=False):
    """The fields of an event that `chat` and `bench` use."""

    type: str = ""
    delta: Any = ""
    response: ResponseReply | None = None
    error: Any = None
    message: str | None = None

    @property
    def error_message(self) -> str:
        """The message of an event that reports a failure, or an empty text."""
        return extract_message(self.response.error if self.response else self.error or self.message)


class ModelEntry(Struct):
    id: str


class ModelListReply(Struct):
    data: list[ModelEntry]


class ServerClient:
    """A client of one server. Raises RequestFailed."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url
        self._url_parts = parse_server_url(url)
        self._root = self._url_parts.path.removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"

    def list_models(self) -> list[str]:
        with closing(self._connect()) as connection, closing(self._send(connection, "GET", "/v1/models")) as reply:
            return [model.id for model in _decode(reply.read(), ModelListReply).data]

    def stream_response(self, body: Json) -> Generator[StreamedEvent, None, None]:
        """Yield the events of a streamed response. Closing the iterator closes the connection, which cancels the
        response.
        """
        with (
            closing(self._connect()) as connection,
            closing(self._send(connection, "POST", "/v1/responses", msgspec.json.encode(body))) as reply,
        ):
            for data in _read_events(reply):
                yield _decode(data, StreamedEvent)

    def _connect(self) -> HTTPConnection:
        host, port = self._url_parts.hostname or "", self._url_parts.port
        connection = (
            HTTPSConnection(host, port, timeout=CONNECT_SECONDS, context=ssl.create_default_context())
            if self._url_parts.scheme == "https"
            else HTTPConnection(host, port, timeout=CONNECT_SECONDS)
        )
        try:
            connection.connect()
        except OSError as error:
            raise ServerUnreachable(f"No server answers at {self.url} ({error}). Start one: antiphon serve")
        if connection.sock:
            connection.sock.settimeout(READ_SECONDS)
        return connection

    def _send(self, connection: HTTPConnection, method: str, path: str, body: bytes | None = None) -> HTTPResponse:
        try:
            connection.request(method, self._root + path, body, self._headers)
            reply = connection.getresponse()
        except (OSError, HTTPException) as error:
            raise RequestFailed(f"{self.url} closed the connection: {error!r}.")
        if reply.status == 401:
            raise RequestFailed(f"{self.url} requires an API key: use --api-key or set ANTIPHON_API_KEY.")
        if reply.status != 200:
            raise RequestFailed(describe_status(self.url, reply.status, reply.read(65536)))
        return reply


def extract_message(error: Any) -> str:
    """Extract the message of {"error": {"message": …}}, {"message": …}, {"detail": …} or a text."""
    for _ in range(3):
        if isinstance(error, dict):
            error = next((error[name] for name in ("error", "message", "detail") if error.get(name)), "")
    return error.strip() if isinstance(error, str) else ""


def describe_status(url: str, status: int, body: bytes) -> str:
    """Describe a reply that reports a failure, with the server's own message if its body has one."""
    try:
        message = extract_message(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message = ""  # most likely an HTML page
    return f"{url} returned HTTP {status}" + (f": {message}" if message else "")


def parse_server_url(url: str) -> SplitResult:
    """Parse the URL of a server; its path does not end with a slash. Raises StartupError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.username is not None or parts.password is not None:
        raise StartupError("The URL must not contain a key: use an option, or ANTIPHON_API_KEY.")
    is_plain = not (parts.query or parts.fragment) and all("!" <= character <= "~" for character in url)
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not is_plain:
        raise StartupError(f"{url!r} is not a server's address; expected something like http://127.0.0.1:8000.")
    return parts._replace(path=parts.path.rstrip("/"))


def _read_events(reply: HTTPResponse) -> Iterator[bytes]:
    """Yield the data of each event; Antiphon sends one `data:` line per event, and ends with [DONE]."""
    try:
        while line := reply.readline():
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data == b"[DONE]":
                return
            if data:
                yield data
    except (OSError, HTTPException) as error:
        raise RequestFailed(f"The stream was interrupted: {error!r}.")
    raise RequestFailed("The stream was interrupted: the server closed the connection.")


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError:
        raise RequestFailed("The reply has an unexpected format: the server is not Antiphon.")
