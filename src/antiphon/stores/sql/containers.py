"""Containers in which code runs, and the files in them that clients know.

A row says what a container is and how long it lives; its files and processes are in a sandbox. It is written before the
container is started there, and has ended after the container was stopped or lost there.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import astuple, replace

from antiphon.errors import StorageLimitReached
from antiphon.stores.base import ContainerFileRow, ContainerRow, Page, PageQuery
from antiphon.stores.sql import totals
from antiphon.stores.sql.operation import Operation, find_row, read_page, read_row, sanitise_id, sql

_COLUMNS = ", ".join(ContainerRow.__struct_fields__)
_VALUES = ", ".join(f"${number}" for number, _ in enumerate(ContainerRow.__struct_fields__, 2))
_FILE_FIELDS = "id, created, bytes, path, source"
_INSERT = f"""
INSERT INTO containers (tenant, {_COLUMNS}, deleted) VALUES ($1, {_VALUES}, 0)
ON CONFLICT (tenant, id) DO NOTHING RETURNING id
"""
_COUNT = """
SELECT COUNT(*) FROM containers WHERE tenant = $1 AND deleted = 0 AND state <> 'ended' AND expires > $2
"""
# The container of a conversation that was not used for the longest time. One that runs code expires later than this.
_EVICT = """
UPDATE containers SET expires = $2 WHERE tenant = $1 AND id = (
    SELECT id FROM containers WHERE tenant = $1 AND deleted = 0 AND state = 'running' AND expires > $2
    AND expires < last_active + minutes * 60 + 1 AND substr(id, 1, 10) = 'cntr_auto_'
    ORDER BY last_active LIMIT 1
) RETURNING id
"""
_VISIBLE = "tenant = $1 AND id = $2 AND deleted = 0"
_USE = f"""
UPDATE containers SET last_active = $3,
    expires = CAST($3 AS DOUBLE PRECISION) + CAST(minutes * 60 AS DOUBLE PRECISION) + CAST($4 AS DOUBLE PRECISION)
