-- The same tables as for SQLite, which explain themselves there. Ids are compared byte by byte, whatever the database's language.

CREATE TABLE responses (
    tenant       text     COLLATE "C" NOT NULL,
    id           text     COLLATE "C" NOT NULL,
    status       text     COLLATE "C" NOT NULL,
    background   integer  NOT NULL,
    hidden       integer  NOT NULL,
    created      double precision NOT NULL,
    deadline     double precision,
    ended        double precision,
    expires      double precision,
    previous     text     COLLATE "C",
    conversation text     COLLATE "C",
    owner        text     COLLATE "C",
    lease        double precision,
    fence        bigint   NOT NULL,
    attempts     bigint   NOT NULL,
    bytes        bigint   NOT NULL,
    request      bytea    NOT NULL,
    response     bytea    NOT NULL,
    tape         bytea
);
CREATE UNIQUE INDEX responses_id ON responses (tenant, id);
CREATE INDEX responses_previous ON responses (tenant, previous) WHERE previous IS NOT NULL;
CREATE INDEX responses_expires ON responses (tenant, expires, created) WHERE expires IS NOT NULL;
CREATE INDEX responses_running ON responses (tenant, background, owner, lease, created, id) WHERE ended IS NULL;
CREATE INDEX responses_talking ON responses (tenant, conversation) WHERE ended IS NULL AND conversation IS NOT NULL;

-- Few rows that are changed all the time: room within each page lets a change stay there.
CREATE TABLE owners (
    owner text COLLATE "C" NOT NULL PRIMARY KEY,
    until double precision NOT NULL
) WITH (fillfactor = 20);

CREATE TABLE live (
    tenant text   COLLATE "C" NOT NULL,
    id     text   COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    batch  bytea  NOT NULL,
    PRIMARY KEY (tenant, id, number)
);

CREATE TABLE keys (
    tenant   text  COLLATE "C" NOT NULL,
    name     text  COLLATE "C" NOT NULL,
    digest   bytea NOT NULL,
    response text  COLLATE "C" NOT NULL,
    expires  double precision NOT NULL,
    PRIMARY KEY (tenant, name)
);
CREATE UNIQUE INDEX keys_response ON keys (tenant, response);
CREATE INDEX keys_expires ON keys (expires);

CREATE TABLE conversations (
    tenant   text   COLLATE "C" NOT NULL,
    id       text   COLLATE "C" NOT NULL,
    created  double precision NOT NULL,
    used     double precision NOT NULL,
    expires  double precision,
    next     bigint NOT NULL,
    items    bigint NOT NULL,
    bytes    bigint NOT NULL,
    metadata text   NOT NULL
);
CREATE UNIQUE INDEX conversations_id ON conversations (tenant, id);
CREATE INDEX conversations_used ON conversations (tenant, used);
CREATE INDEX conversations_expires ON conversations (expires) WHERE expires IS NOT NULL;

CREATE TABLE items (
    tenant       text   COLLATE "C" NOT NULL,
    conversation text   COLLATE "C" NOT NULL,
    position     bigint NOT NULL,
    id           text   COLLATE "C" NOT NULL,
    bytes        bigint NOT NULL,
    item         bytea
);
CREATE UNIQUE INDEX items_position ON items (tenant, conversation, position);
CREATE UNIQUE INDEX items_id ON items (tenant, id, conversation);

CREATE TABLE totals (
    tenant        text    COLLATE "C" NOT NULL,
    slot          integer NOT NULL,
    entries       bigint  NOT NULL,
    hidden        bigint  NOT NULL,
    bytes         bigint  NOT NULL,
    conversations bigint  NOT NULL,
    PRIMARY KEY (tenant, slot)
) WITH (fillfactor = 20);
