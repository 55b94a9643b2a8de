"""The text index of vector stores: words to the chunks that contain them, ranked within one vector store.

SQLite has an FTS5 table for each vector store, ranked by BM25: in a shared table the statistics, and the time of a
search, would depend on the data of other tenants. PostgreSQL has a tsvector in each chunk, but no statistics of the
words of one vector store: a sample tells how common they are, and the chunks with the rarest are ranked (`bm25.py`).

The words of texts and queries are the same for both (`search_words.py`), and each has its own stems. A query is an OR
of words. It can be restricted to chunks of a few files, whose ids are indexed like words, but do not count for the
rank.
"""

import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from antiphon.ids import is_id
from antiphon.stores.search_words import index_words
from antiphon.stores.sql.bm25 import rank_candidates
from antiphon.stores.sql.operation import Operation, Rows, sql
from antiphon.stores.vector_rows import VectorFileKey

_MAX_RANKED = 5000  # chunks that a search ranks in SQLite, unless more of them have the rarest of its words
_MAX_CANDIDATES = 500  # chunks that a search ranks in PostgreSQL, where each takes longer
_ENOUGH = 10  # of them; for fewer, those with common words are ranked too
_MAX_FILE_TERMS = 100  # of a query; with a filter that more files match, chunks of other files are skipped
_SAMPLED_CHUNKS = 1000
_STATISTICS_SECONDS, _LARGE_CHUNKS = 60.0, 10_000  # for which a sample of so many chunks is used; of fewer, shorter
_MAX_STATISTICS = 100  # samples in memory, of some thousand words each


_INSERT = """
INSERT INTO vector_chunks (store, file, fence, number, text, words{column}) VALUES ($1, $2, $3, $4, $5, 1{value})
ON CONFLICT (store, file, fence, number) DO NOTHING RETURNING id
"""
_UPDATE = "UPDATE vector_chunks SET words = 1{change} WHERE id = $1"


class TextIndex(ABC):
    """The text index of a database. It has to do nothing for some methods."""

    def create(self, store: str) -> Operation[None]:
        yield from ()

    def drop(self, store: str) -> Operation[None]:
        yield from ()

    @abstractmethod
    def insert(self, key: VectorFileKey, number: int, text: str) -> Operation[Rows]:
        """Write a chunk with its words, and return its id; nothing if there is one with this number."""

    @abstractmethod
    def update(self, store: str, file: str, chunk: int, text: str) -> Operation[None]:
        """Index the words of a chunk again."""

    def remove(self, store: str, chunk: int) -> Operation[None]:
        yield from ()

    @abstractmethod
    def search(self, store: str, words: Sequence[str], files: Sequence[str], limit: int) -> Operation[Rows]:
        """Return the best chunks, of these files if there are any, and their scores, best first; also those that are
        not visible yet, and some of other files if many are allowed.
        """