WHERE {_VISIBLE} AND state <> 'ended' AND expires > $3 RETURNING {_COLUMNS}
"""
_DUE = """
SELECT tenant, id FROM containers WHERE sandbox = $1 AND state <> 'ended' AND expires <= $2 LIMIT $3
"""
_RUNNING = "SELECT tenant, id FROM containers WHERE sandbox = $1 AND state = 'running' AND state <> 'ended' LIMIT $2"
_OUTDATED = "SELECT tenant, id FROM containers WHERE expires <= $1 LIMIT $2 {skip}"
_ADD_FILE = f"""
INSERT INTO container_files (tenant, container, {_FILE_FIELDS}) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant, container, path) DO UPDATE SET bytes = excluded.bytes, source = excluded.source
RETURNING {_FILE_FIELDS}
"""
_FILE = "tenant = $1 AND container = $2 AND id = $3"


def add_container(now: float, tenant: str, row: ContainerRow, max_running: int) -> Operation[None]:
    """Add a container. If `max_running` of the tenant have not expired, an idle one of a conversation expires now.

    Raises StorageLimitReached if there is none: those that clients have made are theirs to delete.
    """
    yield totals.lock_tenant(tenant)
    if not (yield sql(_INSERT, tenant, *astuple(row))):
        return  # it was added by a call whose reply was lost
    if (yield sql(_COUNT, tenant, now))[0][0] > max_running and not (yield sql(_EVICT, tenant, now)):
        raise StorageLimitReached(f"At most {max_running:,} containers can run: delete one, or let it expire.")


def page_containers(
    now: float, tenant: str, query: PageQuery, name: str | None = None
) -> Operation[Page[ContainerRow]]:
    """Return one page, ordered by creation time. Raises InvalidValue for an unknown cursor."""
    scope: dict[str, Any] = {"tenant": tenant, "deleted": 0}
    if name is not None:
        scope["name"] = name.replace("\0", "\ufffd")  # PostgreSQL rejects NUL in text; no name has one
    rows, has_more = yield from read_page(f"SELECT {_COLUMNS} FROM containers", "id", scope, query)
    return Page([_to_container(row, now) for row in rows], has_more)


def use_container(now: float, tenant: str, container: str, seconds: float = 0.0) -> Operation[ContainerRow | None]:
    """Return a container, and record a use of this duration, which postpones the expiry, unless it has expired."""
    rows = yield sql(_USE, tenant, sanitise_id(container), now, seconds)
    if not rows:
        rows = yield sql(f"SELECT {_COLUMNS} FROM containers WHERE {_VISIBLE}", tenant, sanitise_id(container))
    return _to_container(rows[0], now) if rows else None


def note_container_start(tenant: str, container: str) -> Operation[bool]:
    """Record that the container runs in its sandbox. Returns False if it was deleted or has ended meanwhile."""
    started = f"UPDATE containers SET state = 'running' WHERE {_VISIBLE} AND state <> 'ended' RETURNING id"
    return bool((yield sql(started, tenant, container)))


def delete_container(now: float, tenant: str, container: str) -> Operation[ContainerRow | None]:
    """Hide a container and delete it once it has ended. Returns its row, or None if there is no such container."""
    deleted = f"UPDATE containers SET deleted = 1, expires = $3 WHERE {_VISIBLE} RETURNING {_COLUMNS}"
    rows = yield sql(deleted, tenant, sanitise_id(container), now)
    if not rows:
        return None
    yield from _remove_files(tenant, container)
    yield sql("DELETE FROM containers WHERE tenant = $1 AND id = $2 AND state = 'ended'", tenant, container)
    return _to_container(rows[0], 0.0)


def end_container(tenant: str, container: str) -> Operation[None]:
    """Record that nothing of a container is in its sandbox any more: it has expired, or is deleted."""
    yield from _remove_files(tenant, container)
    yield sql("UPDATE containers SET state = 'ended' WHERE tenant = $1 AND id = $2", tenant, container)
    yield sql("DELETE FROM containers WHERE tenant = $1 AND id = $2 AND deleted = 1", tenant, container)


def list_due_containers(now: float, sandbox: str, limit: int = 100) -> Operation[list[tuple[str, str]]]:
    """Return tenant and id of containers that are to be stopped in this sandbox."""
    return [(tenant, container) for tenant, container in (yield sql(_DUE, sandbox, now, limit))]


def list_running_containers(sandbox: str, limit: int = 10_000) -> Operation[list[tuple[str, str]]]:
    """Return tenant and id of containers that this sandbox should have."""
    return [(tenant, container) for tenant, container in (yield sql(_RUNNING, sandbox, limit))]


def purge_containers(now: float, seconds: float, limit: int = 100) -> Operation[int]:
    """Remove rows that expired so long ago, also of sandboxes that do not exist any more. Returns their number."""
    rows = yield sql(_OUTDATED, now - seconds, limit)
    for tenant, container in rows:
        yield from _remove_files(tenant, container)
        yield sql("DELETE FROM containers WHERE tenant = $1 AND id = $2", tenant, container)
    return len(rows)


def add_container_files(
    tenant: str, container: str, files: Sequence[ContainerFileRow]
) -> Operation[list[ContainerFileRow]]:
    """Add files, or change those of the same path, and return their rows; none if the container was deleted."""
    alive = f"SELECT 1 FROM containers WHERE {_VISIBLE} AND state <> 'ended' {{lock}}"
    if not (yield sql(alive, tenant, container)):
        return []
    added = []
    for file in files:
        added += yield sql(_ADD_FILE, tenant, container, *astuple(file))
    return [read_row(ContainerFileRow, row) for row in added]


def get_container_file(tenant: str, container: str, file: str) -> Operation[ContainerFileRow | None]:
    text = f"SELECT {_FILE_FIELDS} FROM container_files WHERE {_FILE}"
    return find_row(ContainerFileRow, text, tenant, sanitise_id(container), sanitise_id(file))


def find_container_path(tenant: str, container: str, path: str) -> Operation[bool]:
    """Return whether a file of this path is known."""
    found = "SELECT 1 FROM container_files WHERE tenant = $1 AND container = $2 AND path = $3"
    return bool((yield sql(found, tenant, container, path)))


def page_container_files(tenant: str, container: str, query: PageQuery) -> Operation[Page[ContainerFileRow]]:
    """Return one page, ordered by creation time. Raises InvalidValue for an unknown cursor."""
    scope = {"tenant": tenant, "container": container}
    rows, has_more = yield from read_page(f"SELECT {_FILE_FIELDS} FROM container_files", "id", scope, query)
    return Page([read_row(ContainerFileRow, row) for row in rows], has_more)


def delete_container_file(tenant: str, container: str, file: str) -> Operation[None]:
    yield sql(f"DELETE FROM container_files WHERE {_FILE}", tenant, container, file)


def _remove_files(tenant: str, container: str) -> Operation[None]:
    yield sql("DELETE FROM container_files WHERE tenant = $1 AND container = $2", tenant, container)


def _to_container(row: tuple[Any, ...], now: float) -> ContainerRow:
    """Return a row whose state is `ended` also if it has expired and was not stopped yet."""
    found = read_row(ContainerRow, row)
    return found if found.expires > now else replace(found, state="ended")
