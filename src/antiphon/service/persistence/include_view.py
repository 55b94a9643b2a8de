"""Client view of stored items, depending on `include`, and of running responses.

Encrypted reasoning is returned on request; reasoning that is stored in plain text is encrypted when it is read. Image
URLs and the results of searches and code are treated likewise (core/emitter/response_views.py).

`render_progress` returns a running response with all finished items of its live log.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import msgspec

from antiphon.core import encrypted_reasoning
from antiphon.core.emitter.response_views import has_hidden_fields, hide_fields
from antiphon.core.encrypted_reasoning import Encrypt
from antiphon.core.replay import Replay, decode_entries, reset_response
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.request import Includable
from antiphon.service.encryption.keyring import Keyring
from antiphon.service.persistence.stored_request import decode_response
from antiphon.stores.base import StoredResponse
from antiphon.stores.live.base import LiveLog

ItemView = Callable[[InputItem], InputItem]

_MAX_INLINE_BYTES = 256 * 1024  # larger bodies are processed in a thread
_ENCRYPTED_FIELD, _REASONING_TYPE = (
    b'"encrypted_content":"',
    b'"type":"reasoning"',
)  # within a JSON string the quotes would be escaped

_item_decoder = msgspec.json.Decoder(InputItem)


class IncludeView:
    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    async def render_response(self, tenant: str, body: bytes, include: Collection[Includable]) -> bytes:
        view_item = self.make_item_view(tenant, include)
        if not self._needs_rendering(body, include):
            return body
        return (
            _render_response(body, view_item)
            if len(body) <= _MAX_INLINE_BYTES
            else await asyncio.to_thread(_render_response, body, view_item)
        )

    def make_item_view(self, tenant: str, include: Collection[Includable]) -> ItemView:
        """Return a function that converts an item to its client view."""
        return partial(_view_item, seal=self._make_encrypter(tenant, include), include=include)

    def render_item(self, tenant: str, body: bytes, include: Collection[Includable]) -> bytes:
        """Return the JSON of one item."""
        view_item = self.make_item_view(tenant, include)
        return encode(view_item(_item_decoder.decode(body))) if self._needs_rendering(body, include) else body

    def _needs_rendering(self, body: bytes, include: Collection[Includable]) -> bool:
        """Whether the client view differs from the stored form."""
        encrypted_reasoning = "reasoning.encrypted_content" in include or _ENCRYPTED_FIELD in body
        return (_REASONING_TYPE in body and encrypted_reasoning) or has_hidden_fields(body, include)

    def _make_encrypter(self, tenant: str, include: Collection[Includable]) -> Encrypt | None:
        return self._keyring.make_encrypter(tenant) if "reasoning.encrypted_content" in include else None


def _view_item(item: InputItem, seal: Encrypt | None, include: Collection[Includable]) -> InputItem:
    return hide_fields(encrypted_reasoning.apply_encryption(item, seal), include)


def _render_response(body: bytes, view_item: ItemView) -> bytes:
    response = decode_response(body)
    output: list[Any] = [view_item(item) for item in response.output]  # a view has the type of its item
    response.output = output
    return encode(response)


_MAX_INLINE_LOG_BYTES = 64 * 1024  # larger logs are replayed in a thread


async def render_progress(live: LiveLog, tenant: str, row: StoredResponse) -> bytes:
    """Return the JSON of a running response. One without a live log (only its own client follows it) is returned as it
    began.
    """
    batches = await live.read(tenant, row.id, -1)
    if sum(map(len, batches)) <= _MAX_INLINE_LOG_BYTES:
        return _replay_batches(row, batches)
    return await asyncio.to_thread(_replay_batches, row, batches)


def _replay_batches(row: StoredResponse, batches: Sequence[bytes]) -> bytes:
    replay = Replay(reset_response(decode_response(row.response)), include_obfuscation=False)
    replay.open()
    for batch in batches:
        replay.feed(decode_entries(batch))
    response = replay.emitter.response
    response.status = row.status
    return encode(response)
