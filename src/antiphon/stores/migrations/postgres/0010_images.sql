-- The same as for SQLite, which explains itself there.

CREATE TABLE images (
    tenant  text COLLATE "C" NOT NULL,
    holder  text COLLATE "C" NOT NULL,
    content text COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX images_holder ON images (tenant, holder, content);
CREATE INDEX images_content ON images (content, tenant);
