"""Decoding of request bodies, and encoding of structs.

A request is bounded, decoded, normalised, converted to its type, searched for unknown fields and checked, in this
order. msgspec can neither default a missing `type` nor report unknown fields, so requests are decoded untyped first.
RFC 8259 §4 leaves duplicate names undefined; here the last one wins.
"""

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import DecodeError, Struct, ValidationError

from antiphon.errors import InvalidType
from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import (
    check_completions_only,
    check_count,
    check_items,
    check_metadata,
    check_request,
)
from antiphon.protocol.decoding.error_messages import explain, explain_json
from antiphon.protocol.decoding.json_bounds import EnumBounds, check_bounds, make_depth_error
from antiphon.protocol.decoding.normalise import drop_nulls, normalise, normalise_item
from antiphon.protocol.decoding.unknown_fields import UnknownFieldFinder
from antiphon.protocol.types.conversation import CreateConversation, CreateItems, UpdateConversation
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tools import Json

MAX_NEW_ITEMS = 20  # items added to a conversation by one request

T = TypeVar("T", bound=Struct)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()

encode = _encoder.encode


class CachedRequest(Struct, eq=False):
    """State shared by requests that differ only in `input` and `previous_response_id` (decoding/request_cache.py)."""

    request: CreateResponse  # without `input` and `previous_response_id`
    sent: frozenset[str]  # fields that are sent by a request with an input
    sent_without_input: frozenset[str]  # fields that are sent by a request without an input
    ignored: list[str]
    profile: Any = None  # set and owned by service/planning/request_profile.py; evicted together
    record: Any = None  # set and owned by service/persistence/stored_request.py, likewise


class DecodedRequest(Struct, frozen=True):
    request: CreateResponse
    sent: frozenset[str]  # names of the fields that were sent, except those with null
    ignored: list[str]  # names of unknown fields
    cached: CachedRequest | None = None  # None once any other field of the request was changed


class RequestDecoder(Generic[T]):
    """Converts decoded JSON to one type of body."""

    def __init__(self, body_type: type[T]) -> None:
        self._body_type = body_type
        self._field_finder = UnknownFieldFinder(body_type)
        self.enum_bounds = EnumBounds(body_type)

    def convert(self, raw: Json, limits: Limits, skip: str = "") -> tuple[T, list[str]]:
        """Convert normalised JSON; return the body and the names of unknown fields. The field `skip` is not
        searched.
        """
        try:
            body = msgspec.convert(raw, self._body_type)
        except ValidationError as error:
            raise explain(error, raw, self._body_type) from None
        return body, self._field_finder.find(raw, limits, skip)


_create_decoder = RequestDecoder(CreateResponse)
_conversation_decoder = RequestDecoder(CreateConversation)
_update_decoder = RequestDecoder(UpdateConversation)
_items_decoder = RequestDecoder(CreateItems)


def decode_create(body: bytes, limits: Limits) -> DecodedRequest:
    return read_create(decode_object(body, limits), len(body), limits)


def read_create(raw: Json, size: int, limits: Limits) -> DecodedRequest:
    """Convert and check `raw`, which was decoded from `size` bytes."""
    check_count(raw.get("input"), "input", limits.items)
    _create_decoder.enum_bounds.check(raw, size)
    # an item made from a string has no field names of the client
    skip = "input" if type(raw.get("input")) is str else ""
    normalise(raw)
    request, ignored = _create_decoder.convert(raw, limits, skip)
    check_request(request, raw, limits)
    if ignored:
        check_completions_only(raw)
    return DecodedRequest(request, frozenset(raw), ignored)


def decode_conversation(body: bytes, limits: Limits) -> tuple[CreateConversation, list[str]]:
    raw = decode_object(body, limits)
    drop_nulls(raw)
    request, ignored = _decode_with_items(_conversation_decoder, raw, len(body), limits)
    check_metadata(request.metadata, limits)
    return request, ignored


def decode_conversation_update(body: bytes, limits: Limits) -> tuple[UpdateConversation, list[str]]:
    """Decode new metadata. Nulls are retained, since they delete keys."""
    update, ignored = _update_decoder.convert(decode_object(body, limits), limits)
    check_metadata(update.metadata or {}, limits)
    return update, ignored


def decode_items(body: bytes, limits: Limits) -> tuple[CreateItems, list[str]]:
    return _decode_with_items(_items_decoder, decode_object(body, limits), len(body), limits)


_ItemsBody = TypeVar("_ItemsBody", CreateConversation, CreateItems)


def _decode_with_items(
    decoder: RequestDecoder[_ItemsBody], raw: Json, size: int, limits: Limits
) -> tuple[_ItemsBody, list[str]]:
    """Decode a body whose `items` accept the same short forms as `input`."""
    items = raw.get("items")
    check_count(items, "items", MAX_NEW_ITEMS)
    decoder.enum_bounds.check(raw, size)
    if type(items) is list:
        for item in items:
            normalise_item(item)
    request, ignored = decoder.convert(raw, limits)
    check_items(request.items, "items", limits)
    return request, ignored


def decode_object(body: bytes, limits: Limits) -> Json:
    """Decode the JSON object in `body`, untyped, within `limits`."""
    check_bounds(body, limits)
    try:
        raw: Any = _decoder.decode(body)
    except RecursionError:
        raise make_depth_error(limits) from None
    except (DecodeError, UnicodeDecodeError) as error:
        raise explain_json(error, body) from None
    if type(raw) is not dict:
        raise InvalidType("The body must be a JSON object.")
    return raw
