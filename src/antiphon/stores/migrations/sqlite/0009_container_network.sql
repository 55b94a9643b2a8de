-- The domains that code in a container may reach, separated by blanks; none: it has no network.
ALTER TABLE containers ADD COLUMN domains TEXT NOT NULL DEFAULT '';
