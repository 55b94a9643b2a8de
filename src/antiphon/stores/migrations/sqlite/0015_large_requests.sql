-- Requests of large responses, which are empty in their rows: the end of a response then does not rewrite its request.
-- Rows of earlier versions still have theirs.
CREATE TABLE large_requests (
    tenant  TEXT NOT NULL,
    id      TEXT NOT NULL,
    request BLOB NOT NULL
);
CREATE UNIQUE INDEX large_requests_id ON large_requests (tenant, id);
