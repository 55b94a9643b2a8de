-- The same as for SQLite, which explains itself there.

CREATE TABLE shared (
    name  text  COLLATE "C" NOT NULL PRIMARY KEY,
    value bytea NOT NULL
);
