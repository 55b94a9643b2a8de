"""A request as the edge sees it, whatever server it came to; nothing is looked at before somebody asks for it.

Nothing else reads a body or starts a reply. This runs on every request and is kept cheap: no middleware,
no framework objects. The clocks on what a client sends and reads are the server's (server.py).

Which of a client's users a request was made for, in the log: an operator has to find them who asks about a request.

In the log alone: as labels of metrics they would be without number.

Bodies are decoded where they arrive, or in a thread if there is much of them, so that others need not wait.

The headers that tell clients how much of their limits is left, as OpenAI writes them: `x-ratelimit-…`.

They are made when a reply begins, of what the counters say then. A limit that there is not has no headers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from io import BytesIO
from time import perf_counter
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import Struct

from antiphon.errors import BadRequest, BodyTooLarge, UnsupportedMediaType
from antiphon.ids import new_id
from antiphon.limits import Limits
from antiphon.observe.log_context import ABOUT, About
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.access.principal import INFERENCE, Principal
from antiphon.service.access.rate_limits import Account
from antiphon.transport.http.channel import CLOSE, Line
from antiphon.transport.http.channel import ClientGone as ClientGone
from antiphon.transport.http.channel import Header as Header


def rate_headers(account: Account) -> list[tuple[bytes, bytes]]:
    requests, tokens = account.standing()
    headers = []
    if requests is not None:
        headers += [
            (b"x-ratelimit-limit-requests", b"%d" % requests.limit),
            (b"x-ratelimit-remaining-requests", b"%d" % requests.remaining),
            (b"x-ratelimit-reset-requests", duration(requests.reset)),
        ]
    if tokens is not None:
        headers += [
            (b"x-ratelimit-limit-tokens", b"%d" % tokens.limit),
            (b"x-ratelimit-remaining-tokens", b"%d" % tokens.remaining),
            (b"x-ratelimit-reset-tokens", duration(tokens.reset)),
        ]
    return headers


def duration(seconds: float) -> bytes:
    """As Go writes it: 850ms, 12.5s, 1m0s."""
    if seconds < 1.0:
        return b"%.0fms" % (seconds * 1000)
    if seconds < 60.0:
        return (b"%.3f" % seconds).rstrip(b"0").rstrip(b".") + b"s"
    return b"%dm%ds" % (seconds // 60, seconds % 60)


log = logging.getLogger(__name__)

_LONGEST = 128  # characters; OpenAI's are at most 64


def note_user(request_id: str, asked: CreateResponse) -> None:
    if asked.safety_identifier or asked.user:
        given = {"safety_identifier": asked.safety_identifier, "user": asked.user}
        named = {name: _plain(value) for name, value in given.items() if value}
        log.info("A request was accepted.", extra={"request_id": request_id, **named})
        if (about := ABOUT.get()) is not None:
            about.users = named


def _plain(value: str) -> str:
    """Whatever is in it, a terminal only shows it."""
    return "".join([letter if letter.isprintable() else "?" for letter in value[:_LONGEST]])


T = TypeVar("T")

AT_ONCE = 256 * 1024  # bytes; the densest body takes 50 µs a KiB


async def decoded(body: bytes, decode: Callable[[bytes, Limits], T], limits: Limits) -> T:
    if len(body) <= AT_ONCE:
        return decode(body, limits)
    return await asyncio.to_thread(decode, body, limits)


JSON: Header = (b"content-type", b"application/json")
WEBSOCKET = "WEBSOCKET"  # no method of HTTP: what the router knows a request for a WebSocket by
GONE = 499  # never sent; what the metrics call a request whose client left before its reply

_ID_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_ID_LENGTH = 128
_NONE: Mapping[str, str] = MappingProxyType({})

NOBODY = Principal(tenant="", scopes=frozenset())  # as long as it is not known who asks, and for what is public

R = TypeVar("R", bound="Request")


class Request(Struct, eq=False):
    """One request and the one reply to it (`received`)."""

    line: Line
    method: str
    path: bytes  # as it came: `/v1%2fresponses` is not `/v1/responses`, and what is matched is what is authorised
    headers: dict[bytes, bytes]
    repeated: Collection[bytes]
    id: str
    reply_headers: list[Header]
    about: About  # what becomes known of it, for logs
    began: float
    principal: Principal = NOBODY  # whose request it is; the guard says so
    tenant: str = ""  # the principal's
    params: Mapping[str, str] = _NONE  # what fills the names in the path
    account: Account | None = None  # what it is held to, if to anything
    status: int = 0
    ignored: Sequence[str] = ()  # names of what was sent and changes nothing; a header tells them

    def header_once(self, name: bytes) -> bytes | None:
        """A header that must not be repeated; None if it is missing or ambiguous."""
        return None if name in self.repeated else self.headers.get(name)

    async def read_body(self, limits: Limits) -> bytes:
        """All of a JSON body; refused as soon as it is known to be too large or of another type."""
        body = self.body_at_hand(limits)
        return await self._read(limits.body_bytes) if body is None else body

    def body_at_hand(self, limits: Limits) -> bytes | None:
        """The same where all of it has come already; None: it has to be waited for, or looked at more closely."""
        headers, line = self.headers, self.line
        if self.repeated or headers.get(b"content-type") != b"application/json":
            self._check_media_type()
        if line.more or b"content-encoding" in headers or b"transfer-encoding" in headers:
            return None
        body = line.read()
        assert isinstance(body, bytes)
        if len(body) > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        return body

    async def read_form(self, cap: int) -> tuple[bytes, bytes]:
        """All of a form that may have files in it, and the content type, which says how it is divided."""
        kind = self.header_once(b"content-type")
        if kind is None or _bare(kind) != b"multipart/form-data":
            raise UnsupportedMediaType("The body must be a form, sent with Content-Type: multipart/form-data.")
        return await self._read(cap), kind

    async def _read(self, cap: int) -> bytes:
        headers = self.headers
        if b"content-encoding" in headers or b"transfer-encoding" in headers:
            self._check_encodings()
        length = headers.get(b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 18 or int(length) > cap):
            raise _too_large(cap)
        line = self.line
        body = line.read()
        if not isinstance(body, bytes):
            body = await body
        if len(body) > cap:
            raise _too_large(cap)
        return await self._read_rest(body, cap) if line.more else body

    def has_body(self) -> bool:
        return b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"

    async def reply(self, status: int, body: bytes, headers: Sequence[Header] = ()) -> None:
        """The whole reply at once. It is JSON unless the headers begin with another content type."""
        length = (b"content-length", b"%d" % len(body))
        typed = headers and headers[0][0] == b"content-type"
        whole = self._head(status, (*headers, length) if typed else (JSON, length, *headers))
        if (unread := self.line.reply(status, whole, body)) is not None:
            await unread

    async def begin(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a reply that `write` goes on with and `end` ends."""
        if (unread := self.line.begin(status, self._head(status, headers))) is not None:
            await unread

    async def write(self, piece: bytes) -> None:
        """Waits while the client has too much unread; a client that stays so is hung up on by the server."""
        if (unread := self.line.write(piece)) is not None:
            await unread

    async def end(self) -> None:
        if (unread := self.line.end()) is not None:
            await unread

    def _head(self, status: int, headers: Sequence[Header]) -> list[Header]:
        """The reply begins now, with these headers and those of every reply."""
        self.status = status
        if self.account is not None:
            self.tell_limits()
        took = b"%d" % ((perf_counter() - self.began) * 1000)
        whole = [*headers, *self.reply_headers, (b"openai-processing-ms", took)]
        if self.ignored:
            whole.append((b"x-antiphon-ignored", ", ".join(map(_printable, self.ignored)).encode("ascii")))
        return whole

    def tell_limits(self) -> None:
        """The reply begins now: how much is left is told, once."""
        if self.account is not None:
            self.reply_headers += rate_headers(self.account)
            self.account = None

    def rename(self, name: str) -> None:
        """Its client has another name for it."""
        before, after = self.id.encode(), name.encode()
        self.id = self.about.request = name
        self.reply_headers = [(header, after if value == before else value) for header, value in self.reply_headers]

    def client_gone(self) -> None:
        """Nobody is there any more: for the books, since no status was sent to anyone."""
        self.status = GONE

    def _check_media_type(self) -> None:
        kind = self.header_once(b"content-type")
        if kind is None or _bare(kind) != b"application/json":
            raise UnsupportedMediaType("The body must be JSON, sent with the header Content-Type: application/json.")

    def _check_encodings(self) -> None:
        if _bare(self.headers.get(b"content-encoding", b"identity")) != b"identity":
            raise UnsupportedMediaType("Compressed bodies are not supported; send it without Content-Encoding.")
        if self.headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            self.reply_headers.append(CLOSE)
            raise BadRequest("The only Transfer-Encoding that is supported is chunked.")

    async def _read_rest(self, first: bytes, cap: int) -> bytes:
        """Into one piece of memory that grows: pieces that are joined at the end need twice as much of it."""
        whole, line = BytesIO(), self.line
        whole.write(first)
        while line.more:
            piece = line.read()
            whole.write(piece if isinstance(piece, bytes) else await piece)
            if whole.tell() > cap:
                raise _too_large(cap)
        return whole.getvalue()


