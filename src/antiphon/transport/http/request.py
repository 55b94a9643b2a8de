"""A request as endpoints see it, whatever server it came to. Each part is only evaluated when it is used.

Bodies are only read here, and replies are only started here. This runs on every request and must be cheap: no
middleware, no framework objects. Timeouts on what a client sends and reads are the server's.

The end user of a request (`safety_identifier`, `user`) is logged, so that operators can find a user's requests. It is
not a label of metrics, since the number of users is unbounded.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from io import BytesIO
from time import perf_counter
from types import MappingProxyType
from typing import Concatenate, ParamSpec, TypeVar
from urllib.parse import parse_qsl, quote

from msgspec import Struct

from antiphon.errors import BadRequest, BodyTooLarge, UnsupportedMediaType
from antiphon.ids import new_id
from antiphon.limits import Limits
from antiphon.observe.logs import LOG_CONTEXT, LogContext
from antiphon.protocol.bodies.embeddings import CreateEmbedding
from antiphon.protocol.bodies.images import ImageFields
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.access.api_keys import Principal
from antiphon.service.access.charges import LimitSet
from antiphon.transport.http.channel import CLOSE, Header, HttpChannel

log = logging.getLogger(__name__)

_MAX_USER_CHARS = 128  # characters; OpenAI allows at most 64


def log_user(request_id: str, body: CreateResponse | ImageFields | CreateEmbedding) -> None:
    """Log the end user that `body` names, if any, and add it to the log context."""
    identifiers = {"safety_identifier": getattr(body, "safety_identifier", None), "user": body.user}
    if users := {name: _to_printable(value) for name, value in identifiers.items() if value}:
        log.info("A request was accepted.", extra={"request_id": request_id, **users})
        if (log_context := LOG_CONTEXT.get()) is not None:
            log_context.user_fields = users


def _to_printable(value: str) -> str:
    """Replace unprintable characters, which could control a terminal, and truncate."""
    value = value[:_MAX_USER_CHARS]
    return value if value.isprintable() else "".join([letter if letter.isprintable() else "?" for letter in value])


JSON: Header = (b"content-type", b"application/json")
GONE = 499  # never sent; the status in metrics of a request whose client disconnected before its reply

INLINE_DECODE_BYTES = 640 * 1024  # larger bodies are decoded in a thread; the densest body takes 50 µs per KiB

_ID_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_ID_LENGTH = 128
_MAX_QUERY_PAIRS = 64
_NO_PARAMS: Mapping[str, str] = MappingProxyType({})

UNAUTHENTICATED = Principal(tenant="", scopes=frozenset())  # before authentication, and on public paths

R = TypeVar("R", bound="Request")
P = ParamSpec("P")
T = TypeVar("T")


class Request(Struct, eq=False):
    """One request and its reply, made by `build_request`."""

    channel: HttpChannel
    method: str
    # not decoded: `/v1%2fresponses` is not `/v1/responses`; the path that is matched is the one that is authorised
    path: bytes
    headers: dict[bytes, bytes]
    repeated: Collection[bytes]
    id: str
    reply_headers: list[Header]
    log_context: LogContext  # filled in while the request runs, for logs
    began: float
    principal: Principal = UNAUTHENTICATED  # set by the Authenticator
    tenant: str = ""  # of the principal
    params: Mapping[str, str] = _NO_PARAMS  # values of the names in the route's path
    limit_set: LimitSet | None = None  # the limits that it is subject to, if any
    status: int = 0
    # names of fields that were sent and have no effect; reported in the header x-antiphon-ignored
    ignored: Sequence[str] = ()
    reads_query: bool = False  # whether the endpoint reads the query; otherwise its parameters have no effect

    def get_single_header(self, name: bytes) -> bytes | None:
        """Return a header that must not be repeated; None if it is missing or repeated."""
        return None if name in self.repeated else self.headers.get(name)

    def parse_query(self) -> list[tuple[str, str]]:
        """Return the names and values of the query. Raises BadRequest if there are too many."""
        query = self.channel.query.decode("latin-1")
        try:
            return parse_qsl(query, keep_blank_values=True, errors="replace", max_num_fields=_MAX_QUERY_PAIRS)
        except ValueError:
            raise BadRequest(f"The query has more than {_MAX_QUERY_PAIRS} parameters.") from None

    async def read_body(self, limits: Limits) -> bytes:
        """Read a complete JSON body. Rejects it as soon as it is known to be too large or of another media type."""
        self._check_media_type()
        return await self._read_body(limits.body_bytes)

    async def read_form(self, max_bytes: int) -> tuple[bytes, bytes]:
        """Read a complete multipart form. Also returns its content type, which contains the boundary."""
        media_type = self.check_form(max_bytes)
        return await self._read_body(max_bytes), media_type

    def check_form(self, max_bytes: int) -> bytes:
        """Check the headers of a multipart form before it is read, and return its content type."""
        media_type = self.get_single_header(b"content-type")
        if media_type is None or _strip_parameters(media_type) != b"multipart/form-data":
            raise UnsupportedMediaType("The body must be a form, sent with Content-Type: multipart/form-data.")
        self._check_framing(max_bytes)
        return media_type

    async def _read_body(self, max_bytes: int) -> bytes:
        self._check_framing(max_bytes)
        channel = self.channel
        body = await channel.read()
        if len(body) > max_bytes:
            raise _too_large_error(max_bytes)
        return await self._read_remaining(body, max_bytes) if channel.more else body

    def has_body(self) -> bool:
        return b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"

    async def reply(self, status: int, body: bytes, headers: Sequence[Header] = ()) -> None:
        """Send a complete reply: JSON unless the headers begin with another content type."""
        length = (b"content-length", b"%d" % len(body))
        has_type = headers and headers[0][0] == b"content-type"
        head = self._build_head(status, (*headers, length) if has_type else (JSON, length, *headers))
        send = self.channel.send
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    async def begin(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a reply that `write` continues and `end` completes."""
        await self.channel.begin(status, self._build_head(status, headers))

    async def write(self, piece: bytes) -> None:
        """Write a piece of the body. Waits while the client has too much unread; the server ends stalled ones."""
        if (unread := self.channel.write(piece)) is not None:
            await unread

    async def end(self) -> None:
        await self.channel.end()

    async def reply_in_pieces(
        self, status: int, headers: Sequence[Header], pieces: AsyncGenerator[bytes, None]
    ) -> None:
        """Send a reply whose body is generated. The status is sent after the first piece, which may be missing."""
        async with aclosing(pieces):
            with self.channel:
                first = await anext(pieces, b"")
                await self.begin(status, headers)
                if self.method != "HEAD":
                    await self.write(first)
                    async for piece in pieces:
                        await self.write(piece)
                await self.end()

    async def send_file(
        self, name: str, media_type: str, pieces: AsyncGenerator[bytes, None], *headers: Header, status: int = 200
    ) -> None:
        """Send a file, which browsers download and do not show."""
        common = [
            (b"content-type", media_type.encode()),
            (b"content-disposition", f"attachment; filename*=UTF-8''{quote(name, safe='')}".encode()),
            (b"x-content-type-options", b"nosniff"),
        ]
        await self.reply_in_pieces(status, [*common, *headers], pieces)

    def _build_head(self, status: int, headers: Sequence[Header]) -> list[Header]:
        """Set the status and combine `headers` with those of every reply."""
        self.status = status
        if self.limit_set is not None:
            self.add_limit_headers()
        elapsed_ms = b"%d" % ((perf_counter() - self.began) * 1000)
        head = [*headers, *self.reply_headers, (b"openai-processing-ms", elapsed_ms)]
        ignored = self.ignored
        if self.channel.query and not self.reads_query:
            ignored = [*ignored, *self._list_query_names()]
        if ignored:
            head.append((b"x-antiphon-ignored", ", ".join(map(_escape_header, ignored)).encode("ascii")))
        return head

    def _list_query_names(self) -> Iterable[str]:
        with suppress(BadRequest):
            return dict(self.parse_query())
        return ["query"]

    def add_limit_headers(self) -> None:
        """Add the rate limit headers to the reply, once."""
        if self.limit_set is not None:
            self.reply_headers += render_rate_headers(self.limit_set)
            self.limit_set = None

    def set_id(self, request_id: str) -> None:
        """Replace the id of the request with one that its client chose."""
        old, new = self.id.encode(), request_id.encode()
        self.id = self.log_context.request_id = request_id
        self.reply_headers = [(header, new if value == old else value) for header, value in self.reply_headers]

    def record_client_gone(self) -> None:
        """Set the status for metrics; none was sent to the client."""
        self.status = GONE

    def _check_media_type(self) -> None:
        media_type = self.get_single_header(b"content-type")
        if media_type is None or (media_type != JSON[1] and _strip_parameters(media_type) != JSON[1]):
            raise UnsupportedMediaType("The body must be JSON, sent with the header Content-Type: application/json.")

    def _check_framing(self, max_bytes: int) -> None:
        length = self.headers.get(b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 18 or int(length) > max_bytes):
            raise _too_large_error(max_bytes)
        encoding = self.headers.get(b"content-encoding")
        if encoding is not None and _strip_parameters(encoding) != b"identity":
            raise UnsupportedMediaType("Compressed bodies are not supported; send it without Content-Encoding.")
        if self.headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            self.reply_headers.append(CLOSE)
            raise BadRequest("The only Transfer-Encoding that is supported is chunked.")

    async def _read_remaining(self, first: bytes, max_bytes: int) -> bytes:
        """Read the remaining body into one growing buffer: joining pieces at the end needs twice the memory."""
        buffer, channel = BytesIO(), self.channel
        buffer.write(first)
        while channel.more:
            buffer.write(await channel.read())
            if buffer.tell() > max_bytes:
                raise _too_large_error(max_bytes)
        return buffer.getvalue()


