"""Stored responses: retrieval, input items, deletion and listing, and the client view of stored items.

Encrypted reasoning is returned on request (`include`); reasoning that is stored in plain text is encrypted when it is
read. Image URLs and the results of searches and code are treated likewise (core/emitter/response_views.py).
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from antiphon.core.emitter.response_views import has_hidden_fields, hide_fields
from antiphon.core.encrypted_reasoning import apply_encryption
from antiphon.core.replay import Replay, decode_entries, reset_response
from antiphon.errors import InvalidValue, NotFound
from antiphon.ids import is_id, quote_id
from antiphon.offload import run_sized
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.lists import ItemsQuery, ListQuery, encode_list
from antiphon.protocol.types.request import Includable
from antiphon.service.keyring import Keyring
from antiphon.service.persistence import rows
from antiphon.service.persistence.stored_images import StoredImages, join_images
from antiphon.stores.base import RUNNING_STATUSES, StoredResponse
from antiphon.stores.live.base import LiveLog
from antiphon.stores.sql.store import Store

ItemView = Callable[[InputItem], InputItem]

# within a JSON string the quotes would be escaped
_ENCRYPTED_FIELD, _REASONING_TYPE = b'"encrypted_content":"', b'"type":"reasoning"'

_item_decoder = msgspec.json.Decoder(InputItem)

_LOG_COST = 4  # replaying a byte of a log takes as long as rendering so many bytes of JSON

OnDelete = Callable[[str, str], Awaitable[None]]  # called with the tenant and the response id

_MAX_PAGE_BYTES = 4 * 1024 * 1024  # responses in one page of a list; pages of long responses are shorter


class IncludeView:
    """Converts stored items to the view of a client, depending on `include`."""

    def __init__(self, keyring: Keyring, images: StoredImages | None = None) -> None:
        """`images`: None if they are stored in the rows."""
        self._keyring = keyring
        self.images = images

    async def render_response(self, tenant: str, body: bytes, include: Collection[Includable]) -> bytes:
        view_item = self.make_item_view(tenant, include)
        if self._needs_rendering(body, include):
            body = await run_sized(len(body), _render_response, body, view_item)
        return await join_images(self.images, tenant, body)

    def make_item_view(self, tenant: str, include: Collection[Includable]) -> ItemView:
        """Return a function that converts an item to its client view."""
        encrypts = "reasoning.encrypted_content" in include
        encrypt_item = self._keyring.make_encrypter(tenant) if encrypts else None
        return lambda item: hide_fields(apply_encryption(item, encrypt_item), include)

    def render_item(self, tenant: str, item: bytes | Raw, include: Collection[Includable]) -> bytes | Raw:
        """Return the client view of an item, or the same object if that does not differ."""
        if not self._needs_rendering(bytes(item), include):
            return item
        return encode(self.make_item_view(tenant, include)(_item_decoder.decode(item)))

    async def render_page(
        self, tenant: str, items: Sequence[tuple[str, bytes | Raw]], has_more: bool, include: Collection[Includable]
    ) -> bytes:
        """Return a page of stored items, given by their ids and JSON."""

        def render() -> bytes:
            return encode_list(
                [(item_id, self.render_item(tenant, item, include)) for item_id, item in items], has_more
            )

        size = sum([len(memoryview(item)) for _, item in items])
        return await join_images(self.images, tenant, await run_sized(size, render))

    def _needs_rendering(self, body: bytes, include: Collection[Includable]) -> bool:
        """Return whether the client view differs from the stored form."""
        encrypted_reasoning = "reasoning.encrypted_content" in include or _ENCRYPTED_FIELD in body
        return (_REASONING_TYPE in body and encrypted_reasoning) or has_hidden_fields(body, include)


def _render_response(body: bytes, view_item: ItemView) -> bytes:
    response = rows.decode_response(body)
    output: list[Any] = [view_item(item) for item in response.output]  # a view has the type of its item
    response.output = output
    return encode(response)


async def render_progress(live: LiveLog, tenant: str, row: StoredResponse) -> bytes:
    """Return the JSON of a running response; as it began if it has no live log, since only its client follows it."""
    batches = await live.read(tenant, row.id, -1)
    return await run_sized(_LOG_COST * sum(map(len, batches)), _replay_batches, row, batches)


def _replay_batches(row: StoredResponse, batches: Sequence[bytes]) -> bytes:
    replay = Replay(reset_response(rows.decode_response(row.response)), include_obfuscation=False)
    replay.open()
    for batch in batches:
        replay.feed(decode_entries(batch))
    response = replay.emitter.response
    response.status = row.status
    return encode(response)


def check_store_enabled(store_enabled: bool) -> None:
    if not store_enabled:
        raise NotFound("This server stores no responses or conversations: it was started with --disable-store.")


class StoredResponses(Struct, frozen=True, eq=False):
    _store: Store
    _live: LiveLog
    _on_delete: OnDelete
    _view: IncludeView
    _store_enabled: bool = True

    async def get(self, tenant: str, response_id: str, include: Collection[Includable] = ()) -> bytes:
        """Return the JSON of a response: the final one, or the initial one with the current status.

        A response that waits for tool outputs of its client includes all finished items, among them the calls.
        """
        row = await self._load_row(tenant, response_id, with_request=False)
        waits = row.waited and row.status in RUNNING_STATUSES
        body = await render_progress(self._live, tenant, row) if waits else rows.render_response(row)
        return await self._view.render_response(tenant, body, include)

    async def list_responses(self, tenant: str, query: ListQuery) -> bytes:
        """List the tenant's responses as `get` returns them, but without the items of running responses."""
        check_store_enabled(self._store_enabled)
        if query.after is not None and not is_id(query.after, "resp"):
            raise InvalidValue(f"There is no response {quote_id(query.after)} in this list.", param="after")
        descending = query.order == "desc"
        page = await self._store.page_responses(tenant, query.after, query.limit, descending, _MAX_PAGE_BYTES)
        bodies = [
            (row.id, await self._view.render_response(tenant, rows.render_response(row), ())) for row in page.rows
        ]
        return encode_list(bodies, page.has_more)

    async def delete(self, tenant: str, response_id: str) -> None:
        self.check_id(response_id)
        images = self._view.images
        held = [] if images is None else await images.list_held(tenant, response_id)
        if not await self._store.delete(tenant, response_id):
            raise rows.unknown_response_error(response_id)
        await self._on_delete(tenant, response_id)
        if images is not None:
            await images.delete_unused(held)

    async def list_input_items(self, tenant: str, response_id: str, query: ItemsQuery) -> bytes:
        """Return one page of the response's own input, without earlier items."""
        row = await self._load_row(tenant, response_id)
        items = await run_sized(len(row.request), rows.split_input, row.request)
        remaining = _items_after(items[::-1] if query.order == "desc" else items, query.after)
        page = remaining[: query.limit]
        return await self._view.render_page(tenant, page, len(remaining) > len(page), query.include)

    async def load_input(self, tenant: str, response_id: str) -> list[InputItem]:
        """Return the complete input, in the order in which it was sent."""
        row = await self._load_row(tenant, response_id)
        return await run_sized(len(row.request), rows.decode_input, row.request)

    def check_id(self, response_id: str) -> None:
        """Raise NotFound for an id that cannot exist, without a store lookup."""
        check_store_enabled(self._store_enabled)
        if not is_id(response_id, "resp"):
            raise rows.unknown_response_error(response_id)

    async def _load_row(self, tenant: str, response_id: str, with_request: bool = True) -> StoredResponse:
        self.check_id(response_id)
        return await rows.load_row(self._store, tenant, response_id, with_request)


def _items_after(items: list[tuple[str, Raw]], cursor: str | None) -> list[tuple[str, Raw]]:
    if cursor is None:
        return items
    for index, (item_id, _) in enumerate(items):
        if item_id == cursor:
            return items[index + 1 :]
    raise InvalidValue(f"There is no item {quote_id(cursor)} in the input of this response.", param="after")
