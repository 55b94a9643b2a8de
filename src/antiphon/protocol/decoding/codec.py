"""Bytes to structs and back. A request is bounded, decoded, normalised, typed, surveyed and checked, in this order.

msgspec can neither default a missing `type` nor report unknown fields, so requests are decoded untyped first.
Duplicate names: the last one wins.
"""

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import DecodeError, Struct, ValidationError

from antiphon.errors import InvalidType
from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_count, check_elsewhere, check_items, check_metadata, check_request
from antiphon.protocol.decoding.enum_bounds import LongWords
from antiphon.protocol.decoding.error_messages import explain, explain_json
from antiphon.protocol.decoding.json_bounds import check_bounds, too_deep
from antiphon.protocol.decoding.normalise import drop_nulls, normalise, normalise_item
from antiphon.protocol.decoding.unknown_fields import Survey
from antiphon.protocol.types.conversation import CreateConversation, CreateItems, UpdateConversation
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tools import Json

MOST_ITEMS = 20  # that are added to a conversation at once

T = TypeVar("T", bound=Struct)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()

encode = _encoder.encode


class Kind(Struct, eq=False):
    """What requests have in common that differ in nothing but their input and what they continue (kinds.py)."""

    request: CreateResponse  # without these
    sent: frozenset[str]  # with an input
    silent: frozenset[str]  # without one
    ignored: list[str]
    outline: Any = None  # what else is settled about all of them, by whoever did; gone with it
    record: Any = None  # what is kept of all of them, likewise


class Decoded(Struct, frozen=True):
    request: CreateResponse
    sent: frozenset[str]  # names of the fields that were there; a null is not
    ignored: list[str]  # names of fields that nobody knows
    kind: Kind | None = None  # that it is of, as long as nothing else of it is changed


class Shape(Generic[T]):
    """One type of body."""

    def __init__(self, root: type[T]) -> None:
        self._root = root
        self._survey = Survey(root)
        self.long_words = LongWords(root)

    def read(self, raw: Json, limits: Limits, but: str = "") -> tuple[T, list[str]]:
        """What stands in `raw`, which is normalised, and the names of fields that nobody knows. `but`: a field that
        need not be looked into."""
        try:
            body = msgspec.convert(raw, self._root)
        except ValidationError as error:
            raise explain(error, raw, self._root) from None
        return body, self._survey.of(raw, limits, but)


_create = Shape(CreateResponse)
_create_conversation = Shape(CreateConversation)
_update_conversation = Shape(UpdateConversation)
_create_items = Shape(CreateItems)


def decode_create(body: bytes, limits: Limits) -> Decoded:
    return read_create(decode_object(body, limits), len(body), limits)


def read_create(raw: Json, size: int, limits: Limits) -> Decoded:
    """What stands in `raw`, which came in so many bytes."""
    check_count(raw.get("input"), "input", limits.items)
    _create.long_words.check(raw, size)
    but = "input" if type(raw.get("input")) is str else ""  # what is made of a string holds no names of the client's
    normalise(raw)
    request, ignored = _create.read(raw, limits, but)
    check_request(request, raw, limits)
    if ignored:
        check_elsewhere(raw)
    return Decoded(request, frozenset(raw), ignored)


def decode_conversation(body: bytes, limits: Limits) -> tuple[CreateConversation, list[str]]:
    raw = decode_object(body, limits)
    drop_nulls(raw)
    asked, ignored = _with_items(_create_conversation, raw, len(body), limits)
    check_metadata(asked.metadata, limits)
    return asked, ignored


def decode_update(body: bytes, limits: Limits) -> tuple[UpdateConversation, list[str]]:
    """A null means something here: it deletes."""
    asked, ignored = _update_conversation.read(decode_object(body, limits), limits)
    check_metadata(asked.metadata or {}, limits)
    return asked, ignored


def decode_items(body: bytes, limits: Limits) -> tuple[CreateItems, list[str]]:
    return _with_items(_create_items, decode_object(body, limits), len(body), limits)


_Adding = TypeVar("_Adding", CreateConversation, CreateItems)


def _with_items(shape: Shape[_Adding], raw: Json, size: int, limits: Limits) -> tuple[_Adding, list[str]]:
    """A body whose `items` may be written as `input` may."""
    items = raw.get("items")
    check_count(items, "items", MOST_ITEMS)
    shape.long_words.check(raw, size)
    if type(items) is list:
        for item in items:
            normalise_item(item)
    asked, ignored = shape.read(raw, limits)
    check_items(asked.items, "items", limits)
    return asked, ignored


def decode_object(body: bytes, limits: Limits) -> Json:
    """The JSON object in `body`, untyped, within `limits`."""
    check_bounds(body, limits)
    try:
        raw: Any = _decoder.decode(body)
    except RecursionError:
        raise too_deep(limits) from None
    except (DecodeError, UnicodeDecodeError) as error:
        raise explain_json(error, body) from None
    if type(raw) is not dict:
        raise InvalidType("The body must be a JSON object.")
    return raw
