"""Indexing the files of vector stores: claims, chunks, results, and the removal of chunks that are not needed any more.

The row of a file in progress is a job. Its owner writes chunks under its fence in several transactions, and the one
that finishes the job makes all of them visible; the fence rejects the writes of a former owner. So a search finds the
chunks of one attempt, or none.
"""

from collections.abc import Collection, Sequence

from antiphon.stores.base import Claim, OwnershipLost
from antiphon.stores.sql.operation import Operation, sql
from antiphon.stores.sql.running_responses import TenantQueue, allocate_slots
from antiphon.stores.sql.text_index import TextIndex
from antiphon.stores.sql.vector_files import COLUMNS, ROW, discard_attempt, discard_chunks, to_vector_file
from antiphon.stores.sql.vector_stores import bump_version
from antiphon.stores.vector_rows import ClaimedVectorFile, IndexResult, TextChunk, VectorFileKey

_QUEUES = """
SELECT tenant, COUNT(*), SUM(CASE WHEN until <= $1 THEN 1 ELSE 0 END) FROM vector_files WHERE status = 'in_progress'
GROUP BY tenant
"""
_HAS_WAITING = "SELECT 1 FROM vector_files WHERE status = 'in_progress' AND until <= $1 LIMIT 1"
_WAITING = """
SELECT store, file, attempts FROM vector_files WHERE status = 'in_progress' AND tenant = $1 AND until <= $2
ORDER BY created, file LIMIT $3 {skip}
"""
_TAKE = f"""
UPDATE vector_files SET owner = $4, until = $5, fence = fence + 1, attempts = attempts + 1 WHERE {ROW}
RETURNING {COLUMNS}, fence, attempts
"""
_OWNED = f"{ROW} AND fence = $4 AND status = 'in_progress' AND owner IS NOT NULL"
_RENEW = f"UPDATE vector_files SET until = $5 WHERE {_OWNED} AND owner = $6 RETURNING file"
_RELEASE = (
    f"UPDATE vector_files SET owner = NULL, until = $5, attempts = $6 WHERE {_OWNED} RETURNING store, file, fence"
)
_FINISH = f"""
UPDATE vector_files SET status = $4, owner = NULL, error_code = $5, error_message = $6, usage_bytes = $7,
    embedder = $8, visible = $9, changed = $10 WHERE {ROW}
"""
_SET_EMBEDDER = "UPDATE vector_stores SET embedder = $3, dimensions = $4 WHERE tenant = $1 AND id = $2"
_OUTDATED = """
SELECT tenant, store, file FROM vector_files WHERE status = 'completed' AND embedder {comparison} $1 LIMIT $2 {skip}
"""
_RESTART = f"UPDATE vector_files SET status = 'in_progress', until = 0, attempts = 0 WHERE {ROW}"
_DELETE_CHUNKS = """
DELETE FROM vector_chunks WHERE id IN (
    SELECT id FROM vector_chunks WHERE store = $1 AND file = $2 AND fence = $3 LIMIT $4
)
RETURNING id
"""


def has_vector_jobs(now: float) -> Operation[bool]:
    """Return whether there are jobs to claim. It only reads: a server that looks for work must not always write."""
    return bool((yield sql(_HAS_WAITING, now)))


def claim_vector_files(now: float, claim: Claim, limit: int, max_attempts: int) -> Operation[list[ClaimedVectorFile]]:
    """Take over at most `limit` jobs without an owner, or whose owner did not renew its claim.

    The tenant with the fewest running jobs comes first, and each tenant's oldest job. A job that `max_attempts` owners
    have begun without an end has failed.
    """
    queues = [
        TenantQueue(0, tenant, int(waiting), total - int(waiting))
        for tenant, total, waiting in (yield sql(_QUEUES, now))
    ]
    claimed = []
    for _, tenant, count in allocate_slots(queues, limit):
        for store, file, attempts in (yield sql(_WAITING, tenant, now, count)):
            yield from discard_attempt(ROW, tenant, store, file)
            *columns, fence, attempt = (yield sql(_TAKE, tenant, store, file, claim.owner, claim.until))[0]
            if attempts < max_attempts:
                row = to_vector_file(tuple(columns))
                claimed.append(ClaimedVectorFile(tenant=tenant, row=row, fence=fence, attempts=attempt))
            else:
                message = f"The server stopped {attempts} times while it indexed this file."
                failure = IndexResult(error_code="server_error", error_message=message)
                yield from finish_vector_file(VectorFileKey(tenant, store, file, fence), failure)
    return claimed


