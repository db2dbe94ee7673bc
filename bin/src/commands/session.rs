//! `holdfast session …`.

use holdfast_protocol::acp::update::text_of_block;
use holdfast_protocol::ids::{AgentAlias, SessionId};
use holdfast_protocol::methods::session::{
    Append, AppendParams, Event, Events, EventsParams, List, ListParams, New, NewEvent, NewParams, SessionDetail,
    SessionKind, SessionRow, SessionStatus, Show, ShowParams, TurnState,
};
use holdfast_protocol::raw;
use serde_json::value::RawValue;

use super::rpc::read_standard_input;
use super::{Asked, Place, answers, connect};
use crate::cli::{
    SessionAppendArguments, SessionEventsArguments, SessionListArguments, SessionNewArguments, SessionShowArguments,
};
use crate::render::{Cell, Column, Exit, Failure, Listing, Renderer, ResolveError, Tone, resolve};

/// Sessions asked for at a time.
const PAGE_LEN: u32 = 500;

/// Events asked for at a time: with bodies near their usual size a page stays far below the limit on frames.
const EVENTS_PAGE_LEN: u32 = 200;

const LIST_COLUMNS: &[Column] = &[
    Column::whole("session"),
    Column::whole("agent"),
    Column::whole("kind"),
    Column::text("title"),
    Column::number("turns"),
    Column::whole("updated"),
    Column::whole("state"),
];

const EVENT_COLUMNS: &[Column] = &[
    Column::number("seq"),
    Column::whole("created"),
    Column::whole("kind"),
    Column::whole("role"),
    Column::text("body"),
];

pub(super) fn list(arguments: &SessionListArguments, place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let agent = arguments.agent.as_deref().map(alias).transpose()?;
    let params = ListParams { agent, ..ListParams::default() };
    let rows = list_rows(&mut answers(place, renderer)?, params, arguments.limit)?;
    let none = match &arguments.agent {
        Some(agent) => format!("no sessions of `{agent}`"),
        None => "no sessions yet; `holdfast run demo \"hello\"` makes one".to_owned(),
    };
    show_list(&rows, &none, renderer)?;
    Ok(Exit::Ok)
}

pub(super) fn show_list(rows: &[SessionRow], none: &str, renderer: &mut Renderer) -> Result<(), Failure> {
    let mut listing = Listing::new(LIST_COLUMNS, none);
    for row in rows {
        let title = row.title.as_ref().or(row.session_key.as_ref());
        let (state, tone) = state(row);
        let cells = vec![
            Cell::Id(row.session_id.to_string()),
            Cell::Text(row.agent_id.to_string()),
            Cell::Text(kind(row.kind).to_owned()),
            title.cloned().map_or(Cell::Missing, Cell::Text),
            Cell::Count(row.turn_count),
            Cell::At(row.updated_at_ms),
            Cell::State(state.to_owned(), tone),
        ];
        listing.push(cells, row)?;
    }
    renderer.listing(&listing)
}

fn kind(kind: SessionKind) -> &'static str {
    match kind {
        SessionKind::Acp => "acp",
        SessionKind::Chat => "chat",
    }
}

/// Returns the one word that a person wants to know: what the last turn says, where it says something, else the status.
fn state(row: &SessionRow) -> (&'static str, Tone) {
    match (row.status, row.turn_state) {
        (_, TurnState::Running) => ("running", Tone::Good),
        (SessionStatus::Closed, _) => ("closed", Tone::Dim),
        (SessionStatus::Failed, _) => ("failed", Tone::Bad),
        (_, TurnState::Interrupted) => ("interrupted", Tone::Warning),
        (_, TurnState::Error) => ("error", Tone::Bad),
        // Between turns an ACP session waits for its next prompt, whether or not its agent runs.
        (SessionStatus::Active, TurnState::Idle) if row.kind == SessionKind::Acp => ("idle", Tone::Plain),
        (SessionStatus::Active, TurnState::Idle) => ("active", Tone::Plain),
        (SessionStatus::Idle, TurnState::Idle) => ("idle", Tone::Plain),
    }
}

pub(super) fn show(arguments: &SessionShowArguments, place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let mut answers = answers(place, renderer)?;
    let session_id = find(&mut answers, &arguments.session)?;
    let detail = answers.call::<Show>(&ShowParams { session_id })?;
    show_detail(&detail, renderer)?;
    Ok(Exit::Ok)
}

