-- Whether the client has denied the call. It only ends the wait: in another branch the same call may still be approved.
ALTER TABLE approvals ADD COLUMN denied INTEGER NOT NULL DEFAULT 0;
CREATE INDEX approvals_pending ON approvals (tenant, id, expires) WHERE used = 0 AND denied = 0;
