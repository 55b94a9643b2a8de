"""pgvector, an extension of PostgreSQL, as the index of vectors where the server has it.

Its tables are a copy of the vectors, so they are no migration: whichever server finds the extension creates them, and
searches add what is missing (`sql/vector_points.py`). Deleted chunks are removed by foreign keys, so also by servers
that started before the extension was installed and search in memory.

A vector store with many vectors gets an HNSW index of its own: in one that all stores shared, a search would first meet
vectors of others.
"""

import logging
from array import array
from importlib.resources import files
from struct import pack

import asyncpg
from asyncpg import exceptions as pg

from antiphon.ids import is_id
from antiphon.stores.postgres_pool import PostgresConnection, connect
from antiphon.stores.sql.vector_points import EXACT_VECTORS, cast_vector, select_points

log = logging.getLogger(__name__)

_TABLES = files("antiphon.stores.sql").joinpath("vector_points.sql")

_MIN_VERSION = (0, 8)  # the first with iterative scans
_MAX_HNSW_DIMENSIONS = 4000
_BUILD_LOCK = 0x616E7470  # "antp" in ASCII; any number that no other application locks in this database
_OPEN_SECONDS, _BUILD_SECONDS = 60.0, 4 * 3600.0
_REFUSALS = (pg.FeatureNotSupportedError, pg.UndefinedFileError, pg.InsufficientPrivilegeError)
_INSTALLED = """
SELECT extversion, to_regtype('halfvec') IS NOT NULL, EXISTS (
    SELECT FROM pg_attribute
    WHERE attrelid = to_regclass('vector_points') AND attname = 'embedding' AND NOT attisdropped
)
FROM pg_extension WHERE extname = 'vector'
"""
_TYPE_SCHEMA = """
SELECT nspname FROM pg_type JOIN pg_namespace ON pg_namespace.oid = typnamespace
WHERE pg_type.oid = to_regtype('halfvec')
"""
_SIZES = "SELECT store, dimensions, CAST(SUM(vectors) AS BIGINT) FROM vector_point_files GROUP BY store, dimensions"
_BUILT = """
SELECT relname, indisvalid FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE indrelid = to_regclass('vector_points') AND relname LIKE 'hnsw%'
"""


async def open_pgvector(connection: PostgresConnection) -> bool:
    """Create the extension and its tables if they are missing. Returns whether the server has them."""
    try:
        await connection.execute("CREATE EXTENSION IF NOT EXISTS vector", timeout=_OPEN_SECONDS)
        [(version, has_type, has_table)] = await connection.fetch(_INSTALLED)
        if not _is_recent(version) or not has_type:
            log.info("vectors are searched in memory: pgvector %s is too old, or not in the search_path", version)
            return False
        if not has_table:  # also after the extension was removed with its columns
            async with connection.transaction():
                await connection.execute(_TABLES.read_text("utf-8"), timeout=_OPEN_SECONDS)
    except _REFUSALS as error:
        log.info("vectors are searched in memory, without pgvector: %s", error)
        return False
    log.info("vectors are searched with pgvector %s", version)
    return True


async def prepare_connection(connection: PostgresConnection) -> None:
    """Make a connection send vectors in binary form, without which packing takes longer than storing them."""
    schema = await connection.fetchval(_TYPE_SCHEMA)
    await connection.set_type_codec("halfvec", schema=schema, encoder=_encode, decoder=bytes, format="binary")


def _encode(vector: bytes) -> bytes:
    """Return the binary form of a vector: its dimensions, two zero bytes, and big-endian numbers."""
    numbers = array("H", vector)
    numbers.byteswap()
    return pack(">HH", len(numbers), 0) + numbers.tobytes()


def describe_pgvector(installed: str | None, available: str | None) -> str:
    """Describe the index of vectors by the versions of the extension in the database, and on the server."""
    if installed and _is_recent(installed):
        return f"Vectors are searched with pgvector {installed}."
    if available and _is_recent(available) and not installed:
        return f"Vectors are searched in memory. The next start creates the extension pgvector {available}, if it may."
    return "Vectors are searched in memory: the database has no pgvector 0.8 or newer."


def _is_recent(version: str) -> bool:
    return tuple(map(int, version.split(".")[:2])) >= _MIN_VERSION


async def build_indexes(url: str) -> None:
    """Build the HNSW indexes that are missing, and drop those that are not needed any more, one server at a time."""
    connection = None
    try:
        connection = await connect(url)
        await connection.execute("SET statement_timeout = 0")
        if await connection.fetchval("SELECT pg_try_advisory_lock($1)", _BUILD_LOCK):
            await _replace_indexes(connection)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:  # searches are exact meanwhile
        log.warning("an index of vectors could not be built: %s", error)
    finally:
        if connection:
            connection.terminate()


async def _replace_indexes(connection: PostgresConnection) -> None:
    sizes = {
        f"hnsw_{store}_{dimensions}": (store, dimensions, vectors)
        for store, dimensions, vectors in await connection.fetch(_SIZES)
        if vectors > EXACT_VECTORS / 2 and dimensions <= _MAX_HNSW_DIMENSIONS and is_id(store, "vs")
    }
    built = {name: is_valid for name, is_valid in await connection.fetch(_BUILT)}  # noqa: C416  # rows are no pairs to mypy
    for name, is_valid in built.items():
        if name not in sizes or not is_valid:  # invalid: its server was stopped while it built the index
            await connection.execute(f"DROP INDEX CONCURRENTLY {name}", timeout=_BUILD_SECONDS)
    for name, (store, dimensions, vectors) in sizes.items():
        if vectors > EXACT_VECTORS and not built.get(name):
            await connection.execute(
                f"CREATE INDEX CONCURRENTLY {name} ON vector_points USING hnsw "
                f"(({cast_vector('embedding', dimensions)}) halfvec_ip_ops) WHERE {select_points(store, dimensions)}",
                timeout=_BUILD_SECONDS,
            )
            await connection.execute("ANALYZE vector_points", timeout=_BUILD_SECONDS)
