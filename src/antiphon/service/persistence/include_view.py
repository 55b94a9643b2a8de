"""What is stored, as a client sees it that asked for more by `include`, or did not.

Sealed reasoning is shown on request. What was not sealed when it was made is sealed when it is read. So are addresses
of pictures, and what searches and code gave (core/emitter/response_views.py).

How far a running response is, by what its live log says: with all items that are done.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import msgspec

from antiphon.core import encrypted_reasoning
from antiphon.core.emitter.response_views import hides, within
from antiphon.core.encrypted_reasoning import Seal
from antiphon.core.replay.replay import Replay, decode_entries, reopened
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.request import Includable
from antiphon.service.encryption.keyring import Keyring
from antiphon.service.persistence.stored_request import response_of
from antiphon.stores.base import StoredResponse
from antiphon.stores.live.base import LiveLog

Show = Callable[[InputItem], InputItem]

_AT_ONCE = 256 * 1024  # bytes that are read where they are asked for; more goes to a thread
_SEALED, _REASONS = b'"encrypted_content":"', b'"type":"reasoning"'  # in a text the quotes would be escaped

_item = msgspec.json.Decoder(InputItem)


class Showing:
    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    async def response(self, tenant: str, body: bytes, include: Collection[Includable]) -> bytes:
        show = self.items(tenant, include)
        if not self._concerns(body, include):
            return body
        return _response(body, show) if len(body) <= _AT_ONCE else await asyncio.to_thread(_response, body, show)

    def items(self, tenant: str, include: Collection[Includable]) -> Show:
        return partial(_shown, seal=self._seal(tenant, include), include=include)

    def item(self, tenant: str, body: bytes, include: Collection[Includable]) -> bytes:
        """One item's JSON."""
        show = self.items(tenant, include)
        return encode(show(_item.decode(body))) if self._concerns(body, include) else body

    def _concerns(self, body: bytes, include: Collection[Includable]) -> bool:
        """Is it other than it is kept?"""
        encrypted_reasoning = "reasoning.encrypted_content" in include or _SEALED in body
        return (_REASONS in body and encrypted_reasoning) or hides(body, include)

    def _seal(self, tenant: str, include: Collection[Includable]) -> Seal | None:
        return self._keyring.seals(tenant) if "reasoning.encrypted_content" in include else None


def _shown(item: InputItem, seal: Seal | None, include: Collection[Includable]) -> InputItem:
    return within(encrypted_reasoning.shown(item, seal), include)


def _response(body: bytes, show: Show) -> bytes:
    response = response_of(body)
    output: list[Any] = [show(item) for item in response.output]  # of the kind that it is
    response.output = output
    return encode(response)


_LOG_AT_ONCE = 64 * 1024  # bytes of a log that are read where they are asked for; more goes to a thread


async def so_far(live: LiveLog, tenant: str, row: StoredResponse) -> bytes:
    """The JSON of it. One that only its own client can follow has no live log, and looks as it began."""
    batches = await live.read(tenant, row.id, -1)
    if sum(map(len, batches)) <= _LOG_AT_ONCE:
        return _told(row, batches)
    return await asyncio.to_thread(_told, row, batches)


def _told(row: StoredResponse, batches: Sequence[bytes]) -> bytes:
    replay = Replay(reopened(response_of(row.response)), obfuscates=False)
    replay.open()
    for batch in batches:
        replay.feed(decode_entries(batch))
    response = replay.emitter.response
    response.status = row.status
    return encode(response)