pub(super) fn show_detail(detail: &SessionDetail, renderer: &mut Renderer) -> Result<(), Failure> {
    let row = &detail.row;
    let text = |value: &Option<String>| value.clone().map_or(Cell::Missing, Cell::Text);
    let (state, tone) = state(row);
    let facts = [
        // Whole: this is the place to copy it from.
        ("session", Cell::Text(row.session_id.to_string())),
        ("agent", Cell::Text(row.agent_id.to_string())),
        ("kind", Cell::Text(kind(row.kind).to_owned())),
        ("key", text(&row.session_key)),
        ("title", text(&row.title)),
        ("state", Cell::State(state.to_owned(), tone)),
        ("reason", text(&detail.reason)),
        ("turns", Cell::Count(row.turn_count)),
        ("messages", Cell::Count(row.message_count)),
        ("last event", Cell::Count(detail.last_seq)),
        ("created", Cell::At(row.created_at_ms)),
        ("updated", Cell::At(row.updated_at_ms)),
        ("directory", text(&detail.cwd)),
        ("model", text(&detail.model)),
        ("agent's id", text(&detail.agent_session_id)),
    ];
    renderer.record(&facts, detail)
}

pub(super) fn new(arguments: &SessionNewArguments, place: &Place, renderer: &mut Renderer) -> Result<Exit, Failure> {
    let params = NewParams {
        agent_id: alias(&arguments.agent)?,
        session_key: arguments.key.clone(),
        title: None,
        scope: None,
        idempotency_key: None,
    };
    let made = connect(place)?.call::<New>(&params)?;
    if renderer.is_for_programs() {
        renderer.value(&made)?;
    } else {
        renderer.line(&made.session_id.to_string())?;
        renderer.done(if made.created { "session made" } else { "the current session of this key" });
    }
    Ok(Exit::Ok)
}

pub(super) fn append(
    arguments: &SessionAppendArguments,
    place: &Place,
    renderer: &mut Renderer,
) -> Result<Exit, Failure> {
    let text = match arguments.events.as_deref() {
        None | Some("-") => read_standard_input()?,
        Some(text) => text.to_owned(),
    };
    let events = parse_events(&text)?;
    let mut connection = connect(place)?;
    let session_id = find(&mut connection, &arguments.session)?;
    let appended = connection.call::<Append>(&AppendParams { session_id, events, idempotency_key: None })?;
    if renderer.is_for_programs() {
        renderer.value(&appended)?;
    } else {
        let seqs: Vec<String> = appended.seqs.iter().map(u64::to_string).collect();
        renderer.line(&seqs.join(" "))?;
    }
    Ok(Exit::Ok)
}

/// Reads events: one array, or objects one after another. Bodies stay as they were written.
pub(super) fn parse_events(text: &str) -> Result<Vec<NewEvent>, Failure> {
    let mut events = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
        let parsed = value.and_then(|value| {
            if value.get().starts_with('[') {
                serde_json::from_str::<Vec<NewEvent>>(value.get())
            } else {
                serde_json::from_str::<NewEvent>(value.get()).map(|event| vec![event])
            }
        });
        events.extend(parsed.map_err(|error| {
            Failure::new(Exit::Usage, format!("event {} can't be read: {error}", events.len() + 1))
                .hint(r#"an event is {"kind": "message", "role": "user", "body": {"text": "hi"}}"#)
        })?);
    }
    if events.is_empty() {
        return Err(Failure::new(Exit::Usage, "there are no events to append").hint("holdfast session append --help"));
    }
    Ok(events)
}

pub(super) fn events(
    arguments: &SessionEventsArguments,
    place: &Place,
    renderer: &mut Renderer,
) -> Result<Exit, Failure> {
    let mut answers = answers(place, renderer)?;
    let session_id = find(&mut answers, &arguments.session)?;
    let mut listing = Listing::new(EVENT_COLUMNS, "no events there");
    let (mut after_seq, mut left) = (arguments.after, arguments.limit);
    while left > 0 {
        let params = EventsParams { session_id, after_seq, limit: Some(left.min(EVENTS_PAGE_LEN)) };
        let page = answers.call::<Events>(&params)?;
        let Some(last) = page.events.last() else { break };
        after_seq = last.seq;
        left = left.saturating_sub(u32::try_from(page.events.len()).unwrap_or(u32::MAX));
        for event in &page.events {
            listing.push(event_cells(event, renderer.is_for_programs()), event)?;
        }
        if !page.more {
            break;
        }
    }
    renderer.listing(&listing)?;
    Ok(Exit::Ok)
}