def build_request(channel: HttpChannel, factory: Callable[..., R]) -> R:
    """Make a request of what `channel` received. `factory`: Request, or a subclass."""
    headers = channel.fields
    request_id = _choose_request_id(headers[b"x-request-id"]) if b"x-request-id" in headers else new_id("req")
    reply = [(b"x-request-id", request_id.encode())]
    return factory(
        channel,
        channel.method,
        channel.path,
        headers,
        channel.repeated,
        request_id,
        reply,
        LogContext(request_id),
        perf_counter(),
    )


async def run_for_client(request: Request, operation: Awaitable[T]) -> T:
    """Await `operation`. Raises ClientGone if the client disconnects first."""
    with request.channel:
        return await operation


def _choose_request_id(inbound: bytes) -> str:
    if inbound and len(inbound) <= _ID_LENGTH and not inbound.translate(None, _ID_BYTES):
        return inbound.decode("ascii")
    return new_id("req")


def _escape_header(name: str) -> str:
    """Escape a field name that a client sent, so that it cannot end the header (RFC 9110 §5.5)."""
    return name.encode("unicode_escape").decode("ascii")[:200]


def _strip_parameters(value: bytes) -> bytes:
    return value.partition(b";")[0].strip().lower()


def _too_large_error(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than the limit of {max_bytes} bytes.")


async def decode_body(
    body: bytes, decode: Callable[Concatenate[bytes, Limits, P], T], limits: Limits, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Decode a body: a large one in a thread, so that it does not block the event loop."""
    if len(body) <= INLINE_DECODE_BYTES:
        return decode(body, limits, *args, **kwargs)
    return await asyncio.to_thread(decode, body, limits, *args, **kwargs)


async def read_json(
    request: Request,
    decode: Callable[Concatenate[bytes, Limits, P], T],
    limits: Limits,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    return await decode_body(await request.read_body(limits), decode, limits, *args, **kwargs)


def render_rate_headers(limit_set: LimitSet) -> list[Header]:
    """Render the `x-ratelimit-…` headers, which report the remaining limits in OpenAI's format.

    They are rendered when a reply begins, from the counters at that time. Limits that are not set have no headers.
    """
    headers = []
    for name, status in zip((b"requests", b"tokens"), limit_set.get_status(), strict=True):
        if status is not None:
            headers += [
                (b"x-ratelimit-limit-" + name, b"%d" % status.limit),
                (b"x-ratelimit-remaining-" + name, b"%d" % status.remaining),
                (b"x-ratelimit-reset-" + name, format_duration(status.reset)),
            ]
    return headers


def format_duration(seconds: float) -> bytes:
    """Format a duration as Go does: 850ms, 12.5s, 1m0s."""
    if seconds < 1.0:
        return b"%.0fms" % (seconds * 1000)
    if seconds < 60.0:
        return (b"%.3f" % seconds).rstrip(b"0").rstrip(b".") + b"s"
    return b"%dm%ds" % (seconds // 60, seconds % 60)
