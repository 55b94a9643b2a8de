"""Conversations and their items.

Appending items updates the conversation's row first; its row lock serialises concurrent blocks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.errors import InvalidValue
from antiphon.stores.base import ConversationRow, ItemRow, Page
from antiphon.stores.sql import totals
from antiphon.stores.sql.files import share_images
from antiphon.stores.sql.operation import (
    Operation,
    direction,
    inline,
    read_pieces,
    remove_pieces,
    sanitise_id,
    sql,
    start_id,
    write_pieces,
)

_TENANT_CONVERSATIONS = "FROM conversations WHERE tenant = $1 AND expires IS NULL"
_VISIBLE = "tenant = $1 AND id = $2 AND expires IS NULL"
_INSERT = """
INSERT INTO conversations (tenant, id, created, used, expires, next, items, bytes, metadata)
VALUES ($1, $2, $3, $4, NULL, 0, 0, 0, $5) ON CONFLICT (tenant, id) DO NOTHING RETURNING next
"""
_SELECT = f"SELECT id, created, metadata FROM conversations WHERE {_VISIBLE}"
_TOUCH = f"UPDATE conversations SET used = $3 WHERE {_VISIBLE} RETURNING id"
_SET_METADATA = f"UPDATE conversations SET metadata = $3, used = $4 WHERE {_VISIBLE}"
_CLOSE = f"UPDATE conversations SET expires = $3, metadata = '{{}}' WHERE {_VISIBLE} RETURNING id"
_RESERVE = f"""
UPDATE conversations SET next = next + $3, items = items + $3, bytes = bytes + $4, used = $5 WHERE {_VISIBLE}
RETURNING next, items
"""
# An item occurs in a conversation once; after its deletion it may be added again.
_INSERT_ITEM = """
INSERT INTO items (tenant, conversation, position, id, bytes, item) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, id, conversation) DO UPDATE SET
    position = excluded.position, bytes = excluded.bytes, item = excluded.item
