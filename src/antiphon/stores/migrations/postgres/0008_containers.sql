-- The same as for SQLite, which explains itself there.

CREATE TABLE containers (
    tenant      text COLLATE "C" NOT NULL,
    id          text COLLATE "C" NOT NULL,
    created     double precision NOT NULL,
    name        text NOT NULL,
    memory      text COLLATE "C" NOT NULL,
    minutes     bigint NOT NULL,
    last_active double precision NOT NULL,
    expires     double precision NOT NULL,
    sandbox     text COLLATE "C" NOT NULL,
    state       text COLLATE "C" NOT NULL,
    deleted     integer NOT NULL
);
CREATE UNIQUE INDEX containers_id ON containers (tenant, id);
CREATE INDEX containers_created ON containers (tenant, deleted, created, id);
CREATE INDEX containers_sandbox ON containers (sandbox, expires) WHERE state <> 'ended';
CREATE INDEX containers_expires ON containers (expires);

CREATE TABLE container_files (
    tenant    text COLLATE "C" NOT NULL,
    container text COLLATE "C" NOT NULL,
    id        text COLLATE "C" NOT NULL,
    created   double precision NOT NULL,
    bytes     bigint NOT NULL,
    path      text NOT NULL,
    source    text COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX container_files_id ON container_files (tenant, container, id);
CREATE UNIQUE INDEX container_files_path ON container_files (tenant, container, path);
CREATE INDEX container_files_created ON container_files (tenant, container, created, id);
