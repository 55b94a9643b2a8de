"""Files of clients, the uploads that they arrive by, and the blocks of their content where the database holds it.

The content of a file is written before its row, and deleted after it: a row always has its content, and content without
a row was left by a crash. Files of one tenant with the same content share it. The row of a file that shares content is
locked while another one joins it, so content in use is never deleted.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import astuple, replace

from antiphon.core.image_generation import find_image_keys
from antiphon.errors import StorageLimitReached
from antiphon.stores.base import FileQuota, FileRow, Page, UploadRow
from antiphon.stores.sql import totals
from antiphon.stores.sql.operation import (
    Operation,
    cut_page,
    direction,
    find_row,
    sanitise_id,
    sql,
    start_id,
)
from antiphon.stores.sql.vector_files import remove_from_all

_COLUMNS = "id, created, expires, bytes, filename, purpose, digest, content"
_VISIBLE = "tenant = $1 AND id = $2 AND (expires IS NULL OR expires > $3)"
_INSERT = f"INSERT INTO files (tenant, {_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_SHARED = "SELECT content FROM files WHERE tenant = $1 AND digest = $2 LIMIT 1 {lock}"
_BYTES = """
SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM files WHERE tenant = $1
UNION ALL SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM skill_versions WHERE tenant = $1
"""
_USED = """
SELECT 1 FROM files WHERE content = $1 UNION ALL SELECT 1 FROM upload_parts WHERE content = $1
UNION ALL SELECT 1 FROM skill_versions WHERE content = $1 UNION ALL SELECT 1 FROM images WHERE content = $1 LIMIT 1
"""
_INSERT_IMAGE = "INSERT INTO images (tenant, holder, content) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
_SHARE_IMAGE = """
INSERT INTO images (tenant, holder, content) SELECT DISTINCT tenant, $2, content FROM images
WHERE tenant = $1 AND content = $3 ON CONFLICT DO NOTHING
"""
_UPLOAD_COLUMNS = "id, created, expires, status, bytes, filename, purpose, lifetime, file"
_INSERT_UPLOAD = f"INSERT INTO uploads (tenant, {_UPLOAD_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
_UPLOAD = "FROM uploads WHERE tenant = $1 AND id = $2 AND expires > $3"
_COMPLETE_UPLOAD = "UPDATE uploads SET status = 'completed', file = $3 WHERE tenant = $1 AND id = $2"
_INSERT_PART = "INSERT INTO upload_parts (tenant, upload, id, bytes, content) VALUES ($1, $2, $3, $4, $5)"
_DELETE_PARTS = "DELETE FROM upload_parts WHERE tenant = $1 AND upload = $2 RETURNING content"
_INSERT_BLOCK = "INSERT INTO contents (content, number, created, block) VALUES ($1, $2, $3, $4)"
_PAGE_CONTENTS = """
SELECT content FROM contents WHERE number = 0 AND created < $1 AND content > $2 ORDER BY content LIMIT $3
"""


def add_file(tenant: str, row: FileRow, quota: FileQuota) -> Operation[FileRow]:
    """Add a file, and return its row: its content is that of an earlier file if they are equal.

    Raises StorageLimitReached above the tenant's quota.
    """
    yield totals.lock_tenant(tenant)
    if (yield sql("SELECT COUNT(*) FROM files WHERE tenant = $1", tenant))[0][0] >= quota.files:
        raise StorageLimitReached(f"At most {quota.files:,} files can be stored: delete some.", param="file")
    yield from check_room(tenant, row.size, quota, "file")
    for (content,) in (yield sql(_SHARED, tenant, row.digest)):
        row = replace(row, content=content)
    yield sql(_INSERT, tenant, *astuple(row))
    return row


def check_room(tenant: str, size: int, quota: FileQuota, param: str) -> Operation[None]:
    """Raise StorageLimitReached if so many bytes more exceed the tenant's quota, which files and skills share."""
    used = sum([total for (total,) in (yield sql(_BYTES, tenant))])
    if used + size > quota.bytes:
        message = f"All files together may have {quota.bytes:,} bytes, of which {used:,} are used: delete some."
        raise StorageLimitReached(message, param=param)


