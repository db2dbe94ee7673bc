//! The protocol side: frames in, frames out, turns in between. No I/O but the transcripts, and time is passed in.

use std::collections::{BTreeMap, VecDeque};

use holdfast_protocol::acp::{envelope, errors, method, permission, prompt, update};
use holdfast_protocol::error::{ErrorKind, ErrorObject, WireError};
use holdfast_protocol::jsonrpc::{self, Frame, Id, Message, OwnedId};
use holdfast_protocol::raw;
use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::script::{self, Action, COMMANDS, CRASH_EXIT_CODE, Scene, Step};
use super::transcripts::{Session, TranscriptError, Transcripts};

/// The context window this agent claims to have, in tokens.
const CONTEXT_TOKENS: u64 = 200_000;

/// Sessions on one page of `session/list`.
pub(super) const PAGE_SIZE: usize = 50;

/// The time, both ways of telling it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    /// UTC milliseconds, for what is stored.
    pub(super) wall_ms: i64,
    /// Milliseconds since the engine began, for pauses.
    pub(super) elapsed_ms: u64,
}

/// One prompt being answered or waiting for its turn.
struct Turn {
    request_id: OwnedId,
    session_id: String,
    state: TurnState,
    steps: VecDeque<Step>,
    due_ms: u64,
    input_tokens: u64,
    output_tokens: u64,
}

enum TurnState {
    /// Behind another turn of the session; holds the prompt's params.
    Queued(Box<RawValue>),
    Running,
    /// Until the client answers the request with this id.
    Asking {
        question_id: u64,
        tool_call_id: String,
    },
}

/// The agent.
pub(super) struct Engine {
    transcripts: Transcripts,
    make_id: Box<dyn FnMut() -> String>,
    is_initialized: bool,
    /// By the order of arrival.
    turns: BTreeMap<u64, Turn>,
    next_turn: u64,
    next_question_id: u64,
    output: Vec<u8>,
    exit_code: Option<u8>,
}

impl Engine {
    pub(super) fn new(transcripts: Transcripts, make_id: Box<dyn FnMut() -> String>) -> Self {
        Self {
            transcripts,
            make_id,
            is_initialized: false,
            turns: BTreeMap::new(),
            next_turn: 0,
            next_question_id: 0,
            output: Vec::new(),
            exit_code: None,
        }
    }

    /// Frames to send, each a line.
    pub(super) fn output(&self) -> &[u8] {
        &self.output
    }

    pub(super) fn clear_output(&mut self) {
        self.output.clear();
    }

    /// The exit status, once a crash was asked for.
    pub(super) fn exit_code(&self) -> Option<u8> {
        self.exit_code
    }

    /// When [`advance`](Self::advance) has something to do, in elapsed milliseconds.
    pub(super) fn next_due_ms(&self) -> Option<u64> {
        let running = self.turns.values().filter(|turn| matches!(turn.state, TurnState::Running));
        running.map(|turn| turn.due_ms).min()
    }

    /// Answers a line that was too long to be kept.
    pub(super) fn refuse_long_line(&mut self) {
        let error = WireError::new(ErrorKind::TooLarge, "frame is too long");
        jsonrpc::write_error(&mut self.output, None::<OwnedId>, &error);
    }

    /// Handles one line of the client.
    pub(super) fn handle_line(&mut self, line: &[u8], now: Now) {
        match jsonrpc::parse_frame(line) {
            Frame::Single(Message::Request { id, method, params }) => self.handle_request(id, &method, params, now),
            Frame::Single(Message::Notification { method, params }) => self.handle_notification(&method, params, now),
            Frame::Single(Message::Response { id, outcome }) => {
                let option = outcome.ok().and_then(permission::selected_option);
                self.handle_answer(id, option.as_deref(), now);
            }
            Frame::Single(Message::Invalid { id, error }) => jsonrpc::write_error(&mut self.output, id, &error),
            Frame::Batch(_) => {
                let error = WireError::new(ErrorKind::InvalidRequest, "batches are not supported");
                jsonrpc::write_error(&mut self.output, None::<OwnedId>, &error);
            }
            Frame::Invalid(error) => jsonrpc::write_error(&mut self.output, None::<OwnedId>, &error),
        }
    }

