"""How the tests of requests hand them over."""

import json
from typing import Any

from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import Decoded, decode_create
from antiphon.protocol.types.request import CreateResponse

LIMITS = Limits()


def decode(body: Any, limits: Limits = LIMITS) -> Decoded:
    return decode_create(body if isinstance(body, bytes) else json.dumps(body).encode(), limits)


def request(**fields: Any) -> CreateResponse:
    return decode(fields).request
