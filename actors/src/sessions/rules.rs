//! What a request must be before it is queued, as functions of plain values.

use holdfast_protocol::ids::{EventId, SessionId};
use holdfast_protocol::methods::session::{AppendParams, ListParams, NewEvent, NewParams};
use holdfast_stores::kit::idempotency::{BodyHash, body_hash};
use holdfast_stores::sessions::{Append, EventDraft, EventKind, EventRole, NewSession};
use uuid::Uuid;

use super::error::SessionsError;

/// Events in one append at most.
pub(super) const EVENTS_MAX: usize = 1_024;
/// Bytes of one event's body at most.
pub(super) const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of an idempotency key and of a session key at most.
const KEY_BYTES_MAX: usize = 512;
/// Bytes of a title at most.
const TITLE_BYTES_MAX: usize = 1_024;

/// Checks the params of a new session and turns them into what the store takes.
pub(super) fn new_session(params: NewParams, session_id: SessionId) -> Result<NewSession, SessionsError> {
    check_key("session_key", params.session_key.as_deref())?;
    check_key("idempotency_key", params.idempotency_key.as_deref())?;
    if let Some(title) = &params.title
        && title.len() > TITLE_BYTES_MAX
    {
        return Err(too_large("title".to_owned(), "a title", title.len(), TITLE_BYTES_MAX));
    }
    let hash = new_session_hash(&params);
    Ok(NewSession {
        session_id,
        agent_id: params.agent_id,
        session_key: params.session_key,
        scope: params.scope.unwrap_or_default(),
        display_name: params.title,
        request: params.idempotency_key.map(|key| (key, hash)),
    })
}

/// Returns the hash of what makes a request the same request: all but its key.
fn new_session_hash(params: &NewParams) -> BodyHash {
    let NewParams { agent_id, session_key, title, scope, idempotency_key: _ } = params;
    // Strings and an enum always serialise.
    body_hash(&serde_json::to_vec(&(agent_id, session_key, title, scope.unwrap_or_default())).unwrap_or_default())
}

/// Checks the params of an append and turns them into what the store takes. `event_id` makes the ids.
pub(super) fn append(
    params: AppendParams,
    now_ms: i64,
    mut event_id: impl FnMut() -> Uuid,
) -> Result<Append, SessionsError> {
    check_key("idempotency_key", params.idempotency_key.as_deref())?;
    if params.events.is_empty() {
        return Err(invalid("events".to_owned(), "an append needs at least one event"));
    }
    if params.events.len() > EVENTS_MAX {
        let problem = format!("{} events are over the limit of {EVENTS_MAX} in one append", params.events.len());
        return Err(SessionsError::TooLarge { path: "events".to_owned(), problem });
    }
    let events = params.events.into_iter().enumerate();
    let events = events.map(|(index, event)| draft(index, event, now_ms, EventId(event_id())));
    Ok(Append {
        session_id: params.session_id,
        events: events.collect::<Result<_, _>>()?,
        request_key: params.idempotency_key,
    })
}

fn draft(index: usize, event: NewEvent, now_ms: i64, event_id: EventId) -> Result<EventDraft, SessionsError> {
    let kind = EventKind::named(&event.kind).ok_or_else(|| {
        invalid(
            format!("events[{index}].kind"),
            &format!("`{}` is no kind of event; those are {}", event.kind, EventKind::NAMES.join(", ")),
        )
    })?;
    let role = match &event.role {
        Some(name) => Some(EventRole::named(name).ok_or_else(|| {
            invalid(
                format!("events[{index}].role"),
                &format!("`{name}` is no role; those are {}", EventRole::NAMES.join(", ")),
            )
        })?),
        None => None,
    };
    if let Some(key) = &event.idempotency_key {
        check_key(&format!("events[{index}].idempotency_key"), Some(key))?;
    }
    let body_json = String::from(Box::<str>::from(event.body));
    if body_json.len() > BODY_BYTES_MAX {
        return Err(too_large(format!("events[{index}].body"), "a body", body_json.len(), BODY_BYTES_MAX));
    }
    Ok(EventDraft {
        event_id,
        parent_event_id: None,
        kind,
        role,
        idempotency_key: event.idempotency_key,
        created_at_ms: now_ms,
        body_json,
    })
}

