-- The same as for SQLite, which explains itself there.

CREATE TABLE usage (
    day           bigint NOT NULL,
    tenant        text   COLLATE "C" NOT NULL,
    key           text   COLLATE "C" NOT NULL,
    responses     bigint NOT NULL,
    input_tokens  bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    PRIMARY KEY (day, tenant, key)
);