def get_file(now: float, tenant: str, file_id: str) -> Operation[FileRow | None]:
    return find_row(FileRow, f"SELECT {_COLUMNS} FROM files WHERE {_VISIBLE}", tenant, sanitise_id(file_id), now)


def page_files(
    now: float, tenant: str, after: str | None, limit: int, descending: bool, purpose: str | None = None
) -> Operation[Page[FileRow]]:
    """Return one page, ordered by id. Raises InvalidValue for an unknown cursor."""
    start = yield from start_id("files", tenant, after, descending)
    comparison, order = direction(descending)
    condition = f"id {comparison} $2 AND (expires IS NULL OR expires > $3) AND (purpose = $4 OR $5 = 1)"
    statement = f"SELECT {_COLUMNS} FROM files WHERE tenant = $1 AND {condition} ORDER BY id {order} LIMIT $6"
    values = (start, now, sanitise_id(purpose or ""), int(purpose is None), limit + 1)
    rows = yield sql(statement, tenant, *values)
    return cut_page(FileRow, rows, limit)


def delete_file(now: float, tenant: str, file_id: str) -> Operation[list[str] | None]:
    """Delete a file, also from all vector stores.

    Returns the content that is no longer used, or None if there is no such file.
    """
    rows = yield sql(f"DELETE FROM files WHERE {_VISIBLE} RETURNING content", tenant, sanitise_id(file_id), now)
    if not rows:
        return None
    yield from remove_from_all(tenant, file_id)
    return (yield from find_unused(*rows[0]))


def expire_files(now: float, limit: int = 100) -> Operation[list[str]]:
    """Delete expired files, and uploads that were not completed in time. Returns the content that is no longer used.

    Deletes at most `limit` rows of each.
    """
    expired = yield sql("SELECT tenant, id FROM files WHERE expires <= $1 LIMIT $2 {skip}", now, limit)
    freed = []
    for tenant, file_id in expired:
        freed += yield sql("DELETE FROM files WHERE tenant = $1 AND id = $2 RETURNING content", tenant, file_id)
        yield from remove_from_all(tenant, file_id)
    uploads = yield sql("SELECT tenant, id FROM uploads WHERE expires <= $1 LIMIT $2 {skip}", now, limit)
    for tenant, upload_id in uploads:
        freed += yield from _drop_parts(tenant, upload_id)
        yield sql("DELETE FROM uploads WHERE tenant = $1 AND id = $2", tenant, upload_id)
    return (yield from find_unused(*[content for (content,) in freed]))


def find_unused(*contents: str) -> Operation[list[str]]:
    """Return those that no file, no part of an upload, no version of a skill and no item has."""
    unused = []
    for content in dict.fromkeys(contents):
        if not (yield sql(_USED, content)):
            unused.append(content)
    return unused


def add_images(tenant: str, holder: str, contents: Sequence[str]) -> Operation[None]:
    """Add images that were written for the items of a response."""
    for content in contents:
        yield sql(_INSERT_IMAGE, tenant, holder, content)


def share_images(tenant: str, holder: str, *documents: bytes) -> Operation[None]:
    """Keep the images to which JSON documents refer as long as this response or conversation.

    Images of other tenants are not shared, whatever a document says.
    """
    for content in find_image_keys(*documents):
        yield sql(_SHARE_IMAGE, tenant, holder, content)


def release_images(tenant: str, holder: str) -> Operation[None]:
    """Drop what a removed response or conversation refers to. Content that nobody has any more is swept."""
    yield sql("DELETE FROM images WHERE tenant = $1 AND holder = $2", tenant, holder)


def has_image(tenant: str, content: str) -> Operation[bool]:
    return bool((yield sql("SELECT 1 FROM images WHERE tenant = $1 AND content = $2 LIMIT 1", tenant, content)))


