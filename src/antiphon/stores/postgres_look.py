"""What can be told of a PostgreSQL without opening a store there: nothing is changed."""

from msgspec import Struct

from antiphon.stores.postgres_faults import STARTUP, startup_error
from antiphon.stores.postgres_pool import CONNECTIONS, connect

_ASKED = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int, pg_is_in_recovery(),
       COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false), current_setting('max_connections')::int,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
"""


class Looked(Struct, frozen=True, kw_only=True):
    version: str
    number: int  # 160004: 16.4
    standby: bool
    may_create: bool  # tables, where the store's are
    connections: int  # that it allows, of all clients together
    used: int
    pool: int = CONNECTIONS  # that each server of ours takes at most


async def look(url: str) -> Looked:
    """Raises StartupError."""
    try:
        line = await connect(url)
        try:
            row = await line.fetchrow(_ASKED)
        finally:
            line.terminate()
    except STARTUP as error:
        raise startup_error(error, url) from None
    assert row is not None
    version, number, standby, may_create, connections, used = row
    return Looked(
        version=version.partition(" ")[0],
        number=number,
        standby=standby,
        may_create=may_create,
        connections=connections,
        used=used,
    )
