-- What a client was asked to allow: a digest of the call, and whether it was made since. `expires`: nobody asks any more.
CREATE TABLE approvals (
    tenant  TEXT    NOT NULL,
    id      TEXT    NOT NULL,
    digest  BLOB    NOT NULL,
    used    INTEGER NOT NULL,
    expires REAL    NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX approvals_expires ON approvals (expires);

-- Calls whose outputs a running response waits for, or waited for before; NULL: it is still to come.
CREATE TABLE outputs (
    tenant TEXT NOT NULL,
    id     TEXT NOT NULL,
    call   TEXT NOT NULL,
    output BLOB,
    PRIMARY KEY (tenant, id, call)
) WITHOUT ROWID;

-- Whether a response ever waited: most never do, and have no outputs to be removed.
ALTER TABLE responses ADD COLUMN waited INTEGER NOT NULL DEFAULT 0;