def list_images(tenant: str, holder: str) -> Operation[list[str]]:
    rows = yield sql("SELECT content FROM images WHERE tenant = $1 AND holder = $2", tenant, sanitise_id(holder))
    return [content for (content,) in rows]


def create_upload(tenant: str, row: UploadRow) -> Operation[None]:
    yield sql(_INSERT_UPLOAD, tenant, *astuple(row))


def get_upload(now: float, tenant: str, upload_id: str) -> Operation[UploadRow | None]:
    return find_row(UploadRow, f"SELECT {_UPLOAD_COLUMNS} {_UPLOAD}", tenant, sanitise_id(upload_id), now)


def add_part(now: float, tenant: str, upload_id: str, part_id: str, size: int, content: str) -> Operation[bool]:
    """Add a part. Returns False if the upload is not pending any more."""
    if not (yield from _lock_pending(now, tenant, upload_id)):
        return False
    yield sql(_INSERT_PART, tenant, upload_id, part_id, size, content)
    return True


def list_parts(tenant: str, upload_id: str) -> Operation[dict[str, tuple[int, str]]]:
    """Return size and content of the parts by their id."""
    text = "SELECT id, bytes, content FROM upload_parts WHERE tenant = $1 AND upload = $2"
    rows = yield sql(text, tenant, sanitise_id(upload_id))
    return {part_id: (size, content) for part_id, size, content in rows}


def complete_upload(
    now: float, tenant: str, upload_id: str, row: FileRow, quota: FileQuota
) -> Operation[tuple[FileRow, list[str]] | None]:
    """Add the file of an upload, and drop its parts. Returns the file and the content that is no longer used.

    None: the upload is not pending any more. Raises StorageLimitReached like `add_file`.
    """
    if not (yield from _lock_pending(now, tenant, upload_id)):
        return None
    added = yield from add_file(tenant, row, quota)
    yield sql(_COMPLETE_UPLOAD, tenant, upload_id, added.id)
    dropped = yield from _drop_parts(tenant, upload_id)
    return added, (yield from find_unused(row.content, *[content for (content,) in dropped]))


def cancel_upload(now: float, tenant: str, upload_id: str) -> Operation[list[str] | None]:
    """Cancel an upload. Returns the content that is no longer used; None: it is not pending any more."""
    if not (yield from _lock_pending(now, tenant, upload_id)):
        return None
    yield sql("UPDATE uploads SET status = 'cancelled' WHERE tenant = $1 AND id = $2", tenant, upload_id)
    dropped = yield from _drop_parts(tenant, upload_id)
    return (yield from find_unused(*[content for (content,) in dropped]))


def add_block(now: float, content: str, number: int, block: bytes) -> Operation[None]:
    yield sql(_INSERT_BLOCK, content, number, now, block)


def get_block(content: str, number: int) -> Operation[bytes | None]:
    rows = yield sql("SELECT block FROM contents WHERE content = $1 AND number = $2", content, number)
    return rows[0][0] if rows else None


def delete_contents(contents: Sequence[str]) -> Operation[None]:
    for content in contents:
        yield sql("DELETE FROM contents WHERE content = $1", content)


def page_contents(before: float, after: str, limit: int) -> Operation[list[str]]:
    """Return content that was written before a time, in the order of its keys."""
    rows = yield sql(_PAGE_CONTENTS, before, after, limit)
    return [content for (content,) in rows]


def _lock_pending(now: float, tenant: str, upload_id: str) -> Operation[bool]:
    pending = f"SELECT 1 {_UPLOAD} AND status = 'pending' {{lock}}"
    return bool((yield sql(pending, tenant, sanitise_id(upload_id), now)))


def _drop_parts(tenant: str, upload_id: str) -> Operation[list[tuple[Any, ...]]]:
    return (yield sql(_DELETE_PARTS, tenant, upload_id))
