"""What is stored, as a client sees it that asked for more by `include`, or did not.

Sealed reasoning is shown on request. What was not sealed when it was made is sealed when it is read.
"""

import asyncio
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from antiphon.core import sealed
from antiphon.core.sealed import Seal
from antiphon.protocol.codec import encode
from antiphon.protocol.items import InputItem, Reasoning
from antiphon.protocol.request import Includable
from antiphon.service.record import response_of
from antiphon.service.sealing import Keyring

Show = Callable[[InputItem], InputItem]

_AT_ONCE = 256 * 1024  # bytes that are read where they are asked for; more goes to a thread
_SEALED, _REASONS = b'"encrypted_content":"', b'"type":"reasoning"'  # in a text the quotes would be escaped

_item = msgspec.json.Decoder(InputItem)


class Showing:
    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    async def response(self, tenant: str, body: bytes, include: Collection[Includable]) -> bytes:
        seal = self._seal(tenant, include)
        if not _concerns(body, seal):
            return body
        return _response(body, seal) if len(body) <= _AT_ONCE else await asyncio.to_thread(_response, body, seal)

    def items(self, tenant: str, include: Collection[Includable]) -> Show:
        return partial(sealed.shown, seal=self._seal(tenant, include))

    def item(self, tenant: str, body: bytes, include: Collection[Includable]) -> bytes:
        """One item's JSON."""
        seal = self._seal(tenant, include)
        return encode(sealed.shown(_item.decode(body), seal)) if _concerns(body, seal) else body

    def _seal(self, tenant: str, include: Collection[Includable]) -> Seal | None:
        return self._keyring.seals(tenant) if "reasoning.encrypted_content" in include else None


def _concerns(body: bytes, seal: Seal | None) -> bool:
    return _REASONS in body and (seal is not None or _SEALED in body)


def _response(body: bytes, seal: Seal | None) -> bytes:
    response = response_of(body)
    response.output = [
        sealed.shown_reasoning(item, seal) if isinstance(item, Reasoning) else item for item in response.output
    ]
    return encode(response)