def renew_vector_files(claim: Claim, keys: Collection[VectorFileKey]) -> Operation[set[VectorFileKey]]:
    """Renew the claim on these jobs. Returns those that are still owned by the claimer."""
    renewed = set()
    for key in keys:
        if (yield sql(_RENEW, *key, claim.until, claim.owner)):
            renewed.add(key)
    return renewed


def release_vector_file(key: VectorFileKey, until: float, attempts: int) -> Operation[None]:
    """Give a job back, to be claimed from this time on, after this number of attempts.

    Of a job that is not owned any more, do nothing.
    """
    for released in (yield sql(_RELEASE, *key, until, attempts)):
        yield from discard_chunks(*released)


def write_chunks(index: TextIndex, key: VectorFileKey, chunks: Sequence[TextChunk]) -> Operation[None]:
    """Write chunks, which no search finds until the job is finished. Raises OwnershipLost under another fence."""
    if not (yield sql(f"SELECT 1 FROM vector_files WHERE {_OWNED} {{lock}}", *key)):
        raise OwnershipLost(key.file)
    for chunk in chunks:
        text = chunk.text.replace("\0", " ")  # which PostgreSQL rejects in text
        added = yield from index.insert(key, chunk.number, text)
        if added and chunk.vectors:  # not added if an earlier call wrote it whose reply was lost
            vectors = b"".join(chunk.vectors)
            yield sql("INSERT INTO vector_embeddings (chunk, vectors) VALUES ($1, $2)", added[0][0], vectors)


def finish_vector_file(key: VectorFileKey, result: IndexResult) -> Operation[None]:
    """End a job. Its chunks become visible, in place of earlier ones; after an error, the file has none.

    Raises OwnershipLost under another fence. Repeating it under the same fence has no effect.
    """
    rows = yield sql(f"SELECT visible, status, owner FROM vector_files WHERE {ROW} AND fence = $4 {{lock}}", *key)
    if not rows or (rows[0][2] is None and rows[0][1] not in ("completed", "failed")):
        raise OwnershipLost(key.file)
    former, status, _ = rows[0]
    if status != "in_progress":
        return
    failed = result.error_code is not None
    yield from discard_chunks(key.store, key.file, former, key.fence if failed else 0)
    version = yield from bump_version(key.tenant, key.store)
    error = ("failed" if failed else "completed", result.error_code, result.error_message)
    visible = 0 if failed else key.fence
    yield sql(_FINISH, *key[:3], *error, result.usage_bytes, result.embedder, visible, version)
    if result.dimensions:  # it has vectors
        yield sql(_SET_EMBEDDER, key.tenant, key.store, result.embedder, result.dimensions)


def reindex_vector_files(embedder: str, limit: int) -> Operation[int]:
    """Index files again that another embedder has indexed, at most `limit`, and return how many.

    Until a file is finished, searches find its former chunks by their text.
    """
    outdated = []
    for comparison in ("<", ">"):  # an index finds these, but not <>
        outdated += yield sql(_OUTDATED.replace("{comparison}", comparison), embedder, limit)
    for row in outdated[:limit]:
        yield sql(_RESTART, *row)
    return len(outdated[:limit])


def index_words_again(index: TextIndex, limit: int) -> Operation[int]:
    """Index the words of at most `limit` chunks that an earlier version has indexed, and return how many."""
    outdated = yield sql("SELECT store, file, id, text FROM vector_chunks WHERE words = 0 LIMIT $1 {lock}", limit)
    for row in outdated:
        yield from index.update(*row)
    return len(outdated)


def purge_vector_chunks(index: TextIndex, limit: int) -> Operation[int]:
    """Delete at most `limit` chunks that are not needed any more. Returns 0 once there are none."""
    garbage = yield sql(
        "SELECT store, file, fence FROM vector_garbage ORDER BY store DESC, file DESC, fence DESC LIMIT 1 {skip}"
    )
    for store, file, fence in garbage:
        deleted = yield from _delete_chunks(index, store, file, fence, limit)
        if deleted == limit:
            return deleted
        if not file:  # sorts last: the chunks of the store are deleted
            yield from index.drop(store)
        yield sql("DELETE FROM vector_garbage WHERE store = $1 AND file = $2 AND fence = $3", store, file, fence)
        return deleted + 1
    return 0


def _delete_chunks(index: TextIndex, store: str, file: str, fence: int, limit: int) -> Operation[int]:
    deleted = yield sql(_DELETE_CHUNKS, store, file, fence, limit)
    is_dropped = yield sql("SELECT 1 FROM vector_garbage WHERE store = $1 AND file = ''", store)
    for (chunk,) in deleted:
        if not is_dropped:  # with the whole text index, after its chunks
            yield from index.remove(store, chunk)
        yield sql("DELETE FROM vector_embeddings WHERE chunk = $1", chunk)
    return len(deleted)
