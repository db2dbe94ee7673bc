-- Who this install is, made once: it tells our processes from those of another install on the same machine. Beside it
-- the agents the configuration has ever named, so that "first seen" and what an agent can do outlive a restart.
CREATE TABLE instance (
    -- One row, ever.
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    instance_id   TEXT NOT NULL CHECK (length(instance_id) = 36),
    created_at_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE agent_registry (
    alias              TEXT NOT NULL PRIMARY KEY CHECK (length(alias) BETWEEN 1 AND 64),
    -- Of what decides how its process behaves (command, environment, directory): BLAKE3, hex.
    launch_hash        TEXT NOT NULL CHECK (length(launch_hash) = 64),
    -- Whether the configuration in force names it. A row is kept when it no longer does: history refers to the alias.
    configured         INTEGER NOT NULL CHECK (configured IN (0, 1)),
    first_seen_at_ms   INTEGER NOT NULL,
    last_started_at_ms INTEGER
) STRICT;

-- What an agent answered to `initialize`, by how it was launched: a changed command or environment asks anew. A new
-- version of the program under the same command replaces the row at its next start.
CREATE TABLE agent_initialize (
    launch_hash    TEXT NOT NULL PRIMARY KEY CHECK (length(launch_hash) = 64),
    agent_version  TEXT,
    result_json    TEXT NOT NULL,
    recorded_at_ms INTEGER NOT NULL
) STRICT;