    /// Does what is due.
    pub(super) fn advance(&mut self, now: Now) {
        loop {
            let due = self
                .turns
                .iter()
                .filter(|(_, turn)| matches!(turn.state, TurnState::Running) && turn.due_ms <= now.elapsed_ms)
                .min_by_key(|(number, turn)| (turn.due_ms, **number))
                .map(|(number, _)| *number);
            let (Some(number), None) = (due, self.exit_code) else { return };
            self.take_step(number, now);
        }
    }

    fn handle_request(&mut self, id: Id<'_>, name: &str, params: Option<&RawValue>, now: Now) {
        if name == method::INITIALIZE {
            self.is_initialized = true;
            return self.answer(id, &initialize_result());
        }
        if !self.is_initialized {
            return self.refuse(id, &WireError::new(ErrorKind::InvalidRequest, "`initialize` has to come first"));
        }
        let handled = match name {
            method::SESSION_NEW => self.session_new(id, params, now),
            method::SESSION_LOAD => self.session_open(id, params, true),
            method::SESSION_RESUME => self.session_open(id, params, false),
            method::SESSION_LIST => self.session_list(id, params),
            method::SESSION_CLOSE => self.session_close(id, params, now),
            method::SESSION_PROMPT => self.session_prompt(id, params, now),
            _ => Err(WireError::new(ErrorKind::MethodNotFound, format!("no method `{name}`")).to_object()),
        };
        if let Err(error) = handled {
            jsonrpc::write_error_object(&mut self.output, id, &error);
        }
    }

    fn handle_notification(&mut self, name: &str, params: Option<&RawValue>, now: Now) {
        match name {
            method::SESSION_CANCEL => {
                let Some(session_id) = params.and_then(envelope::session_id) else { return };
                self.cancel(now, |turn| turn.session_id == session_id);
            }
            method::CANCEL_REQUEST => {
                let Some(id) = envelope::cancelled_request_id(params).map(Id::to_owned) else { return };
                self.cancel(now, |turn| turn.request_id == id);
            }
            // Unknown notifications are ignored, as the protocol says.
            _ => {}
        }
    }

    fn handle_answer(&mut self, id: Id<'_>, option: Option<&str>, now: Now) {
        let asked = self.turns.iter_mut().find_map(|(_, turn)| match &turn.state {
            TurnState::Asking { question_id, tool_call_id } if id.as_u64() == Some(*question_id) => {
                let tool_call_id = tool_call_id.clone();
                Some((turn, tool_call_id))
            }
            _ => None,
        });
        // Late answers, after a cancel, have nobody to go to.
        let Some((turn, tool_call_id)) = asked else { return };
        let cwd = self.transcripts.seen_mut(&turn.session_id).map(|session| session.cwd.clone()).unwrap_or_default();
        turn.steps = script::after_permission(option, &tool_call_id, &cwd);
        turn.state = TurnState::Running;
        turn.schedule(now.elapsed_ms);
    }

    fn session_new(&mut self, id: Id<'_>, params: Option<&RawValue>, now: Now) -> Result<(), ErrorObject> {
        let setup = envelope::session_setup(params).map_err(|error| error.to_object())?;
        let session_id = (self.make_id)();
        let session = Session {
            cwd: setup.cwd.into_owned(),
            title: None,
            updated_at_ms: now.wall_ms,
            used_tokens: 0,
            updates: Vec::new(),
            is_open: true,
        };
        self.transcripts.insert(&session_id, session).map_err(|error| internal(&error))?;
        self.answer(id, &json!({ "sessionId": session_id }));
        // Commands come outside of turns, right after the session is there, as real agents send them.
        let commands: Vec<serde_json::Value> =
            COMMANDS.iter().map(|(name, what)| json!({ "name": name, "description": what })).collect();
        let update = json!({ "sessionUpdate": "available_commands_update", "availableCommands": commands });
        self.send_update(&session_id, &update);
        Ok(())
    }

