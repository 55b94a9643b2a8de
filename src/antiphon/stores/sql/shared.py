"""Values that all who share a store have in common: whoever comes first says what they are."""

from antiphon.stores.sql.operation import Operation, sql


def settle(name: str, new: bytes) -> Operation[bytes]:
    yield sql("INSERT INTO shared (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING", name, new)
    rows = yield sql("SELECT value FROM shared WHERE name = $1", name)
    return bytes(rows[0][0])
