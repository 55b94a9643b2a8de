-- Rows come in the order of their time-ordered ids, so tables have rowids and their indexes grow at the end.
-- `ended IS NULL`: it runs. `hidden`: deleted, kept for its descendants. `expires`: once ended and not hidden; 9e999: never.

CREATE TABLE responses (
    tenant       TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    status       TEXT    NOT NULL,
    background   INTEGER NOT NULL,
    hidden       INTEGER NOT NULL,
    created      REAL    NOT NULL,
    deadline     REAL,
    ended        REAL,
    expires      REAL,
    previous     TEXT,
    conversation TEXT,
    owner        TEXT,
    lease        REAL,
    fence        INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    bytes        INTEGER NOT NULL,
    request      BLOB    NOT NULL,
    response     BLOB    NOT NULL,
    tape         BLOB
);
CREATE UNIQUE INDEX responses_id ON responses (tenant, id);
CREATE INDEX responses_previous ON responses (tenant, previous) WHERE previous IS NOT NULL;
CREATE INDEX responses_expires ON responses (tenant, expires, created) WHERE expires IS NOT NULL;
CREATE INDEX responses_running ON responses (tenant, background, owner, lease, created, id, ended) WHERE ended IS NULL;
CREATE INDEX responses_talking ON responses (tenant, conversation) WHERE ended IS NULL AND conversation IS NOT NULL;

-- An owner's sign of life counts for all that it runs.
CREATE TABLE owners (
    owner TEXT NOT NULL PRIMARY KEY,
    until REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE live (
    tenant TEXT    NOT NULL,
    id     TEXT    NOT NULL,
    number INTEGER NOT NULL,
    batch  BLOB    NOT NULL,
    PRIMARY KEY (tenant, id, number)
) WITHOUT ROWID;

CREATE TABLE keys (
    tenant   TEXT NOT NULL,
    name     TEXT NOT NULL,
    digest   BLOB NOT NULL,
    response TEXT NOT NULL,
    expires  REAL NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE UNIQUE INDEX keys_response ON keys (tenant, response);
CREATE INDEX keys_expires ON keys (expires);

-- `next`: the position of the next item. `expires`: it has been deleted, and until then its items can be referred to.
CREATE TABLE conversations (
    tenant   TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    created  REAL    NOT NULL,
    used     REAL    NOT NULL,
    expires  REAL,
    next     INTEGER NOT NULL,
    items    INTEGER NOT NULL,
    bytes    INTEGER NOT NULL,
    metadata TEXT    NOT NULL
);
CREATE UNIQUE INDEX conversations_id ON conversations (tenant, id);
CREATE INDEX conversations_used ON conversations (tenant, used);
CREATE INDEX conversations_expires ON conversations (expires) WHERE expires IS NOT NULL;

-- `item` NULL: deleted; its place stays, for those who page from there.
CREATE TABLE items (
    tenant       TEXT    NOT NULL,
    conversation TEXT    NOT NULL,
    position     INTEGER NOT NULL,
    id           TEXT    NOT NULL,
    bytes        INTEGER NOT NULL,
    item         BLOB
);
CREATE UNIQUE INDEX items_position ON items (tenant, conversation, position);
CREATE UNIQUE INDEX items_id ON items (tenant, id, conversation);

-- Of each tenant, over several rows (by its ids), so that writers need not queue for one.
CREATE TABLE totals (
    tenant        TEXT    NOT NULL,
    slot          INTEGER NOT NULL,
    entries       INTEGER NOT NULL,
    hidden        INTEGER NOT NULL,
    bytes         INTEGER NOT NULL,
    conversations INTEGER NOT NULL,
    PRIMARY KEY (tenant, slot)
) WITHOUT ROWID;
