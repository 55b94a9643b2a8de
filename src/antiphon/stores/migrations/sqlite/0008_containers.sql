-- Containers in which code runs, of the sandbox `sandbox`. `state`: starting, running or ended, which is when nothing
-- runs any more. One that is unused for `minutes` expires at `expires`. `deleted`: it is hidden until it has ended.
CREATE TABLE containers (
    tenant      TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    created     REAL    NOT NULL,
    name        TEXT    NOT NULL,
    memory      TEXT    NOT NULL,
    minutes     INTEGER NOT NULL,
    last_active REAL    NOT NULL,
    expires     REAL    NOT NULL,
    sandbox     TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    deleted     INTEGER NOT NULL
);
CREATE UNIQUE INDEX containers_id ON containers (tenant, id);
CREATE INDEX containers_created ON containers (tenant, deleted, created, id);
CREATE INDEX containers_sandbox ON containers (sandbox, expires) WHERE state <> 'ended';
CREATE INDEX containers_expires ON containers (expires);

-- Files of containers that clients know. The bytes are in the sandbox. `source`: user or assistant, who wrote it last.
CREATE TABLE container_files (
    tenant    TEXT    NOT NULL,
    container TEXT    NOT NULL,
    id        TEXT    NOT NULL,
    created   REAL    NOT NULL,
    bytes     INTEGER NOT NULL,
    path      TEXT    NOT NULL,
    source    TEXT    NOT NULL
);
CREATE UNIQUE INDEX container_files_id ON container_files (tenant, container, id);
CREATE UNIQUE INDEX container_files_path ON container_files (tenant, container, path);
CREATE INDEX container_files_created ON container_files (tenant, container, created, id);
