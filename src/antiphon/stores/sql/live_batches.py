"""The batches of a running response's log; they go when it ends."""

from antiphon.stores.base import Lost
from antiphon.stores.sql.operation import Operation, alone, sought, sql

_OWNED = "tenant = $1 AND id = $2 AND fence = $3 AND ended IS NULL"
# COALESCE tells PostgreSQL what $5 is.
_APPEND = f"""
INSERT INTO live (tenant, id, number, batch)
SELECT tenant, id, CAST($4 AS BIGINT), COALESCE($5, request) FROM responses WHERE {_OWNED} {{lock}}
ON CONFLICT (tenant, id, number) DO NOTHING RETURNING number
"""


def append(tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> Operation[None]:
    """A batch that is there already came from the same owner, whose answer got lost."""
    if (yield alone(_APPEND, tenant, response_id, fence, number, batch)):
        return
    if not (yield sql(f"SELECT fence FROM responses WHERE {_OWNED}", tenant, response_id, fence)):
        raise Lost(response_id)


def read(tenant: str, response_id: str, after: int) -> Operation[list[bytes]]:
    rows = yield sql(
        "SELECT batch FROM live WHERE tenant = $1 AND id = $2 AND number > $3 ORDER BY number",
        tenant,
        sought(response_id),
        after,
    )
    return [batch for (batch,) in rows]
