"""What can go wrong with PostgreSQL, told apart in one place; no sentence that is made here holds a password."""

from urllib.parse import parse_qs, urlsplit

import asyncpg
from asyncpg import exceptions as pg

from antiphon.errors import StartupError

# The transaction was in another's way and has been rolled back: it may simply be run again.
CONFLICT = (pg.SerializationError, pg.DeadlockDetectedError)

# The connection is of no use any more, or never came about. Whether a commit got through is not known.
LOST = (
    pg.PostgresConnectionError,
    pg.AdminShutdownError,
    pg.CrashShutdownError,
    pg.CannotConnectNowError,
    pg.DatabaseDroppedError,
    pg.IdleSessionTimeoutError,
    pg.IdleInTransactionSessionTimeoutError,
    pg.ReadOnlySQLTransactionError,  # after a failover the former primary may be a replica
    pg.TargetServerAttributeNotMatched,  # or there is no primary yet
    asyncpg.InterfaceError,  # it has been closed while it was used
    asyncpg.InternalClientError,  # or the server has just said goodbye on it: what asyncpg then says of its own state
    OSError,
)

# The server is there and cannot do it now: it took too long, or has no room.
REFUSED = (pg.QueryCanceledError, pg.LockNotAvailableError, pg.InsufficientResourcesError)

FAULTS = (*CONFLICT, *LOST, *REFUSED)

STARTUP = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    pg.TargetServerAttributeNotMatched,
    OSError,
    ValueError,
)


def where(url: str) -> str:
    """Host, port and database of an address; whatever could be a part of a password is left out."""
    try:
        parts = urlsplit(url)
        hosts = parse_qs(parts.query).get("host", [])
    except ValueError:
        return "its address"
    place = f"{parts.netloc}{parts.path}".rpartition("@")[2]
    return f"{', '.join(hosts)}{place}" if hosts else place


def startup_error(error: Exception, url: str) -> StartupError:
    """A sentence for whoever starts the server; `error` is one of STARTUP."""
    place = where(url)
    match error:
        case pg.InvalidAuthorizationSpecificationError():
            said = f"PostgreSQL at {place} refuses the user or the password of --store."
        case pg.InvalidCatalogNameError():
            said = f"PostgreSQL at {place} has no such database. Create it: createdb {place.rpartition('/')[2]}"
        case pg.InsufficientPrivilegeError():
            said = f"The user of --store may not create tables in PostgreSQL at {place}."
        case asyncpg.ClientConfigurationError() | ValueError():
            said = "--store is no address of a PostgreSQL database, such as postgresql://user:password@host/database."
        case _:
            reason = str(error) or "it takes too long"
            said = f"PostgreSQL at {place} does not answer: {reason}"
    return StartupError(said)
