//! `holdfast run`: one prompt, and the turn as it happens.
//!
//! Blocking, without a runtime: threads that read put what arrives into one queue, and this thread does one thing after
//! another. The turn lives in the daemon; this program only watches it.

mod facts;
mod interrupt;
mod outcome;
mod prompt;
mod questions;
mod screen;
mod session;
mod turn;
mod wire;

use std::thread;
use std::time::{Duration, Instant};

use holdfast_actors::acp::leased::COMPLAINT;
use holdfast_protocol::acp::prompt::{StopReason, parse_prompt_result};
use holdfast_protocol::acp::{PROTOCOL_VERSION, method};
use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::ids::AgentAlias;
use holdfast_protocol::methods::acp::AttachParams;
use holdfast_protocol::methods::log::{Query, QueryParams};
use serde_json::json;
use serde_json::value::RawValue;

use self::facts::Footer;
use self::outcome::{Trouble, exit_of_stop_reason, is_of_kind};
use self::prompt::{Prompt, Takes};
use self::session::{Target, Wanted};
use self::turn::Turn;
use self::wire::{Events, Origin};
use super::{Place, connect, connect_or_start};
use crate::cli::{GlobalArguments, RunArguments};
use crate::render::{Exit, Failure, Renderer, Tone};

/// Lines of an agent's standard error that are shown when it has failed.
const COMPLAINTS_MAX: u32 = 8;
/// How long they are given to reach the log, each time.
const COMPLAINT_PAUSE: Duration = Duration::from_millis(100);

/// Runs one turn and shows it.
///
/// # Errors
/// Why there was no turn, or no end of it. With `--json` the last line of standard output says it too.
pub fn turn(
    arguments: &RunArguments,
    place: &Place,
    global: &GlobalArguments,
    renderer: &mut Renderer,
) -> Result<Exit, Failure> {
    let mut session_id = None;
    match run(arguments, place, global.verbose > 0, &mut session_id, renderer) {
        Ok(exit) => Ok(exit),
        Err(trouble) => {
            if renderer.is_for_programs() {
                renderer.json_line(&json!({ "error": trouble.to_json(session_id.as_deref()) }))?;
            }
            let last_words = match &trouble {
                Trouble::Refused(error) if is_of_kind(error, ErrorKind::AgentFailed) => {
                    complaints(place, &arguments.agent, renderer.surroundings().now_ms)
                }
                _ => Vec::new(),
            };
            let again = session_id.map(|id| format!("holdfast run {} \"go on\" --session {id}", arguments.agent));
            let failure = trouble.into_failure(&arguments.agent, again);
            Err(if last_words.is_empty() { failure } else { failure.detail(last_words.join("\n")) })
        }
    }
}

/// Returns the last lines that the agent wrote to its standard error since `from_ms`, from the log. They may arrive a
/// moment after the agent's end.
fn complaints(place: &Place, agent: &str, from_ms: i64) -> Vec<String> {
    let params = QueryParams {
        from_ms: Some(from_ms),
        agent: Some(agent.to_owned()),
        text: Some(COMPLAINT.to_owned()),
        limit: Some(COMPLAINTS_MAX),
        ..QueryParams::default()
    };
    for pause in [Duration::ZERO, COMPLAINT_PAUSE, COMPLAINT_PAUSE] {
        thread::sleep(pause);
        let found = connect(place).and_then(|mut connection| connection.call::<Query>(&params));
        // Why the turn failed has been said; this only adds to it.
        let lines = found.map(|page| page.lines).unwrap_or_default();
        if !lines.is_empty() {
            let said = |message: &str| message.strip_prefix(COMPLAINT).unwrap_or(message).to_owned();
            return lines.iter().rev().map(|line| said(&line.message)).collect();
        }
    }
    Vec::new()
}

fn run(
    arguments: &RunArguments,
    place: &Place,
    verbose: bool,
    known_id: &mut Option<String>,
    renderer: &mut Renderer,
) -> Result<Exit, Trouble> {
    let agent: AgentAlias = arguments
        .agent
        .parse()
        .map_err(|error| Trouble::Told(Failure::caused(Exit::Usage, &error).hint("holdfast agent list")))?;
    let prompt = Prompt::gather(arguments)?;
    let here = session::directory(arguments.cwd.as_ref())?;
    let mut connection = connect_or_start(place, renderer)?;
    let wanted = match (&arguments.session, arguments.resume) {
        (Some(text), _) => Wanted::Named(text),
        (None, true) => Wanted::Latest,
        (None, false) => Wanted::New,
    };
    let target = Target::find(&mut connection, &agent, wanted)?;
    let acp = connection.attach(&AttachParams { agent: agent.clone(), client_key: None, session_id: None })?;
    let events = Events::new();
    let peer = events.listen(Origin::Ours, acp)?;
    interrupt::install(events.sender())?;
    let mut turn = Turn::new(arguments.agent.clone(), events, peer, verbose);

    let initialized = turn.call(Origin::Ours, method::INITIALIZE, &initialize_params(), renderer)?;
    let (session_id, cwd) = open_session(&target, &here, arguments, &mut turn, renderer)?;
    *known_id = Some(session_id.clone());
    let short = session::short_id(place, &session_id);
    if !renderer.is_for_programs() {
        renderer.aside(&header(&agent, &target, &short).each_ref().map(|(text, tone)| (text.as_str(), *tone)));
        renderer.aside(&[]);
    }
    let blocks = prompt.blocks(Takes::of(&initialized));
    if arguments.no_wait {
        let watcher = connect(place)?.attach(&AttachParams { agent, client_key: None, session_id: None })?;
        turn.watch(watcher)?;
        turn.call(Origin::Watcher, method::INITIALIZE, &initialize_params(), renderer)?;
        let resume = session::resume_params(&session_id, &cwd);
        turn.call(Origin::Watcher, method::SESSION_RESUME, &resume, renderer)?;
        turn.submit(&session_id, &blocks, renderer)?;
        return told_of_submission(&session_id, &short, renderer);
    }
    let began = Instant::now();
    let result = turn.prompt(&session_id, &blocks, renderer)?;
    ended(&result, began, &turn, &target, renderer)?;
    let parsed = parse_prompt_result(&result);
    if renderer.is_for_programs() {
        renderer.json_line(&outcome::result_line(&session_id, &result))?;
    } else {
        hints(&arguments.agent, &target, &short, parsed.stop_reason.as_ref(), renderer);
    }
    Ok(exit_of_stop_reason(parsed.stop_reason.as_ref()))
}

