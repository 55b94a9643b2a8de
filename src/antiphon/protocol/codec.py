"""Bytes to structs and back. A request is bounded, decoded, normalised, typed, surveyed and checked, in this order.

msgspec can neither default a missing `type` nor report unknown fields, so requests are decoded untyped first.
Duplicate names: the last one wins.
"""

from typing import Any

import msgspec
from msgspec import DecodeError, Struct, ValidationError

from antiphon.errors import InvalidType
from antiphon.limits import Limits
from antiphon.protocol.checks import check_count, check_request
from antiphon.protocol.explain import explain, explain_json
from antiphon.protocol.json_bounds import check_bounds, too_deep
from antiphon.protocol.long_words import LongWords
from antiphon.protocol.normalise import normalise
from antiphon.protocol.request import CreateResponse
from antiphon.protocol.survey import Survey
from antiphon.protocol.tools import Json

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()
_survey = Survey(CreateResponse)
_long_words = LongWords(CreateResponse)

encode = _encoder.encode


class Decoded(Struct, frozen=True):
    request: CreateResponse
    sent: frozenset[str]  # names of the fields that were there; a null is not
    ignored: list[str]  # names of fields that nobody knows


def decode_create(body: bytes, limits: Limits) -> Decoded:
    raw = decode_object(body, limits)
    check_count(raw.get("input"), limits)
    _long_words.check(raw, len(body))
    normalise(raw)
    try:
        request = msgspec.convert(raw, CreateResponse)
    except ValidationError as error:
        raise explain(error, raw, CreateResponse) from None
    ignored = _survey.of(raw, limits)
    check_request(request, raw, limits)
    return Decoded(request, frozenset(raw), ignored)


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