class FtsIndex(TextIndex):
    """FTS5 tables without content of their own: the text is in the chunks.

    FTS5 drops the words of a removed chunk when it merges that part of the index. Overwriting them at once, with its
    option `secure-delete`, takes milliseconds per chunk.
    """

    def create(self, store: str) -> Operation[None]:
        table = _name_table(store)
        options = "content='', contentless_delete=1, tokenize='porter unicode61'"
        yield sql(f"CREATE VIRTUAL TABLE {table} USING fts5(text, file, {options})")
        yield sql(f"INSERT INTO {table} ({table}, rank) VALUES ('rank', 'bm25(1.0, 0.0)')")

    def drop(self, store: str) -> Operation[None]:
        yield sql(f"DROP TABLE IF EXISTS {_name_table(store)}")

    def insert(self, key: VectorFileKey, number: int, text: str) -> Operation[Rows]:
        rows = yield sql(_INSERT.format(column="", value=""), key.store, key.file, key.fence, number, text)
        for (chunk,) in rows:
            yield from self._put(key.store, key.file, chunk, text)
        return rows

    def update(self, store: str, file: str, chunk: int, text: str) -> Operation[None]:
        yield from self._put(store, file, chunk, text)
        yield sql(_UPDATE.format(change=""), chunk)

    def _put(self, store: str, file: str, chunk: int, text: str) -> Operation[None]:
        statement = f"REPLACE INTO {_name_table(store)} (rowid, text, file) VALUES ($1, $2, $3)"
        yield sql(statement, chunk, index_words(text), _to_term(file))

    def remove(self, store: str, chunk: int) -> Operation[None]:
        yield sql(f"DELETE FROM {_name_table(store)} WHERE rowid = $1", chunk)

    def search(self, store: str, words: Sequence[str], files: Sequence[str], limit: int) -> Operation[Rows]:
        table = _name_table(store)
        query = f"text: ({_join_quoted(words)})"
        rare = yield from self._find_rare(table, words)
        if len(rare) < len(words):
            query += f" AND text: ({_join_quoted(rare)})"
        if files and len(files) <= _MAX_FILE_TERMS:
            query += f" AND file: ({_join_quoted([_to_term(file) for file in files])})"
        # FTS5 multiplies BM25 by −1, so that the best come first.
        text = f"SELECT rowid, -rank FROM {table} WHERE {table} MATCH $1 ORDER BY rank LIMIT $2"
        return (yield sql(text, query, limit))

    def _find_rare(self, table: str, words: Sequence[str]) -> Operation[list[str]]:
        """Return the rarest words, which together are in few chunks.

        Only chunks with any of them are ranked, by all words: each takes microseconds, and common words hardly change
        the order of the best.
        """
        counts = {}
        text = f"SELECT COUNT(*) FROM (SELECT 1 FROM {table} WHERE {table} MATCH $1 LIMIT $2)"
        for term in words:
            counts[term] = (yield sql(text, f'text: "{term}"', _MAX_RANKED))[0][0]
        return _take_rarest(counts, _MAX_RANKED)


class WordStatistics(Struct, frozen=True):
    """The number of chunks of a vector store, and in how many a word is, estimated from a sample of them."""

    chunks: int
    until: float  # monotonic time
    words: Mapping[str, int] = {}  # lexemes, and in how many chunks of the sample they are, if in several

    def estimate(self, lexeme: str) -> float:
        return self.words.get(lexeme, 1) * max(self.chunks / _SAMPLED_CHUNKS, 1.0)


