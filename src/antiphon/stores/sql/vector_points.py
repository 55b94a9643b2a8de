"""The vectors of chunks as points of pgvector, one row for each vector. PostgreSQL only.

Points are copied from the vectors of visible chunks, in the order in which these became visible. A row in
vector_point_files says that all points of a file are there, as of the version in which it changed.
"""

from collections.abc import Sequence

from antiphon.ids import is_id
from antiphon.stores.sql.operation import Operation, autocommit_sql, sql
from antiphon.stores.sql.vector_chunks import load_vectors

EXACT_VECTORS = 50_000  # up to which all vectors are compared with a query
_NUMBER_BYTES = 2
_AFTER_LAST = 2**31  # greater than the number of any chunk

_LAST = "SELECT COALESCE(MAX(changed), 0) FROM vector_point_files WHERE store = $1 AND embedder = $2"
# Others wait to delete these chunks until their points are there to be deleted with them.
_LOCK = "SELECT chunk FROM vector_embeddings WHERE chunk = ANY(CAST($1 AS bigint[])) FOR KEY SHARE SKIP LOCKED"
_ADD = """
INSERT INTO vector_points (chunk, number, store, changed, dimensions, embedding)
SELECT chunk, number, $1, changed, $2, embedding
FROM unnest(CAST($3 AS bigint[]), CAST($4 AS bigint[]), CAST($5 AS bigint[]), CAST($6 AS halfvec[]))
    AS points (chunk, number, changed, embedding)
ON CONFLICT (chunk, number) DO NOTHING
"""
# A file whose chunks others are deleting is not recorded: the row would refer to a chunk that is gone.
_FINISH = """
WITH files AS (
    SELECT changed, dimensions, COUNT(*) AS vectors, MAX(chunk) AS chunk FROM vector_points
    WHERE store = $1 AND changed = ANY(CAST($2 AS bigint[])) GROUP BY changed, dimensions
), present AS (
    SELECT chunk FROM vector_embeddings WHERE chunk IN (SELECT chunk FROM files) FOR KEY SHARE SKIP LOCKED
)
INSERT INTO vector_point_files (store, changed, embedder, dimensions, vectors, chunk)
SELECT $1, changed, $3, dimensions, vectors, chunk FROM files JOIN present USING (chunk)
ON CONFLICT (store, changed) DO NOTHING
"""
# Vectors have the length 1, so that the inner product is the cosine. The operator returns it with a minus.
_EXACT = """
SELECT chunk FROM vector_points WHERE store = $1 AND changed = ANY(CAST($2 AS bigint[]))
ORDER BY (embedding <#> CAST($3 AS halfvec)) + 0 LIMIT $4
"""
# For the next statement: continue an index scan until enough vectors of the files are found, and do not read and sort
# all vectors instead if the planner expects few of these files.
_SCAN_SETTINGS = """
SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true), set_config('hnsw.ef_search', '200', true),
    set_config('hnsw.max_scan_tuples', '100000', true), set_config('hnsw.scan_mem_multiplier', '8', true),
    set_config('enable_sort', 'off', true)
"""
# The condition of the index has to be in the text for PostgreSQL to use it.
_NEAREST = """
SELECT chunk FROM vector_points WHERE {condition} AND changed = ANY(CAST($1 AS bigint[]))
ORDER BY {embedding} <#> {query} LIMIT $3
"""


def add_points(
    tenant: str, store: str, embedder: str, dimensions: int, after: tuple[int, int] | None, limit: int
) -> Operation[tuple[int, int] | None]:
    """Copy the vectors of at most `limit` chunks that have become visible since. Several servers may do the same.

    `after`: what the call before has returned; None if it is the first. Returns None once all are there.
    """
    if after is None:
        [[last]] = yield sql(_LAST, store, embedder)
        after = last, _AFTER_LAST
    page = yield from load_vectors(tenant, store, embedder, after, limit)
    present = {chunk for (chunk,) in (yield sql(_LOCK, [row.chunk for row in page]))}
    width = dimensions * _NUMBER_BYTES
    rows = [row for row in page if row.chunk in present and len(row.vectors) % width == 0]
    points = [
        (row.chunk, start // width, row.changed, row.vectors[start : start + width])
        for row in rows
        for start in range(0, len(row.vectors), width)
    ]
    if points:
        yield sql(_ADD, store, dimensions, *map(list, zip(*points, strict=True)))
    finished = {after[0], *[row.changed for row in page]}
    if len(page) == limit:
        finished.discard(page[-1].changed)  # more of its chunks may follow
    yield sql(_FINISH, store, [*finished], embedder)
    return page[-1][:2] if len(page) == limit else None


def count_points(store: str, embedder: str) -> Operation[dict[int, int]]:
    """Return the files whose points are there, by the version in which they changed, and how many these are."""
    rows = yield sql(
        "SELECT changed, vectors FROM vector_point_files WHERE store = $1 AND embedder = $2", store, embedder
    )
    return dict(rows)


def find_points(store: str, files: Sequence[int], count: int, query: bytes, limit: int) -> Operation[list[int]]:
    """Return the chunks of the nearest points of these files, which have `count` points, nearest first.

    Above EXACT_VECTORS these are approximate, if there is an HNSW index.
    """
    if count <= EXACT_VECTORS:
        rows = yield autocommit_sql(_EXACT, store, files, query, limit)
    else:
        dimensions = len(query) // _NUMBER_BYTES
        text = _NEAREST.format(
            condition=select_points(store, dimensions),
            embedding=cast_vector("embedding", dimensions),
            query=cast_vector("$2", dimensions),
        )
        yield sql(_SCAN_SETTINGS)
        rows = yield sql(text, files, query, limit)
    return [*dict.fromkeys(chunk for (chunk,) in rows)]


def select_points(store: str, dimensions: int) -> str:
    """Return the condition of an HNSW index. The id becomes part of a statement, so this server must have made it."""
    assert is_id(store, "vs"), store
    return f"store = '{store}' AND dimensions = {dimensions}"


def cast_vector(value: str, dimensions: int) -> str:
    return f"CAST({value} AS halfvec({dimensions}))"