WHERE items.item IS NULL
RETURNING position
"""
_SUBTRACT = f"UPDATE conversations SET items = items - $3, bytes = bytes - $4 WHERE {_VISIBLE}"
_ITEM = "tenant = $1 AND conversation = $2 AND id = $3"
_SELECT_ITEM = f"""
SELECT item FROM items WHERE {_ITEM} AND item IS NOT NULL AND EXISTS (SELECT 1 FROM conversations WHERE {_VISIBLE})
"""
_FIND_ITEM = """
SELECT i.conversation, i.item FROM items i JOIN conversations c ON c.tenant = i.tenant AND c.id = i.conversation
WHERE i.tenant = $1 AND i.id = $2 AND i.item IS NOT NULL AND (c.expires IS NULL OR c.expires > $3) LIMIT 1
"""
_AFTER_LAST = 2**62  # greater than every position

_metadata_decoder = msgspec.json.Decoder(dict[str, str])


def create(tenant: str, row: ConversationRow, items: Sequence[ItemRow]) -> Operation[None]:
    if (yield sql(_INSERT, tenant, row.id, row.created, row.created, _encode_metadata(row.metadata))):
        size = yield from append(tenant, row.id, items, row.created)
        yield totals.record(tenant, row.id, size=size, conversations=1)


def get(tenant: str, conversation_id: str) -> Operation[ConversationRow | None]:
    rows = yield sql(_SELECT, tenant, sanitise_id(conversation_id))
    return _to_conversation_row(rows[0]) if rows else None


def touch(tenant: str, conversation_id: str, now: float) -> Operation[bool]:
    """Update the time of last use. Returns False if the conversation does not exist."""
    return bool((yield sql(_TOUCH, tenant, sanitise_id(conversation_id), now)))


def merge_metadata(
    now: float, tenant: str, conversation_id: str, changes: Mapping[str, str | None], max_pairs: int
) -> Operation[ConversationRow | None]:
    """Merge changes into the metadata; None deletes a key. Raises InvalidValue above `max_pairs` pairs."""
    rows = yield sql(f"{_SELECT} {{lock}}", tenant, sanitise_id(conversation_id))
    if not rows:
        return None
    row = _to_conversation_row(rows[0])
    merged = {name: value for name, value in {**row.metadata, **changes}.items() if value is not None}
    if len(merged) > max_pairs:
        raise InvalidValue(f"Metadata has at most {max_pairs} pairs; there would be {len(merged)}.", param="metadata")
    yield sql(_SET_METADATA, tenant, row.id, _encode_metadata(merged), now)
    return ConversationRow(row.id, row.created, merged)


def delete(tenant: str, conversation_id: str, expires: float) -> Operation[bool]:
    rows = yield sql(_CLOSE, tenant, sanitise_id(conversation_id), expires)
    if rows:
        yield totals.record(tenant, conversation_id, conversations=-1)
    return bool(rows)


def add_items(
    now: float, tenant: str, conversation_id: str, items: Sequence[ItemRow], max_items: int
) -> Operation[bool]:
    """Append the items as one block. Returns False if there is no such conversation.

    Raises InvalidValue above `max_items` items.
    """
    appended = yield from _append_block(tenant, conversation_id, items, now)
    if appended is None:
        return False
    count, size = appended
    if count > max_items:
        raise InvalidValue(f"A conversation has at most {max_items} items; there would be {count}.", param="items")
    yield totals.record(tenant, conversation_id, size=size)
    return True


def append(tenant: str, conversation_id: str, items: Sequence[ItemRow], now: float) -> Operation[int]:
    """Append the items if the conversation still exists. Returns the added bytes, for the caller to record."""
    appended = yield from _append_block(tenant, conversation_id, items, now)
    return 0 if appended is None else appended[1]


def all_items(tenant: str, conversation_id: str) -> Operation[list[bytes] | None]:
    """Return all items in order; None if there is no such conversation."""
    page = yield from _select_page(tenant, conversation_id, "> $3 ORDER BY position", -1, _AFTER_LAST)
    return None if page is None else [row.item for row in page]


def page_items(
    tenant: str, conversation_id: str, after: str | None, limit: int, descending: bool
) -> Operation[Page[ItemRow] | None]:
    """Return one page. Raises InvalidValue(param="after") if the cursor is not an item of this conversation."""
    start = _AFTER_LAST if descending else -1
    if after is not None and (yield from get(tenant, conversation_id)) is not None:
        start = yield from _find_position(tenant, conversation_id, after)
    order = "< $3 ORDER BY position DESC" if descending else "> $3 ORDER BY position"
    page = yield from _select_page(tenant, conversation_id, order, start, limit + 1)
    return None if page is None else Page(page[:limit], len(page) > limit)


def page_conversations(
    tenant: str, after: str | None, limit: int, descending: bool
) -> Operation[Page[ConversationRow]]:
    """Return one page of conversations, ordered by id. Raises InvalidValue for an unknown cursor."""
    start = yield from start_id("conversations", tenant, after, descending)
    comparison, order = direction(descending)
    selection = f"{_TENANT_CONVERSATIONS} AND id {comparison} $2 ORDER BY id {order} LIMIT $3"
    rows = yield sql(f"SELECT id, created, metadata {selection}", tenant, start, limit + 1)
    return Page([_to_conversation_row(row) for row in rows[:limit]], len(rows) > limit)


def get_item(tenant: str, conversation_id: str, item_id: str) -> Operation[bytes | None]:
    rows = yield sql(_SELECT_ITEM, tenant, sanitise_id(conversation_id), sanitise_id(item_id))
    return (yield from _read_item(tenant, conversation_id, item_id, rows[0][0])) if rows else None


def delete_item(now: float, tenant: str, conversation_id: str, item_id: str) -> Operation[bool]:
    """Remove an item from this conversation only."""
    if not (yield from touch(tenant, conversation_id, now)):
        return False
    condition = f"{_ITEM} AND item IS NOT NULL"
    values = (tenant, conversation_id, sanitise_id(item_id))
    rows = yield sql(f"SELECT bytes FROM items WHERE {condition}", *values)
    for (size,) in rows:
        yield sql(f"UPDATE items SET item = NULL, bytes = 0 WHERE {condition}", *values)
        yield remove_pieces(tenant, name_holder(conversation_id, item_id))
        yield sql(_SUBTRACT, tenant, conversation_id, 1, size)
        yield totals.record(tenant, conversation_id, size=-size)
    return bool(rows)


def find_item(now: float, tenant: str, item_id: str) -> Operation[bytes | None]:
    """Find an item in any conversation of the tenant."""
    rows = yield sql(_FIND_ITEM, tenant, sanitise_id(item_id), now)
    return (yield from _read_item(tenant, rows[0][0], item_id, rows[0][1])) if rows else None


def _append_block(
    tenant: str, conversation_id: str, items: Sequence[ItemRow], now: float
) -> Operation[tuple[int, int] | None]:
    """Append the items as one block. Returns the new number of items and the bytes added."""
    size = sum(len(item.item) for item in items)
    rows = yield sql(_RESERVE, tenant, sanitise_id(conversation_id), len(items), size, now)
    if not rows:
        return None
    next_position, count = rows[0]
    duplicate_sizes = []
    for position, item in enumerate(items, next_position - len(items)):
        item_size = len(item.item)
        values = (tenant, conversation_id, position, item.id, item_size, inline(item.item))
        if (yield sql(_INSERT_ITEM, *values)):
            yield from write_pieces(tenant, name_holder(conversation_id, item.id), item.item)
        else:
            duplicate_sizes.append(item_size)
    yield from share_images(tenant, conversation_id, *[item.item for item in items])
    if duplicate_sizes:
        yield sql(_SUBTRACT, tenant, conversation_id, len(duplicate_sizes), sum(duplicate_sizes))
    return int(count) - len(duplicate_sizes), size - sum(duplicate_sizes)


def _find_position(tenant: str, conversation_id: str, item_id: str) -> Operation[int]:
    rows = yield sql(f"SELECT position FROM items WHERE {_ITEM}", tenant, conversation_id, sanitise_id(item_id))
    if not rows:
        raise InvalidValue(f"There is no item with id {item_id!r} in this conversation.", param="after")
    return int(rows[0][0])


def _select_page(
    tenant: str, conversation_id: str, order: str, start: int, limit: int
) -> Operation[list[ItemRow] | None]:
    condition = f"tenant = $1 AND conversation = $2 AND item IS NOT NULL AND position {order} LIMIT $4"
    rows = yield sql(
        f"SELECT id, item FROM items WHERE {condition}", tenant, sanitise_id(conversation_id), start, limit
    )
    if (yield from get(tenant, conversation_id)) is None:
        return None
    page = []
    for item_id, inline_item in rows:
        if (item := (yield from _read_item(tenant, conversation_id, item_id, inline_item))) is not None:
            page.append(ItemRow(item_id, item))
    return page


def _read_item(tenant: str, conversation_id: str, item_id: str, inline_item: bytes) -> Operation[bytes | None]:
    """Return an item, which is in pieces if it is empty in its row; None if it was deleted meanwhile."""
    return inline_item or (yield from read_pieces(tenant, name_holder(conversation_id, item_id))) or None


def name_holder(conversation_id: str, item_id: str) -> str:
    """Return the holder of the pieces of an item."""
    return f"{conversation_id}/{item_id}"


def _to_conversation_row(row: tuple[Any, ...]) -> ConversationRow:
    return ConversationRow(row[0], row[1], _metadata_decoder.decode(row[2]))


def _encode_metadata(metadata: Mapping[str, str]) -> str:
    return msgspec.json.encode(metadata).decode()
