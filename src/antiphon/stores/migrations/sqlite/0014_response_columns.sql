-- Large contents become the last columns of a response. Columns added since 0001 followed them, and SQLite builds a row in
-- memory if anything but a zeroblob follows a zeroblob (see sqlite_connection.py).
CREATE TABLE new_responses (
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
    waited       INTEGER NOT NULL DEFAULT 0,
    rank         INTEGER NOT NULL DEFAULT 1,
    bearer       TEXT    NOT NULL DEFAULT '',
    model        TEXT    NOT NULL DEFAULT '',
    summary      TEXT    NOT NULL DEFAULT '',
    request      BLOB    NOT NULL,
    response     BLOB    NOT NULL,
    tape         BLOB
);
INSERT INTO new_responses
    SELECT tenant, id, status, background, hidden, created, deadline, ended, expires, previous, conversation, owner,
        lease, fence, attempts, bytes, waited, rank, bearer, model, summary, request, response, tape
    FROM responses ORDER BY rowid;
DROP TABLE responses;
ALTER TABLE new_responses RENAME TO responses;
CREATE UNIQUE INDEX responses_id ON responses (tenant, id);
CREATE INDEX responses_previous ON responses (tenant, previous) WHERE previous IS NOT NULL;
CREATE INDEX responses_expires ON responses (tenant, expires, created) WHERE expires IS NOT NULL;
CREATE INDEX responses_running ON responses (tenant, background, owner, lease, created, id, ended) WHERE ended IS NULL;
CREATE INDEX responses_talking ON responses (tenant, conversation) WHERE ended IS NULL AND conversation IS NOT NULL;
CREATE INDEX responses_queue ON responses (rank, tenant, owner, lease, created, id, background, ended)
    WHERE ended IS NULL AND background = 1;
CREATE INDEX responses_log
    ON responses (tenant, id, status, background, created, ended, expires, previous, conversation, model, summary, hidden)
    WHERE hidden = 0;
