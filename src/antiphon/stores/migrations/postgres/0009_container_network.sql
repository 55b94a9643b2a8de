-- The same as for SQLite, which explains itself there.
ALTER TABLE containers ADD COLUMN domains text COLLATE "C" NOT NULL DEFAULT '';
