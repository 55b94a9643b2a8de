"""Conversations: made, changed and read. Nothing here runs; a response adds its own items when it ends.

Every item that is kept has an id of ours and a status. A reference puts the item itself into the conversation, under
the id that it has: the same item may stand in many of them.
"""

from collections.abc import Collection, Sequence
from time import time

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import BadRequest, InvalidValue, NotFound, UnknownConversation
from antiphon.ids import is_id, is_item_id, new_id
from antiphon.limits import Limits
from antiphon.protocol.decoding.checks import check_conversation_id
from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.decoding.stored_items import keep
from antiphon.protocol.types.conversation import Conversation, CreateConversation
from antiphon.protocol.types.items import CompactionTrigger, InputItem, ItemReference
from antiphon.protocol.types.lists import ConversationList, ItemsQuery, ListQuery, written_list
from antiphon.protocol.types.request import Includable
from antiphon.service.encryption.keyring import Keyring
from antiphon.service.persistence.history_loader import Past
from antiphon.service.persistence.include_view import Showing
from antiphon.service.persistence.stored_responses import check_keeps
from antiphon.service.prompting.compaction_items import verified
from antiphon.stores.base import ConversationRow, ItemRow, Store

_SHOWN = 64  # characters of an id that was sent


class Place(Struct, frozen=True):
    """Whose conversation, and which; the id is one that we could have made."""

    tenant: str
    id: str


class Conversations:
    def __init__(self, store: Store, past: Past, limits: Limits, keyring: Keyring, keeps: bool = True) -> None:
        self._store = store
        self._past = past
        self._keyring = keyring
        self._showing = Showing(keyring)
        self._limits = limits
        self._keeps = keeps

    def at(self, tenant: str, conversation_id: str) -> Place:
        check_keeps(self._keeps)
        check_conversation_id(conversation_id, "conversation_id")
        if not is_id(conversation_id, "conv"):
            raise _unknown(conversation_id)
        return Place(tenant, conversation_id)

    async def create(self, tenant: str, asked: CreateConversation) -> Conversation:
        check_keeps(self._keeps)
        row = ConversationRow(new_id("conv"), time(), asked.metadata)
        await self._store.create_conversation(tenant, row, await self._rows(tenant, asked.items))
        return _shown(row)

    async def all(self, tenant: str, asked: ListQuery) -> ConversationList:
        """A page of the tenant's own."""
        check_keeps(self._keeps)
        if asked.after is not None and not is_id(asked.after, "conv"):
            raise InvalidValue(f"There is no conversation {asked.after[:_SHOWN]!r} in this list.", param="after")
        page = await self._store.page_conversations(tenant, asked.after, asked.limit, asked.order == "desc")
        first, last = (page.rows[0].id, page.rows[-1].id) if page.rows else ("", "")
        return ConversationList(data=[*map(_shown, page.rows)], first_id=first, last_id=last, has_more=page.has_more)

    async def get(self, at: Place) -> Conversation:
        row = await self._store.conversation(at.tenant, at.id)
        if row is None:
            raise _unknown(at.id)
        return _shown(row)

    async def update(self, at: Place, changes: dict[str, str | None]) -> Conversation:
        if not changes:
            return await self.get(at)
        row = await self._store.merge_metadata(at.tenant, at.id, changes, self._limits.metadata_pairs)
        if row is None:
            raise _unknown(at.id)
        return _shown(row)

    async def delete(self, at: Place) -> None:
        if not await self._store.delete_conversation(at.tenant, at.id):
            raise _unknown(at.id)

    async def add(self, at: Place, items: list[InputItem], include: Collection[Includable] = ()) -> bytes:
        """The list of what was added."""
        await self.get(at)  # before references are looked up
        rows = await self._rows(at.tenant, items)
        if not await self._store.add_items(at.tenant, at.id, rows, self._limits.items):
            raise _unknown(at.id)
        return self._list(at, rows, include, False)

    async def page(self, at: Place, asked: ItemsQuery) -> bytes:
        if asked.after is not None and not is_item_id(asked.after):
            raise InvalidValue(f"There is no item {asked.after[:_SHOWN]!r} in this conversation.", param="after")
        descending = asked.order == "desc"
        page = await self._store.page_items(at.tenant, at.id, asked.after, asked.limit, descending)
        if page is None:
            raise _unknown(at.id)
        return self._list(at, page.rows, asked.include, page.has_more)

    async def item(self, at: Place, item_id: str, include: Collection[Includable] = ()) -> bytes:
        item = await self._store.item(at.tenant, at.id, item_id) if is_item_id(item_id) else None
        if item is None:
            raise await self._missing(at, item_id)
        return self._showing.item(at.tenant, item, include)

    async def delete_item(self, at: Place, item_id: str) -> Conversation:
        """The conversation that it was in."""
        if not (is_item_id(item_id) and await self._store.delete_item(at.tenant, at.id, item_id)):
            raise await self._missing(at, item_id)
        return await self.get(at)

    def _list(self, at: Place, rows: Sequence[ItemRow], include: Collection[Includable], has_more: bool) -> bytes:
        shown = [(row.id, self._showing.item(at.tenant, row.item, include)) for row in rows]
        return written_list(shown, has_more)

    async def _missing(self, at: Place, item_id: str) -> NotFound:
        await self.get(at)
        return NotFound(f"There is no item {item_id[:_SHOWN]!r} in the conversation '{at.id}'.")

    async def _rows(self, tenant: str, items: list[InputItem]) -> list[ItemRow]:
        """What came sealed is kept as it was thought: its key may be gone when it is needed."""
        items, _ = await self._keyring.opened(tenant, items, "items")
        await verified(self._keyring, tenant, items, "items")
        for index, item in enumerate(items):
            if type(item) is CompactionTrigger:
                raise InvalidValue("A compaction_trigger is for the input of a response.", param=f"items[{index}]")
        kept = keep([item for item in items if not isinstance(item, ItemReference)], new_id)
        ours = iter(kept)
        rows = [
            await self._shared(tenant, index, item) if isinstance(item, ItemReference) else _row(next(ours))
            for index, item in enumerate(items)
        ]
        if len({row.id for row in rows}) < len(rows):
            raise InvalidValue("'items' refers to one item twice.", param="items")
        return rows

    async def _shared(self, tenant: str, index: int, reference: ItemReference) -> ItemRow:
        name = str(reference.id)
        try:
            (item,) = await self._past.resolve(tenant, [reference])
        except BadRequest:
            raise InvalidValue(f"There is no item {name[:_SHOWN]!r}.", param=f"items[{index}].id") from None
        return _row(replace(item, id=name))


def _row(item: InputItem) -> ItemRow:
    return ItemRow(str(item.id), encode(item))


def _shown(row: ConversationRow) -> Conversation:
    return Conversation(id=row.id, created_at=int(row.created), metadata=row.metadata)


def _unknown(conversation_id: str) -> UnknownConversation:
    return UnknownConversation(f"There is no conversation {conversation_id[:_SHOWN]!r}.")
