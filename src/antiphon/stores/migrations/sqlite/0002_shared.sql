-- What all who share the store have in common, such as the key that seals reasoning. Nothing here is a tenant's.

CREATE TABLE shared (
    name  TEXT NOT NULL PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;
