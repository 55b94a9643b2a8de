-- The same as for SQLite, which explains itself there.

CREATE TABLE api_keys (
    id      text  COLLATE "C" NOT NULL PRIMARY KEY,
    digest  bytea NOT NULL,
    tenant  text  COLLATE "C" NOT NULL,
    name    text  NOT NULL,
    scopes  text  COLLATE "C" NOT NULL,
    created double precision NOT NULL,
    expires double precision,
    revoked double precision
);

CREATE INDEX conversations_listed ON conversations (tenant, id) WHERE expires IS NULL;
