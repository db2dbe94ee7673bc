-- ACP sessions as clients know them, their turns, and every update an agent sent, raw and in order.
-- The agent's own session id is a column: it may change when an adapter is replaced, the session stays.
CREATE TABLE acp_session (
    id                    INTEGER PRIMARY KEY,
    session_id            TEXT NOT NULL UNIQUE,
    agent_id              TEXT NOT NULL,
    agent_session_id      TEXT,
    -- A route people type (`run --session NAME`); unique an agent while set.
    session_key           TEXT,
    cwd                   TEXT NOT NULL,
    -- `session/new` params as the client sent them, needed again to resume in a new adapter.
    new_params_json       TEXT NOT NULL,
    -- The agent's last answer to new, load or resume: modes, models, config options; raw.
    setup_json            TEXT,
    title                 TEXT,
    status                TEXT NOT NULL CHECK (status IN ('starting', 'active', 'closed', 'failed')),
    turn_state            TEXT NOT NULL CHECK (turn_state IN ('idle', 'running', 'interrupted', 'error')),
    turn_count            INTEGER NOT NULL DEFAULT 0,
    update_count          INTEGER NOT NULL DEFAULT 0,
    owner_session_key     TEXT,
    spawned_by            TEXT,
    parent_session_key    TEXT,
    ancestor_session_keys TEXT NOT NULL DEFAULT '[]',
    backend               TEXT NOT NULL,
    instance_id           TEXT NOT NULL,
    -- Which run of the daemon made it: a session that an earlier run left `starting` never came to be.
    boot_id               TEXT NOT NULL,
    created_at_ms         INTEGER NOT NULL,
    updated_at_ms         INTEGER NOT NULL,
    closed_at_ms          INTEGER
) STRICT;

-- Listings are newest first and page by (updated_at_ms, id).
CREATE INDEX acp_session_by_update ON acp_session (updated_at_ms DESC, id DESC);
CREATE UNIQUE INDEX acp_session_by_key ON acp_session (agent_id, session_key) WHERE session_key IS NOT NULL;
-- Start-up looks only for turns that were cut.
CREATE INDEX acp_session_running ON acp_session (id) WHERE turn_state = 'running';

CREATE TABLE acp_turn (
    session       INTEGER NOT NULL REFERENCES acp_session (id) ON DELETE CASCADE,
    number        INTEGER NOT NULL,
    turn_id       TEXT NOT NULL UNIQUE,
    state         TEXT NOT NULL CHECK (state IN ('running', 'ended', 'cancelled', 'failed', 'interrupted')),
    prompt_json   TEXT NOT NULL,
    stop_reason   TEXT,
    result_json   TEXT,
    error         TEXT,
    -- Which run of the daemon carries the turn: after a start, running turns of other runs are interrupted ones.
    boot_id       TEXT NOT NULL,
    first_seq     INTEGER NOT NULL,
    started_at_ms INTEGER NOT NULL,
    ended_at_ms   INTEGER,
    PRIMARY KEY (session, number)
) STRICT;

-- `seq` is given by the one actor that owns the live session, so an append that is sent twice is stored once.
CREATE TABLE acp_update (
    session       INTEGER NOT NULL REFERENCES acp_session (id) ON DELETE CASCADE,
    seq           INTEGER NOT NULL CHECK (seq >= 1),
    turn_number   INTEGER,
    -- The `sessionUpdate` discriminator, or the method of another notification.
    kind          TEXT NOT NULL,
    params_json   TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    UNIQUE (session, seq)
) STRICT;
