-- Vector stores. `version` grows with every change of what a search can find. `expires`: `days` after `last_active`;
-- `expired`: that time has come, and the files were removed. `embedder` and `dimensions`: of the vectors written last.
CREATE TABLE vector_stores (
    tenant      TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    created     REAL    NOT NULL,
    name        TEXT    NOT NULL,
    description TEXT    NOT NULL,
    metadata    TEXT    NOT NULL,
    days        INTEGER,
    last_active REAL    NOT NULL,
    expires     REAL,
    embedder    TEXT    NOT NULL,
    dimensions  INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    expired     INTEGER NOT NULL
);
CREATE UNIQUE INDEX vector_stores_id ON vector_stores (tenant, id);
CREATE INDEX vector_stores_created ON vector_stores (tenant, created, id);
CREATE INDEX vector_stores_expires ON vector_stores (expires) WHERE expired = 0 AND expires IS NOT NULL;

-- Files of vector stores. A row that is in_progress is a job: whoever finds it without an owner, or after `until`, takes
-- it over under a new fence. `visible`: the fence of the chunks that searches find, 0 for none; they were embedded by
-- `embedder`, and became visible with the version `changed` of their store.
CREATE TABLE vector_files (
    tenant         TEXT    NOT NULL,
    store          TEXT    NOT NULL,
    file           TEXT    NOT NULL,
    created        REAL    NOT NULL,
    status         TEXT    NOT NULL,
    error_code     TEXT,
    error_message  TEXT,
    chunk_tokens   INTEGER NOT NULL,
    overlap_tokens INTEGER NOT NULL,
    attributes     TEXT    NOT NULL,
    usage_bytes    INTEGER NOT NULL,
    batch          TEXT,
    owner          TEXT,
    until          REAL    NOT NULL,
    fence          INTEGER NOT NULL,
    attempts       INTEGER NOT NULL,
    visible        INTEGER NOT NULL,
    embedder       TEXT    NOT NULL,
    changed        INTEGER NOT NULL
);
CREATE UNIQUE INDEX vector_files_id ON vector_files (tenant, store, file);
CREATE INDEX vector_files_file ON vector_files (tenant, file, store);
CREATE INDEX vector_files_created ON vector_files (tenant, store, created, file);
CREATE INDEX vector_files_batch ON vector_files (tenant, store, batch, created, file) WHERE batch IS NOT NULL;
CREATE INDEX vector_files_status ON vector_files (tenant, store, status, usage_bytes);
CREATE INDEX vector_files_queue ON vector_files (tenant, created, file, store, until, status)
    WHERE status = 'in_progress';
CREATE UNIQUE INDEX vector_files_changed ON vector_files (tenant, store, changed) WHERE visible > 0;
CREATE INDEX vector_files_embedder ON vector_files (embedder) WHERE status = 'completed';

CREATE TABLE vector_batches (
    tenant    TEXT    NOT NULL,
    store     TEXT    NOT NULL,
    id        TEXT    NOT NULL,
    created   REAL    NOT NULL,
    cancelled INTEGER NOT NULL,
    PRIMARY KEY (tenant, store, id)
) WITHOUT ROWID;

-- The text of files in chunks. The text index of a store is an FTS5 table of its own, so that its statistics are of this
-- store only; its rowids are the ids of chunks.
CREATE TABLE vector_chunks (
    id     INTEGER NOT NULL PRIMARY KEY,
    store  TEXT    NOT NULL,
    file   TEXT    NOT NULL,
    fence  INTEGER NOT NULL,
    number INTEGER NOT NULL,
    text   TEXT    NOT NULL
);
CREATE UNIQUE INDEX vector_chunks_number ON vector_chunks (store, file, fence, number);

-- The vectors of a chunk, one after the other. They are read by hundreds, without the text.
CREATE TABLE vector_embeddings (
    chunk   INTEGER NOT NULL PRIMARY KEY,
    vectors BLOB    NOT NULL
);

-- Chunks that no search finds any more, to be deleted a few at a time. `file` '': the text index of a deleted store.
CREATE TABLE vector_garbage (
    store TEXT    NOT NULL,
    file  TEXT    NOT NULL,
    fence INTEGER NOT NULL,
    PRIMARY KEY (store, file, fence)
) WITHOUT ROWID;