    fn session_open(&mut self, id: Id<'_>, params: Option<&RawValue>, replay: bool) -> Result<(), ErrorObject> {
        let setup = envelope::session_setup(params).map_err(|error| error.to_object())?;
        let session_id = setup.session_id.ok_or_else(|| {
            WireError::new(ErrorKind::InvalidParams, "`sessionId` is missing").at_path("sessionId").to_object()
        })?;
        let found = self.transcripts.find_mut(&session_id).map_err(|error| internal(&error))?;
        let session = found.ok_or_else(|| errors::session_not_found(&session_id))?;
        if session.cwd != setup.cwd {
            let message = format!("the session belongs to `{}`, not to `{}`", session.cwd, setup.cwd);
            return Err(WireError::new(ErrorKind::InvalidParams, message).at_path("cwd").to_object());
        }
        session.is_open = true;
        if replay {
            for update in &session.updates {
                write_update(&mut self.output, &session_id, update);
            }
        }
        self.answer(id, &json!({}));
        Ok(())
    }

    fn session_list(&mut self, id: Id<'_>, params: Option<&RawValue>) -> Result<(), ErrorObject> {
        let [cwd, cursor] = raw::pick(params.map_or("{}", RawValue::get), ["cwd", "cursor"])
            .map(|member| member.and_then(raw::not_null).map(raw::string));
        let bad = |path: &str| {
            WireError::new(ErrorKind::InvalidParams, format!("`{path}` is not valid")).at_path(path).to_object()
        };
        let cwd = cwd.map(|cwd| cwd.ok_or_else(|| bad("cwd"))).transpose()?;
        let skipped: usize = match cursor {
            Some(cursor) => cursor.and_then(|cursor| cursor.parse().ok()).ok_or_else(|| bad("cursor"))?,
            None => 0,
        };
        let all = self.transcripts.list().map_err(|error| internal(&error))?;
        let mut matching = all
            .into_iter()
            .filter(|(_, session)| cwd.as_deref().is_none_or(|cwd| session.cwd == cwd))
            .skip(skipped)
            .peekable();
        let mut sessions = Vec::new();
        while let Some((session_id, session)) = matching.next_if(|_| sessions.len() < PAGE_SIZE) {
            sessions.push(json!({
                "sessionId": session_id,
                "cwd": session.cwd,
                "title": session.title,
                "updatedAt": jiff::Timestamp::from_millisecond(session.updated_at_ms).ok().map(|at| at.to_string()),
            }));
        }
        let mut result = json!({ "sessions": sessions });
        if matching.peek().is_some() {
            result["nextCursor"] = json!((skipped + PAGE_SIZE).to_string());
        }
        self.answer(id, &result);
        Ok(())
    }

    fn session_close(&mut self, id: Id<'_>, params: Option<&RawValue>, now: Now) -> Result<(), ErrorObject> {
        let session_id = envelope::required_session_id(params).map_err(|error| error.to_object())?;
        let found = self.transcripts.find_mut(&session_id).map_err(|error| internal(&error))?;
        found.ok_or_else(|| errors::session_not_found(&session_id))?.is_open = false;
        self.cancel(now, |turn| turn.session_id == session_id);
        self.answer(id, &json!({}));
        Ok(())
    }

    fn session_prompt(&mut self, id: Id<'_>, params: Option<&RawValue>, now: Now) -> Result<(), ErrorObject> {
        let session_id = envelope::required_session_id(params).map_err(|error| error.to_object())?;
        let session = self.transcripts.seen_mut(&session_id).filter(|session| session.is_open);
        session.ok_or_else(|| errors::session_not_found(&session_id))?;
        let prompt = params.filter(|params| prompt::prompt_blocks(params).next().is_some()).ok_or_else(|| {
            WireError::new(ErrorKind::InvalidParams, "`prompt` holds no content").at_path("prompt").to_object()
        })?;
        let number = self.next_turn;
        self.next_turn += 1;
        let is_busy = self.turns.values().any(|turn| turn.session_id == session_id);
        let turn = Turn {
            request_id: id.to_owned(),
            session_id: session_id.into_owned(),
            state: TurnState::Queued(prompt.to_owned()),
            steps: VecDeque::new(),
            due_ms: 0,
            input_tokens: 0,
            output_tokens: 0,
        };
        self.turns.insert(number, turn);
        if !is_busy {
            self.begin(number, now);
        }
        Ok(())
    }

