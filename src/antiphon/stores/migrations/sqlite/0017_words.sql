-- 1 if the words of a chunk are indexed as this version does; servers index the others again.
ALTER TABLE vector_chunks ADD COLUMN words INTEGER NOT NULL DEFAULT 0;
CREATE INDEX vector_chunks_words ON vector_chunks (words) WHERE words = 0;