fn event_cells(event: &Event, whole: bool) -> Vec<Cell> {
    let body = event.body.get();
    vec![
        Cell::Count(event.seq),
        Cell::At(event.created_at_ms),
        Cell::Text(event.kind.clone()),
        event.role.clone().map_or(Cell::Missing, Cell::Text),
        Cell::Text(if whole { body.to_owned() } else { gist(body) }),
    ]
}

/// Returns what a person reads of an event: its text or its title, and the body as it is where it has neither.
fn gist(body: &str) -> String {
    let update = raw::pick(body, ["update"])[0].unwrap_or(body);
    let [content, text, title, status] = raw::pick(update, ["content", "text", "title", "status"]);
    let said = content.and_then(text_of_block).or_else(|| text.and_then(raw::string));
    if let Some(said) = said.filter(|said| !said.trim().is_empty()) {
        return said.into_owned();
    }
    match (title.and_then(raw::string), status.and_then(raw::string)) {
        (Some(title), Some(status)) => format!("{title} · {status}"),
        (Some(only), None) | (None, Some(only)) => only.into_owned(),
        (None, None) => update.to_owned(),
    }
}

/// Finds the session that a person means: a whole id, enough of one, or a session key.
pub fn find(asked: &mut impl Asked, text: &str) -> Result<SessionId, Failure> {
    if let Ok(id) = text.parse::<SessionId>() {
        return Ok(id);
    }
    let head: String = text.chars().take_while(|character| !matches!(character, '…' | '.')).collect();
    let head = head.to_ascii_lowercase();
    let unknown = || ResolveError::Unknown { kind: "session", text: text.to_owned() };
    let looks_like_id = head.len() >= 4 && head.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let found = if looks_like_id {
        let params = ListParams { id_prefix: Some(head), ..ListParams::default() };
        let rows = list_rows(asked, params, u32::MAX)?;
        let ids: Vec<String> = rows.iter().map(|row| row.session_id.to_string()).collect();
        resolve("session", text, ids.iter().map(String::as_str)).map(str::to_owned)
    } else {
        Err(unknown())
    };
    match found {
        Ok(id) => id.parse().map_err(|_| unknown().into()),
        Err(ResolveError::Unknown { .. }) => {
            let params = ListParams { session_key: Some(text.to_owned()), ..ListParams::default() };
            match list_rows(asked, params, 1)?.first() {
                Some(row) => Ok(row.session_id),
                None => Err(Failure::from(unknown()).hint("holdfast session list")),
            }
        }
        Err(ambiguous @ ResolveError::Ambiguous { .. }) => Err(ambiguous.into()),
    }
}

/// Returns up to `limit` sessions, page after page.
pub(super) fn list_rows(
    asked: &mut impl Asked,
    mut params: ListParams,
    limit: u32,
) -> Result<Vec<SessionRow>, Failure> {
    let mut rows: Vec<SessionRow> = Vec::new();
    loop {
        let left = limit.saturating_sub(u32::try_from(rows.len()).unwrap_or(u32::MAX));
        params.limit = Some(left.min(PAGE_LEN));
        let page = asked.call::<List>(&params)?;
        let got = page.sessions.len();
        rows.extend(page.sessions);
        if got == 0 || page.next_cursor.is_none() || u32::try_from(rows.len()).is_ok_and(|count| count >= limit) {
            return Ok(rows);
        }
        params.cursor = page.next_cursor;
    }
}

fn alias(text: &str) -> Result<AgentAlias, Failure> {
    text.parse().map_err(|error| Failure::caused(Exit::Usage, &error).hint("holdfast agent list"))
}

#[cfg(test)]
mod tests {
    use super::gist;

    #[test]
    fn people_read_what_was_said_and_done() {
        for (body, shown) in [
            (r#"{"text":"hi"}"#, "hi"),
            (r#"{"sessionId":"s","update":{"content":{"type":"text","text":"hello"},"sessionUpdate":"x"}}"#, "hello"),
            (r#"{"update":{"sessionUpdate":"tool_call","title":"Run ls","status":"pending"}}"#, "Run ls · pending"),
            (r#"{"update":{"sessionUpdate":"tool_call_update","status":"completed","content":[]}}"#, "completed"),
            (r#"{"update":{"sessionUpdate":"usage_update","used":3}}"#, r#"{"sessionUpdate":"usage_update","used":3}"#),
            ("[1]", "[1]"),
        ] {
            assert_eq!(gist(body), shown, "{body}");
        }
    }
}
