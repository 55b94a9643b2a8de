-- Images that are stored outside of the JSON that refers to them. `holder`: the response or the conversation whose items
-- refer to the image; `content`: its key in the content store.
CREATE TABLE images (
    tenant  TEXT NOT NULL,
    holder  TEXT NOT NULL,
    content TEXT NOT NULL
);
CREATE UNIQUE INDEX images_holder ON images (tenant, holder, content);
CREATE INDEX images_content ON images (content, tenant);
