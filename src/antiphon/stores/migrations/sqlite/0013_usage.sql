-- What each key has used on a day: `day` is the number of days since 1970 (UTC), `key` the id of the key, or ''.
CREATE TABLE usage (
    day           INTEGER NOT NULL,
    tenant        TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    responses     INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, key)
) WITHOUT ROWID;
