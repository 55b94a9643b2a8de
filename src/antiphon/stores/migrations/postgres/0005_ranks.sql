-- The same as for SQLite, which explains itself there.

ALTER TABLE responses ADD COLUMN rank integer NOT NULL DEFAULT 1;
ALTER TABLE responses ADD COLUMN bearer text COLLATE "C" NOT NULL DEFAULT '';

CREATE INDEX responses_queue ON responses (rank, tenant, owner, lease, created, id)
    WHERE ended IS NULL AND background = 1;