def received(line: Line, make: Callable[..., R]) -> R:
    """What has come now. `make`: a Request, or what is one."""
    headers = line.fields
    name = _request_id(headers[b"x-request-id"]) if b"x-request-id" in headers else new_id("req")
    reply = [(b"x-request-id", name.encode())]
    return make(line, line.method, line.path, headers, line.repeated, name, reply, About(name), perf_counter())


Endpoint = Callable[[Request], Awaitable[None]]


class Route(Struct, frozen=True, kw_only=True):
    """An endpoint and where it is found. `{name}` is one segment, `{name...}` all that is left.

    `takes`, `query`, `gives` and `streams` are the types of its body, its query, its reply and its events, `example` is
    such a body; /openapi.json shows them.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    description: str = ""
    takes: Any = None
    takes_media_type: str = "application/json"
    takes_nothing: bool = False  # a request without a body is one, too
    query: type[Struct] | None = None
    example: Any = None
    gives: Any = None
    streams: Any = None
    media_type: str = "application/json"
    gives_too: Sequence[str] = ()  # other media types of its reply, in bytes that are not described
    new_work: bool = False  # refused while the server drains
    needs: str | None = INFERENCE  # scope that a key must have; None: anybody may come, without a key
    errors: Sequence[int] = ()


def _request_id(inbound: bytes) -> str:
    if inbound and len(inbound) <= _ID_LENGTH and not inbound.translate(None, _ID_BYTES):
        return inbound.decode("ascii")
    return new_id("req")


def _printable(name: str) -> str:
    """A field's name comes from a client: nothing in it may end a header or begin another."""
    return name.encode("unicode_escape").decode("ascii")[:200]


def _bare(value: bytes) -> bytes:
    """A header's value without its parameters."""
    return value.partition(b";")[0].strip().lower()


def _too_large(cap: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {cap} bytes, which is the most this server takes.")
