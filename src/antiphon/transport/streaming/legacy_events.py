"""The one place where events become what older clients read, just before they become bytes: streams, replays, sockets.

Without a flag that asks for it nothing is retold, and nothing here is called.
"""

from collections.abc import Sequence
from time import time

from msgspec import Struct

from antiphon.config import Config
from antiphon.core.emitter.legacy_events import Beside, LegacyEvents, ReasoningNames, Retelling
from antiphon.core.emitter.response_views import IMAGES as IMAGES
from antiphon.protocol.types.event_bases import Event
from antiphon.protocol.types.events import Keepalive
from antiphon.protocol.types.items import InputItem, Message
from antiphon.protocol.types.legacy_events import Ping, RateLimit
from antiphon.protocol.types.parts import InputImage
from antiphon.protocol.types.request import CreateResponse
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.rate_limiting import Metering
from antiphon.transport.streaming import sse


class Manner(Struct, frozen=True, kw_only=True):
    """How the operator wants streams to be told."""

    names: ReasoningNames
    legacy: LegacyEvents
    metering: Metering | None = None

    def open(self, request: Request, urls: Sequence[str] = (), after: int = -1) -> "Retold":
        """For one stream. `urls`: of the pictures that its request shows, if they were asked for."""
        limits = [] if self.metering is None else _limits(self.metering, request)
        beside = Beside(image_urls=urls, rate_limits=limits, after=after)
        return Retold(Retelling(self.names, self.legacy, beside), pings=self.legacy != "off")


def manner(config: Config, metering: Metering | None = None) -> Manner | None:
    """None: as everybody knows them."""
    if config.reasoning_events == "openai" and config.legacy_events == "off":
        return None
    return Manner(names=config.reasoning_events, legacy=config.legacy_events, metering=metering)


class Retold:
    """What a stream's events are made into."""

    def __init__(self, retell: Retelling, pings: bool) -> None:
        self.retell = retell
        self._pings = pings

    def frames(self, events: list[Event]) -> bytes:
        told = self.retell(events)
        return sse.frames(told) if told else b""

    def keepalive(self, last: Event | None) -> bytes:
        return b"" if last is None else sse.frames([self.sign_of_life(last)])

    def sign_of_life(self, last: Event) -> Event:
        """After that event; it counts as none."""
        if self._pings:
            return Ping(sequence_number=last.sequence_number, timestamp=round(time(), 3))
        return Keepalive(sequence_number=last.sequence_number)


def asked_urls(request: CreateResponse) -> list[str]:
    """Of the pictures in the input, if the request includes them."""
    return image_urls(request.input) if IMAGES in request.include else []


def image_urls(items: Sequence[InputItem]) -> list[str]:
    parts = [part for item in items if isinstance(item, Message) for part in item.content]
    return [part.image_url for part in parts if isinstance(part, InputImage) and isinstance(part.image_url, str)]


def _limits(metering: Metering, request: Request) -> list[RateLimit]:
    named = zip(("requests", "tokens"), metering.standing(request), strict=True)
    return [
        RateLimit(name=name, limit=one.limit, remaining=one.remaining, reset_seconds=round(one.reset, 3))
        for name, one in named
        if one is not None
    ]
