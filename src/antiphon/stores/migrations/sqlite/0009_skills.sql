-- Skills: named folders of files for containers. Name and description are those of the default version. `numbers` is the
-- number of the newest version that there ever was: numbers are not used again.
CREATE TABLE skills (
    tenant          TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    created         REAL    NOT NULL,
    name            TEXT    NOT NULL,
    description     TEXT    NOT NULL,
    default_version INTEGER NOT NULL,
    latest_version  INTEGER NOT NULL,
    numbers         INTEGER NOT NULL
);
CREATE UNIQUE INDEX skills_id ON skills (tenant, id);
CREATE INDEX skills_created ON skills (tenant, created, id);

-- Versions of skills. `content`: the key of the zip file in the content store; `digest`: its SHA-256.
CREATE TABLE skill_versions (
    tenant      TEXT    NOT NULL,
    skill       TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    created     REAL    NOT NULL,
    version     INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    description TEXT    NOT NULL,
    bytes       INTEGER NOT NULL,
    digest      BLOB    NOT NULL,
    content     TEXT    NOT NULL
);
CREATE UNIQUE INDEX skill_versions_number ON skill_versions (tenant, skill, version);
CREATE UNIQUE INDEX skill_versions_id ON skill_versions (tenant, id);
CREATE INDEX skill_versions_content ON skill_versions (content);

-- The skills in a container, as JSON, for the prompts of requests that name the container.
ALTER TABLE containers ADD COLUMN skills TEXT NOT NULL DEFAULT '[]';

-- The domains that code in a container may reach, separated by blanks; none: it has no network.
ALTER TABLE containers ADD COLUMN domains TEXT NOT NULL DEFAULT '';
