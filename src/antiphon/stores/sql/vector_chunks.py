"""Chunks of vector stores as searches read them: only those that are visible."""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from antiphon.stores.base import Page
from antiphon.stores.sql.operation import MAX_LIST, Operation, Rows, in_list, sanitise_id, sql
from antiphon.stores.sql.text_index import TextIndex
from antiphon.stores.vector_rows import FoundChunk, SearchableFile, StoredVectors

_VISIBLE = """
FROM vector_files f JOIN vector_chunks c ON c.store = f.store AND c.file = f.file AND c.fence = f.visible
"""
_PAGE = f"""
SELECT c.text {_VISIBLE} WHERE f.tenant = $1 AND f.store = $2 AND f.file = $3 AND c.number >= $4
ORDER BY c.number LIMIT $5
"""
# Each file of a store changed in a version of its own, so the indexes have this order.
_LOAD = f"""
SELECT f.changed, c.number, c.id, f.file, e.vectors {_VISIBLE} JOIN vector_embeddings e ON e.chunk = c.id
WHERE f.tenant = $1 AND f.store = $2 AND f.visible > 0 AND f.embedder = $3 AND f.changed >= $4
    AND (f.changed > $4 OR c.number > $5)
ORDER BY f.changed, c.number LIMIT $6
"""
# The expression and the subquery keep the databases from reading all chunks of the store to find a few by their ids.
_READ = """
SELECT id, file, {column} FROM vector_chunks c WHERE id IN {list} AND store || '' = $2 AND fence = (
    SELECT visible FROM vector_files f WHERE f.tenant = $1 AND f.store = $2 AND f.file = c.file
)
"""
_FILES = """
SELECT v.file, f.filename, v.attributes, v.changed
FROM vector_files v JOIN files f ON f.tenant = v.tenant AND f.id = v.file
WHERE v.tenant = $1 AND v.store = $2 AND v.visible > 0
"""


def page_chunks(tenant: str, store: str, file: str, start: int, limit: int) -> Operation[Page[str]]:
    """Return the text of a file's chunks, from number `start` on."""
    rows = yield sql(_PAGE, tenant, sanitise_id(store), sanitise_id(file), start, limit + 1)
    return Page([text for (text,) in rows[:limit]], len(rows) > limit)


def list_searchable_files(tenant: str, store: str) -> Operation[dict[str, SearchableFile]]:
    """Return the files that searches find, by their ids."""
    return {
        file: SearchableFile(filename=filename, attributes=msgspec.json.decode(attributes), changed=changed)
        for file, filename, attributes, changed in (yield sql(_FILES, tenant, store))
    }


def load_vectors(
    tenant: str, store: str, embedder: str, after: tuple[int, int], limit: int
) -> Operation[list[StoredVectors]]:
    """Return vectors that this embedder made, in the order in which they became visible.

    `after` are the first two fields of the row before, or a version after which they became visible and any number.
    """
    rows = yield sql(_LOAD, tenant, store, embedder, *after, limit)
    return [StoredVectors(*row) for row in rows]


def read_vectors(chunks: Sequence[int]) -> Operation[dict[int, bytes]]:
    """Return the vectors of these chunks, as far as they exist."""
    rows = yield from _select_in("SELECT chunk, vectors FROM vector_embeddings WHERE chunk IN {list}", chunks)
    return dict(rows)


def read_chunks(tenant: str, store: str, chunks: Sequence[int]) -> Operation[dict[int, tuple[str, str]]]:
    """Return file and text of these chunks, as far as they are visible in this store."""
    rows = yield from _select_in(_READ.replace("{column}", "text"), chunks, tenant, store)
    return {chunk: (file, text) for chunk, file, text in rows}


def search_text(
    index: TextIndex, tenant: str, store: str, words: Sequence[str], limit: int, files: Collection[str] | None = None
) -> Operation[list[FoundChunk]]:
    """Return the visible chunks, of these files if not None, that contain any of the words; the best ones first."""
    count = limit
    has_index = yield sql("SELECT 1 FROM vector_stores WHERE tenant = $1 AND id = $2 AND expired = 0", tenant, store)
    while has_index and words and (files is None or files):
        ranked = yield from index.search(store, words, [*(files or ())], count)
        rows = yield from _select_in(_READ.replace("{column}", "1"), [chunk for chunk, _ in ranked], tenant, store)
        visible = {chunk: file for chunk, file, _ in rows}
        found = [
            FoundChunk(chunk, visible[chunk], score)
            for chunk, score in ranked
            if chunk in visible and (files is None or visible[chunk] in files)
        ]
        if len(found) >= limit or len(ranked) < count:
            return found[:limit]
        count *= 8  # chunks that are not visible yet, or of other files, came first
    return []


def _select_in(text: str, numbers: Sequence[int], *values: Any) -> Operation[Rows]:
    """Select rows whose key is one of the numbers, many at a time."""
    rows: Rows = []
    for start in range(0, len(numbers), MAX_LIST):
        condition, keys = in_list(numbers[start : start + MAX_LIST], len(values) + 1)
        rows += yield sql(text.replace("{list}", condition), *values, *keys)
    return rows
