"""A request that could run now: everything about it is settled, and nobody has taken a place for it."""

from msgspec import Struct

from antiphon.engines.base import Capabilities
from antiphon.protocol.codec import Decoded
from antiphon.service.models import Served
from antiphon.service.prepare import Prepared


class Settled(Struct, frozen=True, kw_only=True):
    tenant: str
    decoded: Decoded  # references resolved
    served: Served
    able: Capabilities
    prepared: Prepared
    ignored: list[str]
