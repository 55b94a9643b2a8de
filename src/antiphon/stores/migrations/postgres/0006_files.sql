-- The same as for SQLite, which explains itself there.

CREATE TABLE files (
    tenant   text COLLATE "C" NOT NULL,
    id       text COLLATE "C" NOT NULL,
    created  double precision NOT NULL,
    expires  double precision,
    bytes    bigint NOT NULL,
    filename text COLLATE "C" NOT NULL,
    purpose  text COLLATE "C" NOT NULL,
    digest   bytea NOT NULL,
    content  text COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX files_id ON files (tenant, id);
CREATE INDEX files_digest ON files (tenant, digest);
CREATE INDEX files_content ON files (content);
CREATE INDEX files_expires ON files (expires) WHERE expires IS NOT NULL;

CREATE TABLE uploads (
    tenant   text COLLATE "C" NOT NULL,
    id       text COLLATE "C" NOT NULL,
    created  double precision NOT NULL,
    expires  double precision NOT NULL,
    status   text COLLATE "C" NOT NULL,
    bytes    bigint NOT NULL,
    filename text COLLATE "C" NOT NULL,
    purpose  text COLLATE "C" NOT NULL,
    lifetime bigint,
    file     text COLLATE "C",
    PRIMARY KEY (tenant, id)
);
CREATE INDEX uploads_expires ON uploads (expires);

CREATE TABLE upload_parts (
    tenant  text COLLATE "C" NOT NULL,
    upload  text COLLATE "C" NOT NULL,
    id      text COLLATE "C" NOT NULL,
    bytes   bigint NOT NULL,
    content text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, upload, id)
);
CREATE INDEX upload_parts_content ON upload_parts (content);

CREATE TABLE contents (
    content text COLLATE "C" NOT NULL,
    number  bigint NOT NULL,
    created double precision NOT NULL,
    block   bytea NOT NULL,
    PRIMARY KEY (content, number)
);