    fn begin(&mut self, number: u64, now: Now) {
        let Some(turn) = self.turns.get_mut(&number) else { return };
        let TurnState::Queued(params) = std::mem::replace(&mut turn.state, TurnState::Running) else { return };
        let Some(session) = self.transcripts.seen_mut(&turn.session_id) else { return };
        let earlier_prompts: Vec<String> = session.updates.iter().filter_map(|update| user_text(update)).collect();
        let mut words = String::new();
        for block in prompt::prompt_blocks(&params) {
            turn.input_tokens += tokens(block);
            if let Some(text) = update::text_of_block(block) {
                words = text.into_owned();
            }
            // Blocks are parts of checked JSON, so this keeps each of them.
            session.updates.extend(RawValue::from_string(prompt::user_message_chunk(block, None)));
        }
        if session.title.is_none() {
            session.title = Some(words.chars().take(60).collect());
        }
        let tool_call_id = format!("call-{}", (self.make_id)());
        let scene = Scene { cwd: &session.cwd, tool_call_id: &tool_call_id, earlier_prompts: &earlier_prompts };
        turn.steps = script::steps(&words, &scene);
        turn.schedule(now.elapsed_ms);
    }

    fn take_step(&mut self, number: u64, now: Now) {
        let Some(turn) = self.turns.get_mut(&number) else { return };
        let Some(step) = turn.steps.pop_front() else {
            return self.finish(number, "end_turn", now);
        };
        match step.action {
            Action::Update(update) => self.stream(number, &update),
            Action::Count { sent, count } => {
                let (update, next) = script::count_on(sent, count);
                if let Some(next) = next {
                    turn.steps.push_front(next);
                }
                if let Some(update) = update {
                    self.stream(number, &update);
                }
            }
            Action::AskPermission { tool_call_id } => return self.ask(number, tool_call_id),
            Action::Fail(message) => return self.fail(number, &message, now),
            Action::Crash => {
                self.save(number, now);
                self.exit_code = Some(CRASH_EXIT_CODE);
                return;
            }
        }
        if let Some(turn) = self.turns.get_mut(&number) {
            turn.schedule(turn.due_ms);
        }
    }

    /// Sends an update of a turn and remembers it.
    fn stream(&mut self, number: u64, update: &serde_json::Value) {
        let Some(turn) = self.turns.get_mut(&number) else { return };
        let Some(session) = self.transcripts.seen_mut(&turn.session_id) else { return };
        // A JSON value always serialises.
        let Ok(update) = to_raw_value(update) else { return };
        turn.output_tokens += tokens(update.get());
        write_update(&mut self.output, &turn.session_id, &update);
        session.updates.push(update);
    }

    fn ask(&mut self, number: u64, tool_call_id: String) {
        let Some(turn) = self.turns.get_mut(&number) else { return };
        let question_id = self.next_question_id;
        self.next_question_id += 1;
        let params = json!({
            "sessionId": turn.session_id,
            "toolCall": { "toolCallId": tool_call_id, "title": "Write greeting.txt", "kind": "edit", "status": "pending" },
            "options": [
                { "optionId": "allow", "name": "Allow", "kind": "allow_once" },
                { "optionId": "allow-always", "name": "Always allow", "kind": "allow_always" },
                { "optionId": "reject", "name": "Refuse", "kind": "reject_once" },
            ],
        });
        turn.state = TurnState::Asking { question_id, tool_call_id };
        send(jsonrpc::write_request(&mut self.output, question_id, method::SESSION_REQUEST_PERMISSION, &params));
    }

    fn fail(&mut self, number: u64, message: &str, now: Now) {
        self.save(number, now);
        let Some(turn) = self.turns.remove(&number) else { return };
        let error = WireError::new(ErrorKind::Internal, message);
        jsonrpc::write_error(&mut self.output, &turn.request_id, &error);
        self.begin_next(&turn.session_id, now);
    }

    fn finish(&mut self, number: u64, stop_reason: &str, now: Now) {
        let used_tokens = self.save(number, now);
        let Some(turn) = self.turns.remove(&number) else { return };
        let usage = json!({
            "sessionUpdate": "usage_update",
            "used": used_tokens,
            "size": CONTEXT_TOKENS,
            // It really costs nothing.
            "cost": { "amount": 0, "currency": "USD" },
        });
        self.send_update(&turn.session_id, &usage);
        let result = json!({
            "stopReason": stop_reason,
            "usage": {
                "totalTokens": turn.input_tokens + turn.output_tokens,
                "inputTokens": turn.input_tokens,
                "outputTokens": turn.output_tokens,
            },
        });
        send(jsonrpc::write_result(&mut self.output, &turn.request_id, &result));
        self.begin_next(&turn.session_id, now);
    }

