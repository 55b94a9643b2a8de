-- Large values, which are empty in their rows (see sql/operation.py). Rows of earlier versions still have theirs, and a
-- request of 0015 becomes one piece.
CREATE TABLE pieces (
    tenant TEXT    NOT NULL,
    holder TEXT    NOT NULL, -- the id of a response, or those of a conversation and its item
    number INTEGER NOT NULL,
    piece  BLOB    NOT NULL
);
INSERT INTO pieces SELECT tenant, id, 0, request FROM large_requests;
CREATE UNIQUE INDEX pieces_holder ON pieces (tenant, holder, number);
DROP TABLE large_requests;