/// Makes or resumes the session; returns its id and directory.
fn open_session(
    target: &Target,
    here: &str,
    arguments: &RunArguments,
    turn: &mut Turn,
    renderer: &mut Renderer,
) -> Result<(String, String), Trouble> {
    match target {
        Target::New { key } => {
            let params = session::new_params(here, key.as_deref());
            let made = turn.call(Origin::Ours, method::SESSION_NEW, &params, renderer)?;
            let session_id = holdfast_protocol::acp::envelope::session_id(&made);
            let session_id = session_id.ok_or_else(|| Trouble::strange("`session/new` was answered without an id"))?;
            Ok((session_id.into_owned(), here.to_owned()))
        }
        Target::Existing(detail) => {
            // A session stays where it was made; from another directory it is continued there.
            let stored = detail.cwd.as_deref().filter(|_| arguments.cwd.is_none());
            let cwd = stored.unwrap_or(here).to_owned();
            let session_id = detail.row.session_id.to_string();
            let params = session::resume_params(&session_id, &cwd);
            turn.call(Origin::Ours, method::SESSION_RESUME, &params, renderer)?;
            Ok((session_id, cwd))
        }
    }
}

fn initialize_params() -> serde_json::Value {
    json!({
        "protocolVersion": PROTOCOL_VERSION,
        "clientCapabilities": { "fs": {}, "session": { "notices": {} } },
        "clientInfo": { "name": "holdfast-run", "title": "holdfast run", "version": env!("CARGO_PKG_VERSION") },
    })
}

fn header(agent: &AgentAlias, target: &Target, short: &str) -> [(String, Tone); 2] {
    let (key, state) = match target {
        Target::New { key } => (key.clone(), "new".to_owned()),
        Target::Existing(detail) => {
            use holdfast_protocol::methods::session::TurnState;
            let turns = match detail.row.turn_count {
                1 => "1 turn".to_owned(),
                count => format!("{count} turns"),
            };
            let last = match detail.row.turn_state {
                TurnState::Interrupted => ", the last one interrupted",
                TurnState::Running => ", one is running",
                TurnState::Error => ", the last one failed",
                TurnState::Idle => "",
            };
            (detail.row.session_key.clone(), format!("resumed, {turns}{last}"))
        }
    };
    let name = key.map_or_else(|| short.to_owned(), |key| format!("{key} ({short})"));
    [(agent.to_string(), Tone::Strong), (format!(" · session {name} · {state}"), Tone::Plain)]
}

/// Writes the last line of the turn.
fn ended(
    result: &RawValue,
    began: Instant,
    turn: &Turn,
    target: &Target,
    renderer: &mut Renderer,
) -> Result<(), Failure> {
    if renderer.is_for_programs() {
        return Ok(());
    }
    let parsed = parse_prompt_result(result);
    let stop_reason = parsed.stop_reason.as_ref();
    let footer = Footer {
        stop_reason: stop_reason.map_or("no stop reason", StopReason::name),
        took: began.elapsed(),
        usage: parsed.usage,
        cost: turn.cost(),
        first_turn: matches!(target, Target::New { .. }),
    };
    let (word, tone) = match exit_of_stop_reason(stop_reason) {
        Exit::Ok => ("done", Tone::Good),
        _ => ("ended", Tone::Warning),
    };
    renderer.aside(&[]);
    renderer.aside(&[(word, tone), (&footer.text(), Tone::Plain)]);
    Ok(())
}

/// Says what to type next: to those who are new here.
fn hints(agent: &str, target: &Target, short: &str, stop_reason: Option<&StopReason<'_>>, renderer: &mut Renderer) {
    if !matches!(target, Target::New { key: None }) || !matches!(stop_reason, Some(StopReason::EndTurn)) {
        return;
    }
    let detect = if agent == "demo" { "   ·   holdfast agent detect" } else { "" };
    renderer
        .note(&format!("next: holdfast run {agent} \"again\" --session {short}   ·   holdfast session list{detect}"));
}

fn told_of_submission(session_id: &str, short: &str, renderer: &mut Renderer) -> Result<Exit, Trouble> {
    if renderer.is_for_programs() {
        renderer.json_line(&json!({ "result": { "session_id": session_id, "stop_reason": null } }))?;
    } else {
        renderer.done("the prompt is on disk; the turn goes on without us");
        renderer.note(&format!("next: holdfast session show {short}"));
    }
    Ok(Exit::Ok)
}
