"""What the endpoints of chat and completions share: a body is read, an exchange opened and delivered."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from antiphon.core.dialects.chat.request import AskedChat
from antiphon.core.dialects.completions.request import AskedCompletion
from antiphon.limits import Limits
from antiphon.service.chat import Opened
from antiphon.transport.decoding import decoded
from antiphon.transport.exchanges import ExchangeDelivery
from antiphon.transport.http import Request, Route
from antiphon.transport.users import note_user

A = TypeVar("A", bound=AskedChat | AskedCompletion)
Read = Callable[[bytes, Limits], A]
Open = Callable[[str, A], Awaitable[Opened]]  # for a tenant


class Dialogue(Generic[A]):
    def __init__(self, read: Read[A], open: Open[A], limits: Limits, ping_interval: float) -> None:
        self._read = read
        self._open = open
        self._limits = limits
        self._delivery = ExchangeDelivery(ping_interval)

    def route(self, **about: Any) -> Route:
        """`about`: what is particular to it."""
        errors = (400, 404, 413, 415, 429, 500, 503)
        return Route(method="POST", endpoint=self.create, new_work=True, errors=errors, **about)

    async def create(self, request: Request) -> None:
        asked = await decoded(await request.read_body(self._limits), self._read, self._limits)
        opened = await self._open(request.tenant, asked)
        request.ignored = opened.ignored
        note_user(request.id, asked.decoded.request)
        deliver = self._delivery.stream if asked.request.stream else self._delivery.result
        await deliver(request, opened.exchange)
