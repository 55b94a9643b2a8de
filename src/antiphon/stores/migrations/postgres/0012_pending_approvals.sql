-- The same as for SQLite, which explains itself there.

ALTER TABLE approvals ADD COLUMN denied integer NOT NULL DEFAULT 0;
CREATE INDEX approvals_pending ON approvals (tenant, id, expires) WHERE used = 0 AND denied = 0;
