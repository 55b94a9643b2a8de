"""Conversations and their items. Who adds items changes the conversation's own row first: so blocks come one by one."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.errors import InvalidValue
from antiphon.stores.base import ConversationRow, ItemRow, Page
from antiphon.stores.sql import totals
from antiphon.stores.sql.operation import Operation, inserting, sought, sql

_FOUND = "tenant = $1 AND id = $2 AND expires IS NULL"
_RESERVE = f"""
UPDATE conversations SET next = next + $3, items = items + $3, bytes = bytes + $4, used = $5 WHERE {_FOUND}
RETURNING next, items
"""
# An item stands in a conversation once; one that was deleted from it may come again.
_PLACE = """
INSERT INTO items (tenant, conversation, position, id, bytes, item) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, id, conversation) DO UPDATE SET
    position = excluded.position, bytes = excluded.bytes, item = excluded.item
WHERE items.item IS NULL
RETURNING position
"""
_LESS = f"UPDATE conversations SET items = items - $3, bytes = bytes - $4 WHERE {_FOUND}"
_LAST = 2**62  # behind every position

_metadata = msgspec.json.Decoder(dict[str, str])


def create(tenant: str, row: ConversationRow, items: Sequence[ItemRow]) -> Operation[None]:
    made = yield sql(
        "INSERT INTO conversations (tenant, id, created, used, expires, next, items, bytes, metadata) "
        "VALUES ($1, $2, $3, $4, NULL, 0, 0, 0, $5) ON CONFLICT (tenant, id) DO NOTHING RETURNING next",
        tenant,
        row.id,
        row.created,
        row.created,
        _text(row.metadata),
    )
    if made:
        size = yield from append(tenant, row.id, items, row.created)
        yield totals.book(tenant, row.id, size=size, conversations=1)


def get(tenant: str, conversation_id: str) -> Operation[ConversationRow | None]:
    rows = yield sql(f"SELECT id, created, metadata FROM conversations WHERE {_FOUND}", tenant, sought(conversation_id))
    return conversation_row(rows[0]) if rows else None


def touch(tenant: str, conversation_id: str, now: float) -> Operation[bool]:
    """Is it there? Then it was used just now."""
    return bool(
        (
            yield sql(
                f"UPDATE conversations SET used = $3 WHERE {_FOUND} RETURNING id", tenant, sought(conversation_id), now
            )
        )
    )


def merge_metadata(
    tenant: str, conversation_id: str, changes: Mapping[str, str | None], most: int, now: float
) -> Operation[ConversationRow | None]:
    rows = yield sql(
        f"SELECT id, created, metadata FROM conversations WHERE {_FOUND} {{lock}}", tenant, sought(conversation_id)
    )
    if not rows:
        return None
    row = conversation_row(rows[0])
    merged = {name: value for name, value in {**row.metadata, **changes}.items() if value is not None}
    if len(merged) > most:
        raise InvalidValue(f"Metadata has at most {most} pairs; there would be {len(merged)}.", param="metadata")
    yield sql(f"UPDATE conversations SET metadata = $3, used = $4 WHERE {_FOUND}", tenant, row.id, _text(merged), now)
    return ConversationRow(row.id, row.created, merged)


def delete(tenant: str, conversation_id: str, expires: float) -> Operation[bool]:
    rows = yield sql(
        f"UPDATE conversations SET expires = $3, metadata = '{{}}' WHERE {_FOUND} RETURNING id",
        tenant,
        sought(conversation_id),
        expires,
    )
    if rows:
        yield totals.book(tenant, conversation_id, conversations=-1)
    return bool(rows)


def add(tenant: str, conversation_id: str, items: Sequence[ItemRow], most: int, now: float) -> Operation[bool]:
    placed = yield from _place(tenant, conversation_id, items, now)
    if placed is None:
        return False
    count, size = placed
    if count > most:
        raise InvalidValue(f"A conversation has at most {most} items; there would be {count}.", param="items")
    yield totals.book(tenant, conversation_id, size=size)
    return True


def append(tenant: str, conversation_id: str, items: Sequence[ItemRow], now: float) -> Operation[int]:
    """If it is still there. Gives the bytes that came, for the caller to book."""
    placed = yield from _place(tenant, conversation_id, items, now)
    return 0 if placed is None else placed[1]


def all_items(tenant: str, conversation_id: str) -> Operation[list[bytes] | None]:
    page = yield from _page(tenant, conversation_id, "> $3 ORDER BY position", -1, _LAST)
    return None if page is None else [item for _, item in page]


def page_items(
    tenant: str, conversation_id: str, after: str | None, limit: int, descending: bool
) -> Operation[Page | None]:
    start = _LAST if descending else -1
    if after is not None and (yield from get(tenant, conversation_id)) is not None:
        start = yield from _position(tenant, conversation_id, after)
    order = "< $3 ORDER BY position DESC" if descending else "> $3 ORDER BY position"
    page = yield from _page(tenant, conversation_id, order, start, limit + 1)
    return None if page is None else Page([ItemRow(*row) for row in page[:limit]], len(page) > limit)


def item(tenant: str, conversation_id: str, item_id: str) -> Operation[bytes | None]:
    rows = yield sql(
        "SELECT item FROM items WHERE tenant = $1 AND conversation = $2 AND id = $3 AND item IS NOT NULL AND EXISTS "
        f"(SELECT 1 FROM conversations WHERE {_FOUND})",
        tenant,
        sought(conversation_id),
        sought(item_id),
    )
    return rows[0][0] if rows else None


def delete_item(tenant: str, conversation_id: str, item_id: str, now: float) -> Operation[bool]:
    if not (yield from touch(tenant, conversation_id, now)):
        return False
    found = "tenant = $1 AND conversation = $2 AND id = $3 AND item IS NOT NULL"
    values = (tenant, conversation_id, sought(item_id))
    rows = yield sql(f"SELECT bytes FROM items WHERE {found}", *values)
    for (size,) in rows:
        yield sql(f"UPDATE items SET item = NULL, bytes = 0 WHERE {found}", *values)
        yield sql(_LESS, tenant, conversation_id, 1, size)
        yield totals.book(tenant, conversation_id, size=-size)
    return bool(rows)


def find_item(tenant: str, item_id: str, now: float) -> Operation[bytes | None]:
    rows = yield sql(
        "SELECT i.item FROM items i JOIN conversations c ON c.tenant = i.tenant AND c.id = i.conversation "
        "WHERE i.tenant = $1 AND i.id = $2 AND i.item IS NOT NULL AND (c.expires IS NULL OR c.expires > $3) LIMIT 1",
        tenant,
        sought(item_id),
        now,
    )
    return rows[0][0] if rows else None


def _place(
    tenant: str, conversation_id: str, items: Sequence[ItemRow], now: float
) -> Operation[tuple[int, int] | None]:
    """As one block, after all others. Gives how many items there are now, and the bytes that came."""
    size = sum(len(item.item) for item in items)
    rows = yield sql(_RESERVE, tenant, sought(conversation_id), len(items), size, now)
    if not rows:
        return None
    following, count = rows[0]
    there = []
    for position, item in enumerate(items, following - len(items)):
        own = len(item.item)
        if not (yield inserting(_PLACE, own, (tenant, conversation_id, position, item.id, own, item.item))):
            there.append(own)
    if there:
        yield sql(_LESS, tenant, conversation_id, len(there), sum(there))
    return int(count) - len(there), size - sum(there)


def _position(tenant: str, conversation_id: str, item_id: str) -> Operation[int]:
    rows = yield sql(
        "SELECT position FROM items WHERE tenant = $1 AND conversation = $2 AND id = $3",
        tenant,
        conversation_id,
        sought(item_id),
    )
    if not rows:
        raise InvalidValue(f"There is no item with id {item_id!r} in this conversation.", param="after")
    return int(rows[0][0])


def _page(
    tenant: str, conversation_id: str, order: str, start: int, limit: int
) -> Operation[list[tuple[Any, ...]] | None]:
    rows = yield sql(
        f"SELECT id, item FROM items WHERE tenant = $1 AND conversation = $2 AND item IS NOT NULL AND position {order} "
        "LIMIT $4",
        tenant,
        sought(conversation_id),
        start,
        limit,
    )
    return rows if (yield from get(tenant, conversation_id)) is not None else None


def conversation_row(row: tuple[Any, ...]) -> ConversationRow:
    return ConversationRow(row[0], row[1], _metadata.decode(row[2]))


def _text(metadata: Mapping[str, str]) -> str:
    return msgspec.json.encode(metadata).decode()
