"""The text index of vector stores: words to the chunks that contain them, ranked within one vector store.

SQLite has an FTS5 table for each vector store, ranked by BM25: in a shared table the statistics, and the time of a
search, would depend on the data of other tenants. PostgreSQL has a tsvector in each chunk, ranked by ts_rank.

A query is an OR of words. Words are letters and digits only, so that none is an operator. It can be restricted to
chunks of a few files, whose ids are indexed like words, but do not count for the rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from antiphon.ids import is_id
from antiphon.stores.sql.operation import Operation, Rows, sql

_MAX_RANKED = 5000  # chunks that a search ranks, unless more of them have the rarest of its words


class TextIndex(ABC):
    """The text index of a database, which maintains it by itself unless the methods do something."""

    def create(self, store: str) -> Operation[None]:
        yield from ()

    def drop(self, store: str) -> Operation[None]:
        yield from ()

    def add(self, store: str, file: str, chunk: int, text: str) -> Operation[None]:
        yield from ()

    def remove(self, store: str, chunk: int) -> Operation[None]:
        yield from ()

    @abstractmethod
    def search(self, store: str, words: Sequence[str], files: Sequence[str], limit: int) -> Operation[Rows]:
        """Return the best chunks, of these files if there are any, and their scores; also those not visible yet."""


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

    def add(self, store: str, file: str, chunk: int, text: str) -> Operation[None]:
        table = _name_table(store)
        yield sql(f"INSERT INTO {table} (rowid, text, file) VALUES ($1, $2, $3)", chunk, text, _to_term(file))

    def remove(self, store: str, chunk: int) -> Operation[None]:
        yield sql(f"DELETE FROM {_name_table(store)} WHERE rowid = $1", chunk)

    def search(self, store: str, words: Sequence[str], files: Sequence[str], limit: int) -> Operation[Rows]:
        table = _name_table(store)
        query = f"text: ({_join_quoted(words)})"
        rare = yield from self._find_rare(table, words)
        if len(rare) < len(words):
            query += f" AND text: ({_join_quoted(rare)})"
        if files:
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
        rare = sorted(words, key=lambda term: counts[term])
        while len(rare) > 1 and sum(counts[term] for term in rare) > _MAX_RANKED:
            rare.pop()
        return rare


class TsvectorIndex(TextIndex):
    """A column that PostgreSQL generates from the text."""

    def search(self, store: str, words: Sequence[str], files: Sequence[str], limit: int) -> Operation[Rows]:
        # The expression makes PostgreSQL use the text index instead of reading all chunks of the store.
        scope = f"{store} & ({_join_lexemes(files)})" if files else store
        return (
            yield sql(
                "SELECT id, ts_rank(lexemes, words, 1) AS score FROM vector_chunks, to_tsquery('english', $2) AS words "
                "WHERE lexemes @@ (CAST(CAST($3 AS text) AS tsquery) && words) AND store || '' = $1 "
                "ORDER BY score DESC, id LIMIT $4",
                store,
                _join_lexemes(words),
                scope,
                limit,
            )
        )


def _name_table(store: str) -> str:
    """The id becomes part of statements, so it has to be one that this server generated."""
    assert is_id(store, "vs"), store
    return f"text_{store}"


def _to_term(file: str) -> str:
    """Return the digits of the id, without the prefix that all of them have."""
    return file.rpartition("-")[2]


def _join_quoted(terms: Sequence[str]) -> str:
    return " OR ".join(f'"{term}"' for term in terms)


def _join_lexemes(terms: Sequence[str]) -> str:
    return " | ".join(f"'{term}'" for term in terms)
