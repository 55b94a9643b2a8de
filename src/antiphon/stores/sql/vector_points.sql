-- Embeddings have 16-bit floats as in the vectors of chunks, so nothing is rounded. Those of several models share the
-- column, so it has no fixed dimensions. Compression would take time and save nothing.
DROP TABLE IF EXISTS vector_points, vector_point_files;
CREATE TABLE vector_points (
    chunk      bigint NOT NULL REFERENCES vector_embeddings ON DELETE CASCADE,
    number     bigint NOT NULL,
    store      text COLLATE "C" NOT NULL,
    changed    bigint NOT NULL,
    dimensions bigint NOT NULL,
    embedding  halfvec NOT NULL,
    PRIMARY KEY (chunk, number)
);
ALTER TABLE vector_points ALTER COLUMN embedding SET STORAGE MAIN;
CREATE INDEX vector_points_file ON vector_points (store, changed);
CREATE TABLE vector_point_files (
    store      text COLLATE "C" NOT NULL,
    changed    bigint NOT NULL,
    embedder   text COLLATE "C" NOT NULL,
    dimensions bigint NOT NULL,
    vectors    bigint NOT NULL,
    chunk      bigint NOT NULL REFERENCES vector_embeddings ON DELETE CASCADE,
    PRIMARY KEY (store, changed)
);
CREATE INDEX vector_point_files_chunk ON vector_point_files (chunk);
