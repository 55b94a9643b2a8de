-- Whose turn comes first in the background: 0 before 1 before 2.
ALTER TABLE responses ADD COLUMN rank INTEGER NOT NULL DEFAULT 1;

-- The id of the key that one in the background is charged to, beside its tenant.
ALTER TABLE responses ADD COLUMN bearer TEXT NOT NULL DEFAULT '';

CREATE INDEX responses_queue ON responses (rank, tenant, owner, lease, created, id, background, ended)
    WHERE ended IS NULL AND background = 1;
