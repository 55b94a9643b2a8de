"""Converts events for older clients, just before they are encoded: in streams, replays and WebSockets.

Unless a flag of the operator enables it, nothing is converted and nothing here is called.
"""

from collections.abc import Sequence
from time import time

from msgspec import Struct

from antiphon.config import Config
from antiphon.core.emitter.legacy_events import LegacyEventAdapter, LegacyEventContext, LegacyEvents, ReasoningNames
from antiphon.core.emitter.response_views import IMAGES
from antiphon.protocol.types.events import Event, Keepalive
from antiphon.protocol.types.items import InputItem, Message
from antiphon.protocol.types.legacy_events import Ping, RateLimit
from antiphon.protocol.types.parts import InputImage
from antiphon.protocol.types.request import CreateResponse
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.rate_limiting import RateLimitingMiddleware
from antiphon.transport.streaming import sse


class LegacyFormat(Struct, frozen=True, kw_only=True):
    """The format of events in streams, as the operator configured it."""

    names: ReasoningNames
    legacy: LegacyEvents
    rate_limiting: RateLimitingMiddleware | None = None

    def open_stream(self, request: Request, urls: Sequence[str] = (), after: int = -1) -> "LegacyStream":
        """Start the conversion of one stream.

        `urls`: the images of its request, if included. `after`: sequence number of the last event that the client has.
        """
        limits = [] if self.rate_limiting is None else _read_limits(self.rate_limiting, request)
        extras = LegacyEventContext(image_urls=urls, rate_limits=limits, after_sequence=after)
        return LegacyStream(LegacyEventAdapter(self.names, self.legacy, extras), pings=self.legacy != "off")


def legacy_format_from_config(
    config: Config, rate_limiting: RateLimitingMiddleware | None = None
) -> LegacyFormat | None:
    """Return the configured format; None for the standard one."""
    if config.compatibility.reasoning_events == "openai" and config.compatibility.legacy_events == "off":
        return None
    return LegacyFormat(
        names=config.compatibility.reasoning_events,
        legacy=config.compatibility.legacy_events,
        rate_limiting=rate_limiting,
    )


class LegacyStream:
    """Converts and encodes the events of one stream."""

    def __init__(self, convert: LegacyEventAdapter, pings: bool) -> None:
        self.convert = convert
        self._pings = pings

    def encode(self, events: list[Event]) -> bytes:
        converted = self.convert(events)
        return sse.encode_events(converted) if converted else b""

    def encode_keepalive(self, last: Event | None) -> bytes:
        return b"" if last is None else sse.encode_events([self.make_keepalive(last)])

    def make_keepalive(self, last: Event) -> Event:
        """Make a keep-alive that repeats the sequence number of `last`, so that it does not count as an event."""
        if self._pings:
            return Ping(sequence_number=last.sequence_number, timestamp=round(time(), 3))
        return Keepalive(sequence_number=last.sequence_number)


def included_image_urls(request: CreateResponse) -> list[str]:
    """Return the URLs of the images in the input, if the request's `include` names them."""
    return collect_image_urls(request.input) if IMAGES in request.include else []


def collect_image_urls(items: Sequence[InputItem]) -> list[str]:
    parts = [part for item in items if isinstance(item, Message) for part in item.content]
    return [part.image_url for part in parts if isinstance(part, InputImage) and isinstance(part.image_url, str)]


def _read_limits(rate_limiting: RateLimitingMiddleware, request: Request) -> list[RateLimit]:
    statuses = zip(("requests", "tokens"), rate_limiting.limit_status(request), strict=True)
    return [
        RateLimit(name=name, limit=status.limit, remaining=status.remaining, reset_seconds=round(status.reset, 3))
        for name, status in statuses
        if status is not None
    ]