class TsvectorIndex(TextIndex):
    """A column of the chunks, with the ids of the store and the file beside the stems of the words."""

    def __init__(self) -> None:
        self._statistics: OrderedDict[str, WordStatistics] = OrderedDict()

    def insert(self, key: VectorFileKey, number: int, text: str) -> Operation[Rows]:
        value = ", " + _TO_VECTOR.format(words="$6", ids="$1, $2")
        statement = _INSERT.format(column=", lexemes", value=value)
        return (yield sql(statement, key.store, key.file, key.fence, number, text, index_words(text)))

    def update(self, store: str, file: str, chunk: int, text: str) -> Operation[None]:
        value = _TO_VECTOR.format(words="$2", ids="store, file")
        yield sql(_UPDATE.format(change=f", lexemes = {value}"), chunk, index_words(text))

    def search(self, store: str, words: Sequence[str], files: Sequence[str], limit: int) -> Operation[Rows]:
        statistics = yield from self._get_statistics(store)
        lexemes = [lexeme for (lexeme,) in (yield sql(_TO_LEXEMES, [f"'{term}'" for term in words]))]
        counts = {lexeme: statistics.estimate(lexeme.strip("'")) for lexeme in lexemes}
        if not counts:
            return []
        rare = _take_rarest(counts, _MAX_CANDIDATES)
        others = " | ".join(lexeme for lexeme in counts if lexeme not in rare)
        has_rare = counts[rare[0]] <= _MAX_CANDIDATES
        queries = [" | ".join(rare) if has_rare or not others else f"{rare[0]} & ({others})"]
        queries += [f"{rare[0]} | {others}"] if others else []
        found: dict[int, tuple[Any, ...]] = {}
        for query in queries:
            found |= {row[0]: row for row in (yield from self._read_candidates(store, query, [*counts], files))}
            if len(found) >= min(limit, _ENOUGH):
                break
        # All chunks with a rare word were read, unless there are too many.
        is_complete = has_rare and len(found) < _MAX_CANDIDATES
        estimates = [None if lexeme in rare and is_complete else count for lexeme, count in counts.items()]
        return [*rank_candidates([*found.values()], estimates, statistics.chunks)[:limit]]

    def _get_statistics(self, store: str) -> Operation[WordStatistics]:
        statistics = self._statistics.pop(store, None)
        if statistics is None or statistics.until < time.monotonic():
            statistics = yield from self._sample(store)
        self._statistics[store] = statistics
        if len(self._statistics) > _MAX_STATISTICS:
            self._statistics.popitem(last=False)
        return statistics

    def _sample(self, store: str) -> Operation[WordStatistics]:
        """Count the words of chunks at equal distances."""
        attempts = yield sql(_ATTEMPTS, store)
        chunks = sum(count for *_, count in attempts)
        until = time.monotonic() + _STATISTICS_SECONDS * min(chunks / _LARGE_CHUNKS, 1.0)
        if not chunks:
            return WordStatistics(chunks, until)
        keys = ((file, fence, first + n) for file, fence, first, count in attempts for n in range(count))
        sampled = islice(keys, 0, None, max(chunks // _SAMPLED_CHUNKS, 1))
        rows = yield sql(_COUNT_WORDS, store, *map(list, zip(*sampled, strict=True)))
        return WordStatistics(chunks, until, dict(rows))

    def _read_candidates(self, store: str, query: str, lexemes: Sequence[str], files: Sequence[str]) -> Operation[Rows]:
        scope = f"{store} & ({query})"
        if files and len(files) <= _MAX_FILE_TERMS:
            names = " | ".join(f"'{file}'" for file in files)
            scope += f" & ({names})"
        ranks = ", ".join(_RANK.replace("{number}", str(number)) for number in range(5, 5 + len(lexemes)))
        text = _CANDIDATES.replace("{ranks}", ranks)
        return (yield sql(text, store, scope, _MAX_CANDIDATES, [*files], *lexemes))


_TO_VECTOR = "to_tsvector('english', {words}) || array_to_tsvector(ARRAY[{ids}])"
_TO_LEXEMES = """
SELECT DISTINCT CAST(query AS text) FROM unnest(CAST($1 AS text[])) AS term, to_tsquery('english', term) AS query
WHERE numnode(query) > 0
"""
_ATTEMPTS = "SELECT file, fence, MIN(number), COUNT(*) FROM vector_chunks WHERE store = $1 GROUP BY file, fence"
_COUNT_WORDS = """
SELECT lexeme, COUNT(*)
FROM unnest(CAST($2 AS text[]), CAST($3 AS bigint[]), CAST($4 AS bigint[])) AS sampled (file, fence, number)
    JOIN vector_chunks USING (file, fence, number), unnest(tsvector_to_array(lexemes)) AS lexeme
WHERE store = $1 GROUP BY lexeme HAVING COUNT(*) > 2
"""
_TO_QUERY = "(SELECT CAST(CAST({value} AS text) AS tsquery))"  # evaluated once
# `store || ''` makes PostgreSQL use the text index instead of reading all chunks of the store. The concatenation of
# lexemes decompresses them once for all of their ranks.
_CANDIDATES = f"""
SELECT id, size, {{ranks}} FROM (
    SELECT id, octet_length(text) AS size, lexemes || CAST('' AS tsvector) AS lexemes FROM vector_chunks
    WHERE lexemes @@ {_TO_QUERY.format(value="$2")} AND store || '' = $1
        AND (cardinality(CAST($4 AS text[])) = 0 OR file = ANY($4))
    LIMIT $3
) found
"""
_RANK = f"ts_rank('{{1, 1, 1, 1}}', lexemes, {_TO_QUERY.format(value='${number}')})"


def _take_rarest(counts: Mapping[str, float], limit: int) -> list[str]:
    """Return the rarest words, which together are in at most `limit` chunks; at least one."""
    rare = sorted(counts, key=lambda term: counts[term])
    while len(rare) > 1 and sum(counts[term] for term in rare) > limit:
        rare.pop()
    return rare


def _name_table(store: str) -> str:
    """The id becomes part of statements, so it has to be one that this server generated."""
    assert is_id(store, "vs"), store
    return f"text_{store}"


def _to_term(file: str) -> str:
    """Return the digits of the id, without the prefix that all of them have."""
    return file.rpartition("-")[2]


def _join_quoted(terms: Sequence[str]) -> str:
    return " OR ".join(f'"{term}"' for term in terms)
