-- Keys that let clients in, as digests: who reads the store cannot come in. NULL in `expires` or `revoked`: never.
CREATE TABLE api_keys (
    id      TEXT NOT NULL PRIMARY KEY,
    digest  BLOB NOT NULL,
    tenant  TEXT NOT NULL,
    name    TEXT NOT NULL,
    scopes  TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL,
    revoked REAL
) WITHOUT ROWID;

-- A tenant's own, without those that were deleted. Responses are listed by responses_id.
CREATE INDEX conversations_listed ON conversations (tenant, id) WHERE expires IS NULL;
