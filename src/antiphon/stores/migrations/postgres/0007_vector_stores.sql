-- The same as for SQLite, which explains itself there.

CREATE TABLE vector_stores (
    tenant      text COLLATE "C" NOT NULL,
    id          text COLLATE "C" NOT NULL,
    created     double precision NOT NULL,
    name        text NOT NULL,
    description text NOT NULL,
    metadata    text NOT NULL,
    days        bigint,
    last_active double precision NOT NULL,
    expires     double precision,
    embedder    text COLLATE "C" NOT NULL,
    dimensions  bigint NOT NULL,
    version     bigint NOT NULL,
    expired     integer NOT NULL
);
CREATE UNIQUE INDEX vector_stores_id ON vector_stores (tenant, id);
CREATE INDEX vector_stores_created ON vector_stores (tenant, created, id);
CREATE INDEX vector_stores_expires ON vector_stores (expires) WHERE expired = 0 AND expires IS NOT NULL;

CREATE TABLE vector_files (
    tenant         text COLLATE "C" NOT NULL,
    store          text COLLATE "C" NOT NULL,
    file           text COLLATE "C" NOT NULL,
    created        double precision NOT NULL,
    status         text COLLATE "C" NOT NULL,
    error_code     text COLLATE "C",
    error_message  text,
    chunk_tokens   bigint NOT NULL,
    overlap_tokens bigint NOT NULL,
    attributes     text NOT NULL,
    usage_bytes    bigint NOT NULL,
    batch          text COLLATE "C",
    owner          text COLLATE "C",
    until          double precision NOT NULL,
    fence          bigint NOT NULL,
    attempts       bigint NOT NULL,
    visible        bigint NOT NULL,
    embedder       text COLLATE "C" NOT NULL,
    changed        bigint NOT NULL
);
CREATE UNIQUE INDEX vector_files_id ON vector_files (tenant, store, file);
CREATE INDEX vector_files_file ON vector_files (tenant, file, store);
CREATE INDEX vector_files_created ON vector_files (tenant, store, created, file);
CREATE INDEX vector_files_batch ON vector_files (tenant, store, batch, created, file) WHERE batch IS NOT NULL;
CREATE INDEX vector_files_status ON vector_files (tenant, store, status, usage_bytes);
CREATE INDEX vector_files_queue ON vector_files (tenant, created, file, store, until) WHERE status = 'in_progress';
CREATE UNIQUE INDEX vector_files_changed ON vector_files (tenant, store, changed) WHERE visible > 0;
CREATE INDEX vector_files_embedder ON vector_files (embedder) WHERE status = 'completed';

CREATE TABLE vector_batches (
    tenant    text COLLATE "C" NOT NULL,
    store     text COLLATE "C" NOT NULL,
    id        text COLLATE "C" NOT NULL,
    created   double precision NOT NULL,
    cancelled integer NOT NULL,
    PRIMARY KEY (tenant, store, id)
);

CREATE TABLE vector_chunks (
    id     bigserial NOT NULL PRIMARY KEY,
    store  text COLLATE "C" NOT NULL,
    file   text COLLATE "C" NOT NULL,
    fence  bigint NOT NULL,
    number bigint NOT NULL,
    text   text NOT NULL
);
CREATE UNIQUE INDEX vector_chunks_number ON vector_chunks (store, file, fence, number);

-- The text index, with the ids of the store and the file as lexemes: a query for these and for others skips the entries
-- of other stores in an index that all of them share.
ALTER TABLE vector_chunks ADD COLUMN lexemes tsvector NOT NULL
    GENERATED ALWAYS AS (to_tsvector('english', text) || array_to_tsvector(ARRAY[store, file])) STORED;
CREATE INDEX vector_chunks_lexemes ON vector_chunks USING gin (lexemes);

CREATE TABLE vector_embeddings (
    chunk   bigint NOT NULL PRIMARY KEY,
    vectors bytea NOT NULL
);
-- Vectors hardly compress.
ALTER TABLE vector_embeddings ALTER COLUMN vectors SET STORAGE EXTERNAL;

CREATE TABLE vector_garbage (
    store text COLLATE "C" NOT NULL,
    file  text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    PRIMARY KEY (store, file, fence)
);