/// Returns the name of a list for its cursors: a cursor is good only with the conditions it was made with.
pub(super) fn list_name(params: &ListParams) -> String {
    let ListParams { agent, kind, status, session_key, id_prefix, cursor: _, limit: _ } = params;
    // Strings and enums always serialise.
    serde_json::to_string(&("session/list", agent, kind, status, session_key, id_prefix)).unwrap_or_default()
}

fn check_key(path: &str, key: Option<&str>) -> Result<(), SessionsError> {
    match key {
        Some("") => Err(invalid(path.to_owned(), "a key must not be empty; leave it out instead")),
        Some(key) if key.len() > KEY_BYTES_MAX => Err(too_large(path.to_owned(), "a key", key.len(), KEY_BYTES_MAX)),
        Some(_) | None => Ok(()),
    }
}

fn invalid(path: String, problem: &str) -> SessionsError {
    SessionsError::Invalid { path, problem: problem.to_owned() }
}

fn too_large(path: String, what: &str, bytes: usize, bytes_max: usize) -> SessionsError {
    SessionsError::TooLarge { path, problem: format!("{what} of {bytes} bytes is over the limit of {bytes_max}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(json: &str) -> AppendParams {
        serde_json::from_str(json).unwrap()
    }

    fn refusal(json: &str) -> String {
        let error = append(params(json), 1, Uuid::nil).unwrap_err();
        let wire = holdfast_protocol::error::WireError::from(error);
        format!("{}: {}", wire.path.unwrap(), wire.message)
    }

    const ID: &str = r#""session_id":"0199a3c2-0000-7000-8000-000000000001""#;

    #[test]
    fn a_refusal_names_the_place() {
        let refused = |events: &str| refusal(&format!("{{{ID},\"events\":[{events}]}}"));
        assert_eq!(refused(""), "events: an append needs at least one event");
        let good = r#"{"kind":"message","role":"user","body":1}"#;
        assert_eq!(
            refused(&format!("{good},{{\"kind\":\"mail\",\"body\":1}}")),
            "events[1].kind: `mail` is no kind of event; those are message, tool_call, tool_result, thought, compaction, \
             interrupted, custom"
        );
        assert_eq!(
            refused(r#"{"kind":"message","role":"god","body":1}"#),
            "events[0].role: `god` is no role; those are user, assistant, system, tool"
        );
        assert!(
            refused(r#"{"kind":"message","body":1,"idempotency_key":""}"#).starts_with("events[0].idempotency_key: ")
        );
        let long = format!("{{\"kind\":\"custom\",\"body\":\"{}\"}}", "x".repeat(BODY_BYTES_MAX));
        assert!(refused(&long).starts_with("events[0].body: a body of 4194306 bytes"));
    }

    #[test]
    fn a_body_is_kept_byte_for_byte() {
        let body = r#"{ "b" : 1.50,"a":"\u00e9" }"#;
        let append =
            append(params(&format!("{{{ID},\"events\":[{{\"kind\":\"message\",\"body\":{body}}}]}}")), 7, || {
                Uuid::from_u128(3)
            })
            .unwrap();
        assert_eq!(append.events[0].body_json, body);
        assert_eq!((append.events[0].created_at_ms, append.events[0].event_id.0.as_u128()), (7, 3));
    }

    #[test]
    fn the_scope_that_is_left_out_is_the_same_request_as_main() {
        let hash = |json: &str| new_session_hash(&serde_json::from_str(json).unwrap());
        let plain = hash(r#"{"agent_id":"a","idempotency_key":"1"}"#);
        assert_eq!(plain, hash(r#"{"agent_id":"a","scope":"main","idempotency_key":"2"}"#));
        assert_ne!(plain, hash(r#"{"agent_id":"a","title":"x"}"#));
    }
}
