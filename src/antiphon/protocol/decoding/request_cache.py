"""Caches decoded requests, which are shared by requests that differ only in their input and the response they continue.

A client sends the same model, instructions, tools and settings with every turn, and in requests of agents they are by
far the largest part. A request is first split into its raw fields; if all others are cached, only `input` and
`previous_response_id` are decoded. Requests that are not cached, and all invalid ones, take the regular path of
decoding/codec.py.

A frequent request is not even split: the bytes around its input are the same each time (`RequestEnvelope`), and what is
between them is the input if it is a single JSON value.
"""

from collections import deque
from typing import Any, Final

import msgspec
from msgspec import DecodeError, Raw, Struct
from msgspec.structs import replace

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import CachedRequest, DecodedRequest, decode_create, read_create
from antiphon.protocol.decoding.json_bounds import check_bounds
from antiphon.protocol.decoding.unknown_fields import MAX_REPORTED_FIELDS
from antiphon.protocol.types.items import InputItem, InputText, Message
from antiphon.protocol.types.tools import McpTool

MAX_REQUESTS: Final = 256
MAX_TOTAL_BYTES: Final = 256 * 1024  # of all keys; the decoded requests take up to twenty times as much memory
MAX_REQUEST_BYTES: Final = 64 * 1024
MAX_ENVELOPES: Final = 8
ENVELOPE_INTERVAL: Final = 8  # cache hits, outside of the envelopes, after which one more envelope is added

CacheKey = tuple[tuple[str, ...], bytes]  # names of the fields, and their raw values

_INPUT: Final = "input"
_PREVIOUS_ID: Final = "previous_response_id"
_NULL: Final = Raw(b"null")
_ANY_TEXT: Final = Raw(b"?")  # stands for any string; it is not valid JSON, so no other value equals it
_SEPARATOR: Final = b"\0"  # does not occur in JSON

_fields_decoder = msgspec.json.Decoder(dict[str, Raw])
_text_decoder = msgspec.json.Decoder(str | None)
_optional_input_decoder = msgspec.json.Decoder(str | list[Any] | None)
_input_decoder = msgspec.json.Decoder(str | list[Any])
_QUOTE: Final = b'"'
_PLACEHOLDER: Final = b'"\\u0000input\\u0000"'  # marks the position of the input


class RequestEnvelope(Struct, frozen=True):
    """A cached request and the bytes around its input."""

    prefix: bytes
    suffix: bytes
    cached: CachedRequest
    prefix_bytes: int  # position of the input
    suffix_bytes: int  # number of bytes behind the input


