"""Conversations: create, read, update and delete. Nothing runs here; a response appends its own items when it ends.

Every stored item has an id of this server and a status. An item reference adds the referenced item under its existing
id, so the same item may belong to several conversations.
"""

from collections.abc import Collection, Sequence
from time import time

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import BadRequest, InvalidValue, NotFound, UnknownConversation
from antiphon.ids import is_id, is_item_id, new_id, quote_id
from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_conversation_id
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.decoding.stored_items import assign_ids, is_reference
from antiphon.protocol.types.conversation import Conversation, CreateConversation
from antiphon.protocol.types.items import CompactionTrigger, InputItem
from antiphon.protocol.types.lists import ConversationList, ItemsQuery, ListQuery
from antiphon.protocol.types.request import Includable
from antiphon.service.keyring import Keyring
from antiphon.service.persistence.history_loader import HistoryLoader
from antiphon.service.persistence.stored_images import StoredImages, join_images
from antiphon.service.persistence.stored_responses import IncludeView, check_store_enabled
from antiphon.stores.base import ConversationRow, ItemRow
from antiphon.stores.sql.store import Store


class ConversationKey(Struct, frozen=True):
    """Tenant and well-formed id of a conversation."""

    tenant: str
    id: str


class Conversations(Struct, frozen=True, eq=False):
    _store: Store
    _history: HistoryLoader
    _limits: Limits
    _keyring: Keyring
    _store_enabled: bool = True
    _images: StoredImages | None = None  # None: images are stored in the rows

    def resolve_key(self, tenant: str, conversation_id: str) -> ConversationKey:
        """Validate the id. Raises UnknownConversation for an id that this server cannot have issued."""
        check_store_enabled(self._store_enabled)
        check_conversation_id(conversation_id, "conversation_id")
        if not is_id(conversation_id, "conv"):
            raise _unknown_error(conversation_id)
        return ConversationKey(tenant, conversation_id)

    async def create(self, tenant: str, request: CreateConversation) -> Conversation:
        check_store_enabled(self._store_enabled)
        row = ConversationRow(new_id("conv"), time(), request.metadata)
        await self._store.create_conversation(tenant, row, await self._make_rows(tenant, request.items))
        return _to_conversation(row)

    async def list_conversations(self, tenant: str, query: ListQuery) -> ConversationList:
        """Return one page of the tenant's conversations."""
        check_store_enabled(self._store_enabled)
        if query.after is not None and not is_id(query.after, "conv"):
            raise InvalidValue(f"There is no conversation {quote_id(query.after)} in this list.", param="after")
        page = await self._store.page_conversations(tenant, query.after, query.limit, query.order == "desc")
        return ConversationList.make(map(_to_conversation, page.rows), page.has_more)

    async def get(self, key: ConversationKey) -> Conversation:
        if (row := await self._store.conversation(key.tenant, key.id)) is None:
            raise _unknown_error(key.id)
        return _to_conversation(row)

    async def update(self, key: ConversationKey, changes: dict[str, str | None]) -> Conversation:
        if not changes:
            return await self.get(key)
        row = await self._store.merge_metadata(key.tenant, key.id, changes, self._limits.metadata_pairs)
        if row is None:
            raise _unknown_error(key.id)
        return _to_conversation(row)

    async def delete(self, key: ConversationKey) -> None:
        if not await self._store.delete_conversation(key.tenant, key.id):
            raise _unknown_error(key.id)

    async def add_items(
        self, key: ConversationKey, items: list[InputItem], include: Collection[Includable] = ()
    ) -> bytes:
        """Append items, which are taken out of their list, and return the page of them."""
        await self.get(key)  # an unknown conversation is reported before unknown references
        rows = await self._make_rows(key.tenant, items)
        items.clear()  # they may be large, and the page is made from their rows
        if not await self._store.add_items(key.tenant, key.id, rows, self._limits.items):
            raise _unknown_error(key.id)
        return await self._render_list(key, rows, include, False)

    async def list_items(self, key: ConversationKey, query: ItemsQuery) -> bytes:
        if query.after is not None and not is_item_id(query.after):
            raise InvalidValue(f"There is no item {quote_id(query.after)} in this conversation.", param="after")
        page = await self._store.page_items(key.tenant, key.id, query.after, query.limit, query.order == "desc")
        if page is None:
            raise _unknown_error(key.id)
        return await self._render_list(key, page.rows, query.include, page.has_more)

    async def get_item(self, key: ConversationKey, item_id: str, include: Collection[Includable] = ()) -> bytes:
        item = await self._store.item(key.tenant, key.id, item_id) if is_item_id(item_id) else None
        if item is None:
            raise await self._missing_item_error(key, item_id)
        body = IncludeView(self._keyring).render_item(key.tenant, item, include)
        return await join_images(self._images, key.tenant, bytes(body))

    async def delete_item(self, key: ConversationKey, item_id: str) -> Conversation:
        if not (is_item_id(item_id) and await self._store.delete_item(key.tenant, key.id, item_id)):
            raise await self._missing_item_error(key, item_id)
        return await self.get(key)

    async def _render_list(
        self, key: ConversationKey, rows: Sequence[ItemRow], include: Collection[Includable], has_more: bool
    ) -> bytes:
        view = IncludeView(self._keyring, self._images)
        return await view.render_page(key.tenant, [(row.id, row.item) for row in rows], has_more, include)

    async def _missing_item_error(self, key: ConversationKey, item_id: str) -> NotFound:
        await self.get(key)
        return NotFound(f"There is no item {quote_id(item_id)} in the conversation '{key.id}'.", param="item_id")

    async def _make_rows(self, tenant: str, items: list[InputItem]) -> list[ItemRow]:
        """Convert items to rows. Encrypted reasoning is stored decrypted: its key may be gone when it is needed."""
        items, _ = await self._keyring.decrypt_items(tenant, items, "items")
        await self._keyring.verify_compactions(tenant, items, "items")
        for index, item in enumerate(items):
            if type(item) is CompactionTrigger:
                raise InvalidValue(
                    "A compaction_trigger is allowed only in the input of a response.", param=f"items[{index}]"
                )
        remaining = iter(assign_ids([item for item in items if not is_reference(item)], new_id))
        rows = [
            await self._resolve_reference(tenant, index, item) if is_reference(item) else _make_row(next(remaining))
            for index, item in enumerate(items)
        ]
        if len({row.id for row in rows}) < len(rows):
            raise InvalidValue("'items' refers to one item twice.", param="items")
        return rows

    async def _resolve_reference(self, tenant: str, index: int, reference: InputItem) -> ItemRow:
        name = str(reference.id)
        try:
            (item,) = await self._history.resolve_references(tenant, [reference])
        except BadRequest:
            raise InvalidValue(f"There is no item {quote_id(name)}.", param=f"items[{index}].id") from None
        return _make_row(replace(item, id=name))


def _make_row(item: InputItem) -> ItemRow:
    return ItemRow(str(item.id), encode(item))


def _to_conversation(row: ConversationRow) -> Conversation:
    return Conversation(id=row.id, created_at=int(row.created), metadata=row.metadata)


def _unknown_error(conversation_id: str) -> UnknownConversation:
    return UnknownConversation(f"There is no conversation {quote_id(conversation_id)}.", param="conversation_id")
