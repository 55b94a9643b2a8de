-- The same as for SQLite, which explains itself there.

CREATE TABLE skills (
    tenant          text COLLATE "C" NOT NULL,
    id              text COLLATE "C" NOT NULL,
    created         double precision NOT NULL,
    name            text NOT NULL,
    description     text NOT NULL,
    default_version bigint NOT NULL,
    latest_version  bigint NOT NULL,
    numbers         bigint NOT NULL
);
CREATE UNIQUE INDEX skills_id ON skills (tenant, id);
CREATE INDEX skills_created ON skills (tenant, created, id);

CREATE TABLE skill_versions (
    tenant      text COLLATE "C" NOT NULL,
    skill       text COLLATE "C" NOT NULL,
    id          text COLLATE "C" NOT NULL,
    created     double precision NOT NULL,
    version     bigint NOT NULL,
    name        text NOT NULL,
    description text NOT NULL,
    bytes       bigint NOT NULL,
    digest      bytea NOT NULL,
    content     text COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX skill_versions_number ON skill_versions (tenant, skill, version);
CREATE UNIQUE INDEX skill_versions_id ON skill_versions (tenant, id);
CREATE INDEX skill_versions_content ON skill_versions (content);

ALTER TABLE containers ADD COLUMN skills text NOT NULL DEFAULT '[]';
ALTER TABLE containers ADD COLUMN domains text COLLATE "C" NOT NULL DEFAULT '';
