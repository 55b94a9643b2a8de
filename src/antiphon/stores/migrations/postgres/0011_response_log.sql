-- The same as for SQLite, which explains itself there; but responses are listed by responses_id, since contents are stored
-- apart from the other columns.

ALTER TABLE responses ADD COLUMN model text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE responses ADD COLUMN summary text COLLATE "C" NOT NULL DEFAULT '';
