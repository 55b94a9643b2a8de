-- The same as for SQLite, which explains itself there.

CREATE TABLE approvals (
    tenant  text    COLLATE "C" NOT NULL,
    id      text    COLLATE "C" NOT NULL,
    digest  bytea   NOT NULL,
    used    integer NOT NULL,
    expires double precision NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX approvals_expires ON approvals (expires);

CREATE TABLE outputs (
    tenant text  COLLATE "C" NOT NULL,
    id     text  COLLATE "C" NOT NULL,
    call   text  COLLATE "C" NOT NULL,
    output bytea,
    PRIMARY KEY (tenant, id, call)
);

ALTER TABLE responses ADD COLUMN waited integer NOT NULL DEFAULT 0;