class RequestCache:
    """Recently decoded requests of this server."""

    def __init__(self) -> None:
        self._requests: dict[CacheKey, CachedRequest] = {}
        self._total_bytes = 0
        self._envelopes: deque[RequestEnvelope] = deque(maxlen=MAX_ENVELOPES)
        self._hits = 0  # cache hits that matched no envelope

    def decode(self, body: bytes, limits: Limits) -> DecodedRequest:
        """Decode like `decode_create`. Only the event loop's thread may call it."""
        size = len(body)
        for envelope in self._envelopes:
            if not body.startswith(envelope.prefix) or not body.endswith(envelope.suffix):
                continue
            if size > limits.structural_bytes or size > limits.escapes:
                break  # the input may exceed the limits; the bytes around it do not
            raw_input = body[envelope.prefix_bytes : size - envelope.suffix_bytes]
            try:
                if raw_input[:1] != _QUOTE:  # a string has no nesting
                    check_bounds(raw_input, limits, outer_depth=1)
                value = _input_decoder.decode(raw_input)
            except (DecodeError, UnicodeDecodeError, RecursionError, InvalidValue):
                continue
            return _build_request(envelope.cached, None, value, size, limits)
        return self._decode_by_fields(body, limits)

    def _decode_by_fields(self, body: bytes, limits: Limits) -> DecodedRequest:
        """Look the request up by its raw fields."""
        check_bounds(body, limits)
        try:
            fields = _fields_decoder.decode(body)
            previous_id = _text_decoder.decode(fields[_PREVIOUS_ID]) if _PREVIOUS_ID in fields else None
            raw_input = fields.pop(_INPUT, _NULL)
            value = _optional_input_decoder.decode(raw_input)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return decode_create(body, limits)  # it reports the error
        if previous_id is not None:
            fields[_PREVIOUS_ID] = _ANY_TEXT
        key = _make_key(fields)
        cached = self._requests.get(key)
        if cached is None or (previous_id is not None and not _is_valid_id(previous_id, limits)):
            return self._add(key, decode_create(body, limits))
        if previous_id is None and value is not None:
            self._record_hit(key, cached, body, raw_input)
        return _build_request(cached, previous_id, value, len(body), limits)

    def _record_hit(self, key: CacheKey, cached: CachedRequest, body: bytes, raw_input: Raw) -> None:
        self._hits += 1
        if self._hits % ENVELOPE_INTERVAL == 0:
            envelope = _find_envelope(key, cached, body, bytes(raw_input))
            if envelope is not None and envelope not in self._envelopes:
                self._envelopes.append(envelope)

    def _add(self, key: CacheKey, decoded: DecodedRequest) -> DecodedRequest:
        """Add a decoded request. Requests with MCP servers are not cached, since they may hold secrets."""
        size, request = _key_bytes(key), decoded.request
        if (
            size > MAX_REQUEST_BYTES
            or len(decoded.ignored) >= MAX_REPORTED_FIELDS
            or McpTool in map(type, request.tools)
        ):
            return decoded
        while self._requests and (len(self._requests) >= MAX_REQUESTS or self._total_bytes + size > MAX_TOTAL_BYTES):
            oldest = next(iter(self._requests))
            del self._requests[oldest]
            self._total_bytes -= _key_bytes(oldest)
        input_ignored = [name for name in decoded.ignored if name.startswith(f"{_INPUT}[")]
        cached = self._requests[key] = _make_cached(decoded, input_ignored)
        self._total_bytes += size
        return DecodedRequest(request, decoded.sent, [*cached.ignored, *input_ignored], cached)


def _make_cached(decoded: DecodedRequest, input_ignored: list[str]) -> CachedRequest:
    """Make the shared state; `input_ignored` are the unknown fields of the input, which are not part of it."""
    request = replace(decoded.request, input=[], previous_response_id=None)
    ignored = [name for name in decoded.ignored if name not in input_ignored]
    return CachedRequest(request, decoded.sent | {_INPUT}, decoded.sent - {_INPUT}, ignored)


def _build_request(
    cached: CachedRequest, previous_id: str | None, value: str | list[Any] | None, size: int, limits: Limits
) -> DecodedRequest:
    sent, ignored = cached.sent, cached.ignored
    if type(value) is str:
        items: str | list[InputItem] = [Message(role="user", content=[InputText(text=value)])]
    elif value is None:
        items, sent = [], cached.sent_without_input
    else:
        decoded = read_create({_INPUT: value}, size, limits)
        items = decoded.request.input
        ignored = [*ignored, *decoded.ignored] if decoded.ignored else ignored
    return DecodedRequest(replace(cached.request, input=items, previous_response_id=previous_id), sent, ignored, cached)


def _make_key(fields: dict[str, Raw]) -> CacheKey:
    return tuple(fields), _SEPARATOR.join(fields.values())


def _key_bytes(key: CacheKey) -> int:
    """Return the size of a key. Names count, since a client may send arbitrarily long ones."""
    return sum(map(len, key[0])) + len(key[1])


def _find_envelope(key: CacheKey, cached: CachedRequest, body: bytes, raw_input: bytes) -> RequestEnvelope | None:
    """Find the bytes around the input that remain the same for any other input; None if they cannot be determined."""
    if len(body) - len(raw_input) > MAX_REQUEST_BYTES or _PLACEHOLDER in body:
        return None
    for start in (body.find(raw_input), body.rfind(raw_input)):
        prefix, suffix = body[:start], body[start + len(raw_input) :]
        try:
            fields = _fields_decoder.decode(prefix + _PLACEHOLDER + suffix)
        except DecodeError:
            continue
        if bytes(fields.pop(_INPUT, _NULL)) == _PLACEHOLDER and _make_key(fields) == key:
            return RequestEnvelope(prefix, suffix, cached, start, len(suffix))
    return None


def _is_valid_id(previous_id: str, limits: Limits) -> bool:
    return len(previous_id) <= limits.id_length and "\0" not in previous_id
