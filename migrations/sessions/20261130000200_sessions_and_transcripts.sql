-- Chat and channel sessions, their transcripts, and the routes that lead to them.
--
-- Rows are joined by small integers; the UUIDs are the names that the outside knows. A transcript's counters are kept
-- by a trigger, so that no way of storing an event can forget them and one INSERT of many rows is a whole append.

CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id BLOB NOT NULL UNIQUE CHECK (length(session_id) = 16),
    agent_id TEXT NOT NULL,
    -- The route it was made for. Any text, kept exactly.
    session_key TEXT CHECK (length(CAST(session_key AS BLOB)) BETWEEN 1 AND 512),
    scope TEXT NOT NULL CHECK (scope IN ('main', 'direct', 'group', 'channel', 'thread', 'task', 'web')),
    status TEXT NOT NULL CHECK (status IN ('active', 'idle', 'closed', 'failed')),
    channel TEXT,
    account_id TEXT,
    primary_conversation_id TEXT,
    owner_session_key TEXT,
    spawned_by TEXT,
    parent_session_key TEXT,
    model_provider TEXT,
    model TEXT,
    display_name TEXT,
    turn_state TEXT NOT NULL CHECK (turn_state IN ('idle', 'running', 'error', 'interrupted')),
    turn_id BLOB CHECK (length(turn_id) = 16),
    turn_started_at_ms INTEGER,
    turn_count INTEGER NOT NULL DEFAULT 0 CHECK (turn_count >= 0),
    -- Events of the kind `message`.
    message_count INTEGER NOT NULL DEFAULT 0 CHECK (message_count >= 0),
    -- The position of the last event; 0 before the first.
    last_seq INTEGER NOT NULL DEFAULT 0 CHECK (last_seq >= 0),
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    started_at_ms INTEGER,
    ended_at_ms INTEGER,
    CHECK (turn_state <> 'running' OR turn_id IS NOT NULL)
) STRICT;

-- Listings, the last changed first; an index on a column ends with the rowid.
CREATE INDEX sessions_updated ON sessions (updated_at_ms);

CREATE TABLE session_routes (
    agent_id TEXT NOT NULL,
    session_key TEXT NOT NULL CHECK (length(CAST(session_key AS BLOB)) BETWEEN 1 AND 512),
    session INTEGER NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    updated_at_ms INTEGER NOT NULL,
    PRIMARY KEY (agent_id, session_key)
) STRICT;

CREATE INDEX session_routes_session ON session_routes (session);

CREATE TABLE transcript_events (
    -- Never used twice, so that followers (the search index) may remember how far they came.
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL CHECK (seq >= 1),
    event_id BLOB NOT NULL CHECK (length(event_id) = 16),
    parent_event_id BLOB CHECK (length(parent_event_id) = 16),
    kind TEXT NOT NULL CHECK (
        kind IN ('message', 'tool_call', 'tool_result', 'thought', 'compaction', 'interrupted', 'custom')
    ),
    role TEXT CHECK (role IN ('user', 'assistant', 'system', 'tool')),
    -- The event's own key, and the hash that tells whether a repetition is the same.
    idempotency_key TEXT,
    body_hash BLOB CHECK (length(body_hash) = 32),
    -- The key of the whole append, on the first event that it stored.
    request_key TEXT,
    request_hash BLOB CHECK (length(request_hash) = 32),
    created_at_ms INTEGER NOT NULL,
    body_json TEXT NOT NULL,
    UNIQUE (session, seq),
    CHECK ((idempotency_key IS NULL) = (body_hash IS NULL)),
    CHECK ((request_key IS NULL) = (request_hash IS NULL))
) STRICT;

CREATE UNIQUE INDEX transcript_events_key ON transcript_events (session, idempotency_key)
WHERE idempotency_key IS NOT NULL;

CREATE UNIQUE INDEX transcript_events_request ON transcript_events (session, request_key)
WHERE request_key IS NOT NULL;

CREATE TRIGGER transcript_events_count AFTER INSERT ON transcript_events
BEGIN
    UPDATE sessions
    SET last_seq = NEW.seq,
        message_count = message_count + (NEW.kind = 'message'),
        updated_at_ms = max(updated_at_ms, NEW.created_at_ms)
    WHERE id = NEW.session AND last_seq = NEW.seq - 1;
    SELECT RAISE(ABORT, 'the seq is not the next one of its session') WHERE changes() = 0;
END;

CREATE TABLE session_idempotency (
    key TEXT NOT NULL PRIMARY KEY,
    method TEXT NOT NULL,
    body_hash BLOB NOT NULL CHECK (length(body_hash) = 32),
    result_json TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL
) STRICT;

CREATE INDEX session_idempotency_created ON session_idempotency (created_at_ms);