    /// Ends turns at once, queued ones included: most agents take a cancel for the whole session.
    fn cancel(&mut self, now: Now, concerns: impl Fn(&Turn) -> bool) {
        let numbers: Vec<u64> =
            self.turns.iter().filter(|(_, turn)| concerns(turn)).map(|(number, _)| *number).collect();
        // The last one first, so that none of them begins because the one before it has ended.
        for number in numbers.into_iter().rev() {
            self.finish(number, "cancelled", now);
        }
    }

    fn begin_next(&mut self, session_id: &str, now: Now) {
        let next = self.turns.iter().find(|(_, turn)| turn.session_id == session_id).map(|(number, _)| *number);
        if let Some(number) = next {
            self.begin(number, now);
        }
    }

    /// Writes the transcript at the end of a turn; returns the session's tokens so far.
    fn save(&mut self, number: u64, now: Now) -> u64 {
        let Some(turn) = self.turns.get(&number) else { return 0 };
        let Some(session) = self.transcripts.seen_mut(&turn.session_id) else { return 0 };
        session.updated_at_ms = now.wall_ms;
        session.used_tokens += turn.input_tokens + turn.output_tokens;
        let used_tokens = session.used_tokens;
        // The turn went well all the same; only a later process will not know of it.
        if let Err(error) = self.transcripts.save(&turn.session_id) {
            eprintln!("demo agent: {}", with_sources(&error));
        }
        used_tokens
    }

    fn send_update(&mut self, session_id: &str, update: &impl Serialize) {
        // A JSON value always serialises.
        if let Ok(update) = to_raw_value(update) {
            write_update(&mut self.output, session_id, &update);
        }
    }

    fn answer(&mut self, id: Id<'_>, result: &impl Serialize) {
        send(jsonrpc::write_result(&mut self.output, id, result));
    }

    fn refuse(&mut self, id: Id<'_>, error: &WireError) {
        jsonrpc::write_error(&mut self.output, id, error);
    }
}

impl Turn {
    /// Sets the time of the next step; at the end of the steps the turn ends at once. `from_ms` is when the step before
    /// it was due, not when it was done, so that lateness does not add up.
    fn schedule(&mut self, from_ms: u64) {
        self.due_ms = from_ms + self.steps.front().map_or(0, |step| step.after_ms);
    }
}

fn initialize_result() -> serde_json::Value {
    json!({
        "protocolVersion": holdfast_protocol::acp::PROTOCOL_VERSION,
        "agentCapabilities": {
            "loadSession": true,
            "promptCapabilities": { "image": true, "audio": true, "embeddedContext": true },
            "mcpCapabilities": { "http": false, "sse": false },
            "sessionCapabilities": { "resume": {}, "list": {}, "close": {} },
        },
        "authMethods": [],
        "agentInfo": {
            "name": "holdfast-demo-agent",
            "title": "Demonstration agent",
            "version": env!("CARGO_PKG_VERSION"),
        },
    })
}

fn write_update(output: &mut Vec<u8>, session_id: &str, update: &RawValue) {
    send(prompt::update_params(session_id, update.get()).map(|params| {
        jsonrpc::write_raw_notification(output, method::SESSION_UPDATE, Some(&params));
    }));
}

/// What is written here is made of JSON values, which always serialise; should that ever be wrong, say so.
fn send(written: Result<(), serde_json::Error>) {
    if let Err(error) = written {
        eprintln!("demo agent: failed to write a frame: {error}");
    }
}

fn internal(error: &TranscriptError) -> ErrorObject {
    WireError::new(ErrorKind::Internal, with_sources(error)).to_object()
}

fn with_sources(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", with_sources(source)),
        None => error.to_string(),
    }
}

fn user_text(update: &RawValue) -> Option<String> {
    let [kind, content] = raw::pick(update.get(), ["sessionUpdate", "content"]);
    (kind.and_then(raw::string)? == "user_message_chunk").then_some(())?;
    update::text_of_block(content?).map(std::borrow::Cow::into_owned)
}

/// Four bytes a token: a rule of thumb, good enough for a program that has no tokens.
fn tokens(text: &str) -> u64 {
    text.len().div_ceil(4) as u64
}
