-- Process leases: which adapter process trees this install owns, as a recorded fact instead of a guess.
--
-- A row is committed before its process is spawned, so no process ever runs that no row knows of. Numbers that name
-- processes carry no CHECK on purpose: a damaged row must be readable, to be recognised as damaged and set aside.

CREATE TABLE process_leases (
    -- A version 7 UUID: sorts by the time it was made.
    lease_id BLOB NOT NULL PRIMARY KEY CHECK (length(lease_id) = 16),
    instance_id BLOB NOT NULL CHECK (length(instance_id) = 16),
    session_id BLOB CHECK (length(session_id) = 16),
    agent TEXT NOT NULL,
    -- The install root that the wrapper serves, and the wrapper's executable. Paths are bytes.
    wrapper_root BLOB NOT NULL,
    wrapper_path BLOB NOT NULL,
    -- The root of the tree, which is the wrapper; NULL until it is spawned.
    root_pid INTEGER,
    root_start_ticks INTEGER,
    root_pidfd_ino INTEGER,
    process_group_id INTEGER,
    -- The cgroup made for the tree and nothing else, where there can be one. Set before the spawn, so that a tree whose
    -- start was never recorded is found there.
    cgroup_path BLOB,
    -- BLAKE3 of the command as configured.
    command_hash BLOB NOT NULL CHECK (length(command_hash) = 32),
    boot_id TEXT NOT NULL,
    started_at_ms INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('starting', 'open', 'closing', 'closed', 'lost')),
    state_changed_at_ms INTEGER NOT NULL,
    exit_code INTEGER,
    exit_signal INTEGER,
    last_error TEXT,
    CHECK (state NOT IN ('open', 'closing') OR (root_pid IS NOT NULL AND root_start_ticks IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- The few that are not over yet: read at every start, and what the bound on processes counts.
CREATE INDEX process_leases_unfinished ON process_leases (state) WHERE state IN ('starting', 'open', 'closing');
CREATE INDEX process_leases_session ON process_leases (session_id) WHERE session_id IS NOT NULL;
-- Retention.
CREATE INDEX process_leases_changed ON process_leases (state_changed_at_ms);
