-- Files of clients. `content` is the key of their bytes in the content store, which files of one tenant with the same
-- digest share. `expires` NULL: never.
CREATE TABLE files (
    tenant   TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    created  REAL    NOT NULL,
    expires  REAL,
    bytes    INTEGER NOT NULL,
    filename TEXT    NOT NULL,
    purpose  TEXT    NOT NULL,
    digest   BLOB    NOT NULL,
    content  TEXT    NOT NULL
);
CREATE UNIQUE INDEX files_id ON files (tenant, id);
CREATE INDEX files_digest ON files (tenant, digest);
CREATE INDEX files_content ON files (content);
CREATE INDEX files_expires ON files (expires) WHERE expires IS NOT NULL;

-- Files that arrive in parts. `status`: pending, completed or cancelled; a pending one ends at `expires`. `lifetime`:
-- seconds until the file expires. `file`: its id once the upload is complete.
CREATE TABLE uploads (
    tenant   TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    created  REAL    NOT NULL,
    expires  REAL    NOT NULL,
    status   TEXT    NOT NULL,
    bytes    INTEGER NOT NULL,
    filename TEXT    NOT NULL,
    purpose  TEXT    NOT NULL,
    lifetime INTEGER,
    file     TEXT,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX uploads_expires ON uploads (expires);

CREATE TABLE upload_parts (
    tenant  TEXT    NOT NULL,
    upload  TEXT    NOT NULL,
    id      TEXT    NOT NULL,
    bytes   INTEGER NOT NULL,
    content TEXT    NOT NULL,
    PRIMARY KEY (tenant, upload, id)
) WITHOUT ROWID;
CREATE INDEX upload_parts_content ON upload_parts (content);

-- The bytes of files, in blocks, where the database is the content store.
CREATE TABLE contents (
    content TEXT    NOT NULL,
    number  INTEGER NOT NULL,
    created REAL    NOT NULL,
    block   BLOB    NOT NULL,
    PRIMARY KEY (content, number)
);
