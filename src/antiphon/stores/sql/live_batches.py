"""The live log batches of a running response. They are removed when it ends."""

from antiphon.stores.base import OwnershipLost
from antiphon.stores.sql.operation import Operation, autocommit_sql, sanitise_id, sql

_OWNED = "tenant = $1 AND id = $2 AND fence = $3 AND ended IS NULL"
# COALESCE lets PostgreSQL infer the type of $5.
_APPEND = f"""
INSERT INTO live (tenant, id, number, batch)
SELECT tenant, id, CAST($4 AS BIGINT), COALESCE($5, request) FROM responses WHERE {_OWNED} {{lock}}
ON CONFLICT (tenant, id, number) DO NOTHING RETURNING number
"""


def append(tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> Operation[None]:
    """Append a batch. An existing batch was written by the same owner, whose reply was lost."""
    if (yield autocommit_sql(_APPEND, tenant, response_id, fence, number, batch)):
        return
    if not (yield sql(f"SELECT fence FROM responses WHERE {_OWNED}", tenant, response_id, fence)):
        raise OwnershipLost(response_id)


def read(tenant: str, response_id: str, after: int) -> Operation[list[bytes]]:
    rows = yield sql(
        "SELECT batch FROM live WHERE tenant = $1 AND id = $2 AND number > $3 ORDER BY number",
        tenant,
        sanitise_id(response_id),
        after,
    )
    return [batch for (batch,) in rows]
