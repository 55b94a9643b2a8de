CREATE TABLE pieces (
    tenant text   COLLATE "C" NOT NULL,
    holder text   COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    piece  bytea  NOT NULL
);
CREATE UNIQUE INDEX pieces_holder ON pieces (tenant, holder, number);
-- Images cannot be compressed, and an attempt takes seconds for 100 MB.
ALTER TABLE pieces ALTER COLUMN piece SET STORAGE EXTERNAL;
