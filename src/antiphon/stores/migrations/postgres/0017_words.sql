-- The same as for SQLite, which explains itself there.
ALTER TABLE vector_chunks ADD COLUMN words integer NOT NULL DEFAULT 0;
CREATE INDEX vector_chunks_words ON vector_chunks (words) WHERE words = 0;
-- Servers split texts into words, so that these are the same for all databases. Servers of earlier versions, which may
-- still run, write chunks without words, which are indexed again.
ALTER TABLE vector_chunks ALTER COLUMN lexemes DROP EXPRESSION;
ALTER TABLE vector_chunks ALTER COLUMN lexemes SET DEFAULT CAST('' AS tsvector);
-- Each search would read the list of entries that are not in the index yet, which may grow to 4 MB.
ALTER INDEX vector_chunks_lexemes SET (fastupdate = off);
