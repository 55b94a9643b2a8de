"""Helpers that decode create requests."""

import json
from typing import Any

from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import DecodedRequest, decode_create
from antiphon.protocol.types.request import CreateResponse

LIMITS = Limits()


def decode(body: Any, limits: Limits = LIMITS) -> DecodedRequest:
    return decode_create(body if isinstance(body, bytes) else json.dumps(body).encode(), limits)


def decode_fields(**fields: Any) -> CreateResponse:
    return decode(fields).request
