"""Decoding of request bodies, and encoding of structs.

A request is bounded, decoded, normalised, converted to its type, searched for unknown fields and checked, in this
order. msgspec can neither default a missing `type` nor report unknown fields, so requests are decoded untyped first.
Fields that clients repeat with every request are decoded separately, in the same steps (decoding/part_cache.py).
RFC 8259 §4 leaves duplicate names undefined; here the last one wins.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from itertools import chain
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import DecodeError, Raw, Struct, ValidationError

from antiphon.errors import InvalidType
from antiphon.limits import Limits
from antiphon.protocol.decoding import checks
from antiphon.protocol.decoding.error_messages import explain, explain_json
from antiphon.protocol.decoding.json_bounds import check_bounds, check_depth, make_depth_error
from antiphon.protocol.decoding.normalise import drop_nulls, normalise, normalise_item
from antiphon.protocol.decoding.part_cache import RequestPart, TenantParts
from antiphon.protocol.decoding.unknown_fields import MAX_REPORTED_FIELDS, UnknownFieldFinder
from antiphon.protocol.types.conversation import CreateConversation, CreateItems, UpdateConversation
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.shared_list import SharedList
from antiphon.protocol.types.tools import Json, McpTool

MAX_NEW_ITEMS = 20  # items added to a conversation by one request

T = TypeVar("T", bound=Struct)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()
_fields_decoder = msgspec.json.Decoder(dict[str, Raw])
_NULL = Raw(b"null")
_WHITESPACE = b" \t\n\r"  # RFC 8259 §2

CREATE_PARTS = ("tools", "text")

encode = _encoder.encode


class RequestFields(Struct, frozen=True):
    """The top-level fields of a body."""

    raw: Json  # decoded, untyped
    parts: dict[str, bytes] = {}  # left raw, except those with null


class Decoded(Struct, Generic[T], frozen=True):
    request: T
    sent: frozenset[str]  # names of the fields that were sent, except those with null
    ignored: list[str]  # names of unknown fields


class DecodedRequest(Decoded[CreateResponse], frozen=True):
    """A request of the Responses API, or one that was translated to it."""


class RequestDecoder(Generic[T]):
    """Decodes one type of body.

    `normalise` converts short forms in place. `counts` names the limits of lists whose length is checked before any
    entry is decoded. `parts` are the fields that are decoded separately, by `part_decoder` if this type has required
    fields.
    """

    def __init__(
        self,
        body_type: type[T],
        normalise: Callable[[Json], None] = drop_nulls,
        counts: Mapping[str, str] = {},
        parts: tuple[str, ...] = (),
        part_decoder: "RequestDecoder[Any] | None" = None,
    ) -> None:
        self._body_type = body_type
        self._normalise = normalise
        self._counts = counts
        self._part_names = parts
        self._part_decoder = part_decoder or self

    @cached_property
    def _field_finder(self) -> UnknownFieldFinder:
        """Made for the first request: all of them together would take a tenth of the time to start a server."""
        return UnknownFieldFinder(self._body_type)

    def decode(self, body: bytes, limits: Limits, cache: TenantParts | None = None) -> Decoded[T]:
        return self.read(decode_fields(body, limits, self._part_names), len(body), limits, cache)

    def read(self, fields: RequestFields, size: int, limits: Limits, cache: TenantParts | None = None) -> Decoded[T]:
        """Convert and check fields that were decoded from `size` bytes; each part from the cache if it is there."""
        parts = {}
        for name, raw in fields.parts.items():
            decoder = self._part_decoder
            decode = partial(decoder.read_part, name, limits)
            parts[name] = decode(raw) if cache is None else cache.find((decoder._body_type, name, raw), decode)
        request, ignored = self.convert(fields.raw, size, limits)
        for name, part in parts.items():
            setattr(request, name, part.value)
        ignored += chain.from_iterable([part.ignored for part in parts.values()])
        return Decoded(request, frozenset(fields.raw).union(parts), ignored[:MAX_REPORTED_FIELDS])

    def read_part(self, name: str, limits: Limits, raw: bytes) -> RequestPart:
        """Decode one field like a request that has no other."""
        request, ignored = self.convert(decode_part(name, raw, limits), len(raw), limits)
        value = getattr(request, name)
        if type(value) is not list:
            return RequestPart(value, ignored)
        return RequestPart(SharedList(value), ignored, cacheable=McpTool not in map(type, value))  # may hold secrets

    def decode_body(self, body: bytes, limits: Limits) -> tuple[T, list[str]]:
        """Decode a body without parts; return it and the names of unknown fields."""
        return self.convert(decode_object(body, limits), len(body), limits)

    def convert(self, raw: Json, size: int, limits: Limits, skip: str = "") -> tuple[T, list[str]]:
        """Normalise and convert JSON of `size` bytes; return the body and the names of unknown fields. The field `skip`
        is not searched.
        """
        for name, limit in self._counts.items():
            checks.check_count(raw.get(name), name, getattr(limits, limit))
        self._field_finder.check_enums(raw, size)
        self._normalise(raw)
        try:
            body = msgspec.convert(raw, self._body_type)
        except ValidationError as error:
            raise explain(error, raw, self._body_type) from None
        return body, self._field_finder.find(raw, limits, skip)


class _CreateDecoder(RequestDecoder[CreateResponse]):
    def convert(self, raw: Json, size: int, limits: Limits, skip: str = "") -> tuple[CreateResponse, list[str]]:
        # an item made from a string has no field names of the client
        request, ignored = super().convert(raw, size, limits, "input" if type(raw.get("input")) is str else "")
        checks.check_request(request, raw, limits)
        if ignored:
            checks.check_completions_only(raw)
        return request, ignored


def _normalise_items(body: Json) -> None:
    items = body.get("items")
    if type(items) is list:
        for item in items:
            normalise_item(item)


_create_decoder = _CreateDecoder(CreateResponse, normalise, {"input": "items"})
_conversation_decoder = RequestDecoder(CreateConversation, _normalise_items)
_update_decoder = RequestDecoder(UpdateConversation, lambda raw: None)  # nulls delete keys
_items_decoder = RequestDecoder(CreateItems, _normalise_items)


def decode_create(body: bytes, limits: Limits, cache: TenantParts | None = None) -> DecodedRequest:
    return read_create(decode_fields(body, limits, CREATE_PARTS), len(body), limits, cache)


def read_create(fields: RequestFields, size: int, limits: Limits, cache: TenantParts | None = None) -> DecodedRequest:
    """Convert and check fields that were decoded from `size` bytes."""
    if "text" in fields.parts and "response_format" in fields.raw:  # an alias for a part of it
        fields.raw.update(decode_part("text", fields.parts.pop("text"), limits))
    decoded = _create_decoder.read(fields, size, limits, cache)
    return DecodedRequest(decoded.request, decoded.sent, decoded.ignored)


def decode_conversation(body: bytes, limits: Limits) -> tuple[CreateConversation, list[str]]:
    raw = decode_object(body, limits)
    drop_nulls(raw)
    request, ignored = _decode_with_items(_conversation_decoder, raw, len(body), limits)
    checks.check_metadata(request.metadata, limits)
    return request, ignored


def decode_conversation_update(body: bytes, limits: Limits) -> tuple[UpdateConversation, list[str]]:
    update, ignored = _update_decoder.decode_body(body, limits)
    checks.check_metadata(update.metadata or {}, limits)
    return update, ignored


def decode_items(body: bytes, limits: Limits) -> tuple[CreateItems, list[str]]:
    return _decode_with_items(_items_decoder, decode_object(body, limits), len(body), limits)


_ItemsBody = TypeVar("_ItemsBody", CreateConversation, CreateItems)


def _decode_with_items(
    decoder: RequestDecoder[_ItemsBody], raw: Json, size: int, limits: Limits
) -> tuple[_ItemsBody, list[str]]:
    """Decode a body whose `items` accept the same short forms as `input`."""
    checks.check_count(raw.get("items"), "items", MAX_NEW_ITEMS)
    request, ignored = decoder.convert(raw, size, limits)
    checks.check_items(request.items, "items", limits)
    return request, ignored


def decode_object(body: bytes, limits: Limits) -> Json:
    """Decode the JSON object in `body`, untyped, within `limits`."""
    return decode_fields(body, limits).raw


def decode_fields(body: bytes, limits: Limits, part_names: tuple[str, ...] = ()) -> RequestFields:
    """Decode the JSON object in `body`, untyped, within `limits`. The fields `part_names` are left raw."""
    check_bounds(body, limits)
    try:
        if not part_names:
            raw, parts = _decoder.decode(body), {}
        else:
            fields = _fields_decoder.decode(body)
            parts = {name: fields.pop(name) for name in part_names if name in fields}
            raw = {name: _decoder.decode(value) for name, value in fields.items()}
    except RecursionError:
        raise make_depth_error(limits) from None
    except (DecodeError, UnicodeDecodeError) as error:
        if isinstance(error, ValidationError) and not body.lstrip(_WHITESPACE).startswith(b"{"):
            raise _not_an_object_error() from None
        raise explain_json(error, body) from None
    if type(raw) is not dict:
        raise _not_an_object_error()
    check_depth(raw, limits)
    return RequestFields(raw, {name: bytes(value) for name, value in parts.items() if value != _NULL})


def decode_part(name: str, raw: bytes, limits: Limits) -> Json:
    """Decode one field of `decode_fields` that was left raw."""
    try:
        body = {name: _decoder.decode(raw)}
    except (DecodeError, UnicodeDecodeError) as error:
        raise explain_json(error, b'{"%b":%b}' % (name.encode(), raw)) from None
    check_depth(body, limits)
    return body


def _not_an_object_error() -> InvalidType:
    return InvalidType("The body must be a JSON object.")
