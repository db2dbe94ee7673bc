//! The process: the protocol around the steps.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, BufRead, Read, Write};
use std::path::Path;
use std::process::{self, Child};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use holdfast_protocol::acp::{envelope, errors, method, prompt};
use holdfast_protocol::framing::LineBuffer;
use holdfast_protocol::jsonrpc::{self, Frame, Id, Message, OwnedId, parse_frame};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::script::{Replay, Script, Step, raw};
use super::trace::Recorder;
use super::turn::{Death, Event, Signal, Turn, outcome_frame, update_frame, write_output};

/// Runs a fake agent on stdin and stdout until stdin ends or a step ends it.
///
/// # Errors
/// If the script, the trace or the state can't be read or written.
pub fn run(script_path: &Path) -> io::Result<()> {
    let script = Script::read_from(script_path)?;
    if script.ignore_sigterm {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    }
    let (events, inbox) = channel();
    let mut agent = Agent {
        recorder: Recorder::open(script.trace.as_deref())?,
        sessions: read_state(script.state.as_deref())?,
        script,
        events: events.clone(),
        session_count: 0,
        prompt_count: 0,
        turn_count: 0,
        turns: BTreeMap::new(),
        questions: BTreeMap::new(),
        question_count: 0,
        children: Vec::new(),
    };
    agent.recorder.record("started", None, None)?;
    let on_start = agent.script.on_start.clone();
    agent.start_turn(String::new(), None, on_start);
    thread::spawn(move || read_lines(&events));
    for event in inbox {
        match event {
            Event::Line(line) => agent.handle_line(&line)?,
            Event::EndOfInput => {
                agent.recorder.record("end_of_input", None, None)?;
                if !agent.script.ignore_end_of_input {
                    return Ok(());
                }
            }
            Event::Ask { method, params, turn } => agent.ask(&method, &params, turn)?,
            Event::Sent { session_id, update } => agent.remember(&session_id, Some(update))?,
            Event::Spawned { child } => {
                agent.recorder.record("spawned", None, Some(child.id()))?;
                // Kept, not waited for: whoever ends the agent has to cope with its children.
                agent.children.push(child);
            }
            Event::Die(death) => die(&death),
            Event::Ended { turn_number } => {
                agent.turns.remove(&turn_number);
            }
        }
    }
    Ok(())
}

struct Agent {
    script: Script,
    recorder: Recorder,
    /// Histories by session id.
    sessions: BTreeMap<String, Vec<Box<RawValue>>>,
    events: Sender<Event>,
    session_count: usize,
    prompt_count: usize,
    turn_count: usize,
    turns: BTreeMap<usize, RunningTurn>,
    questions: BTreeMap<u64, Sender<Signal>>,
    question_count: u64,
    children: Vec<Child>,
}

struct RunningTurn {
    session_id: String,
    signals: Sender<Signal>,
}

/// One line of the state file.
#[derive(Serialize, Deserialize)]
struct StateLine {
    session_id: String,
    update: Option<Box<RawValue>>,
}

impl Agent {
    fn handle_line(&mut self, line: &[u8]) -> io::Result<()> {
        let frame = std::str::from_utf8(line).ok().and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
        self.recorder.record(if frame.is_some() { "received" } else { "noise" }, frame, None)?;
        match parse_frame(line) {
            Frame::Single(Message::Request { id, method, params }) => self.handle_request(id, &method, params),
            Frame::Single(Message::Notification { method, params }) => {
                if method == method::SESSION_CANCEL {
                    let session_id = params.and_then(envelope::session_id).unwrap_or_default();
                    let turns = self.turns.values().filter(|turn| turn.session_id == session_id);
                    // A turn that is just ending has nothing left to cancel.
                    turns.for_each(|turn| drop(turn.signals.send(Signal::Cancel)));
                }
                Ok(())
            }
            Frame::Single(Message::Response { id, outcome }) => {
                if let Some(turn) = id.as_u64().and_then(|id| self.questions.remove(&id)) {
                    // The turn may have been cancelled in the meantime.
                    let _ = turn.send(Signal::Answer(outcome.ok().map(ToOwned::to_owned)));
                }
                Ok(())
            }
            // It is in the trace.
            Frame::Single(Message::Invalid { .. }) | Frame::Batch(_) | Frame::Invalid(_) => Ok(()),
        }
    }

    fn handle_request(&mut self, id: Id<'_>, name: &str, params: Option<&RawValue>) -> io::Result<()> {
        let session_id = params.and_then(envelope::session_id).map(std::borrow::Cow::into_owned).unwrap_or_default();
        match name {
            method::INITIALIZE => self.initialize(id),
            method::SESSION_NEW | method::SESSION_FORK => {
                let session_id = match self.script.session_ids.get(self.session_count) {
                    Some(session_id) => session_id.clone(),
                    None => format!("fake-{}-{}", process::id(), self.session_count),
                };
                self.session_count += 1;
                self.remember(&session_id, None)?;
                answer(id, &raw(&serde_json::json!({ "sessionId": session_id })))?;
                let steps = self.script.on_new_session.clone();
                self.start_turn(session_id, None, steps);
                Ok(())
            }
            method::SESSION_LOAD | method::SESSION_RESUME if self.is_known(&session_id) => {
                self.open(id, session_id, name == method::SESSION_LOAD)
            }
            method::SESSION_PROMPT if self.is_known(&session_id) => {
                let text = params.map(prompt::prompt_text).unwrap_or_default();
                let steps = self.script.steps_for(&text, self.prompt_count);
                self.prompt_count += 1;
                for block in params.into_iter().flat_map(prompt::prompt_blocks) {
                    let update = RawValue::from_string(prompt::user_message_chunk(block, None))?;
                    self.remember(&session_id, Some(update))?;
                }
                self.start_turn(session_id, Some(id.to_owned()), steps);
                Ok(())
            }
            method::SESSION_LOAD | method::SESSION_RESUME | method::SESSION_PROMPT => {
                let mut frame = Vec::new();
                let error = match &self.script.unknown_session_error {
                    Some(error) => serde_json::from_str(error.get())?,
                    None => errors::session_not_found(&session_id),
                };
                jsonrpc::write_error_object(&mut frame, id, &error);
                write_output(&frame)
            }
            method::SESSION_LIST => {
                let sessions: Vec<serde_json::Value> = self
                    .sessions
                    .keys()
                    .map(|session_id| serde_json::json!({ "sessionId": session_id, "cwd": "/" }))
                    .collect();
                answer(id, &raw(&serde_json::json!({ "sessions": sessions })))
            }
            method::SESSION_CLOSE
            | method::SESSION_DELETE
            | method::SESSION_SET_MODE
            | method::SESSION_SET_CONFIG_OPTION
            | method::AUTHENTICATE => answer(id, &raw(&serde_json::json!({}))),
            // Extensions answer with what they got, so that tests can compare bytes.
            name if method::is_extension(name) => {
                let nothing = raw(&());
                answer(id, params.unwrap_or(&nothing))
            }
            name => {
                let mut frame = Vec::new();
                let error = holdfast_protocol::error::WireError::new(
                    holdfast_protocol::error::ErrorKind::MethodNotFound,
                    format!("no method `{name}`"),
                );
                jsonrpc::write_error(&mut frame, id, &error);
                write_output(&frame)
            }
        }
    }

    fn initialize(&self, id: Id<'_>) -> io::Result<()> {
        if let Some(error) = &self.script.initialize_error {
            let mut frame = Vec::new();
            jsonrpc::write_error_object(&mut frame, id, &serde_json::from_str(error.get())?);
            return write_output(&frame);
        }
        if let Some(result) = &self.script.initialize_result {
            return answer(id, result);
        }
        let all = r#"{"loadSession":true,"sessionCapabilities":{"resume":{},"list":{},"close":{},"fork":{}}}"#;
        let capabilities = self.script.capabilities.as_deref().map_or(all, RawValue::get);
        answer(
            id,
            &RawValue::from_string(format!(
                "{{\"protocolVersion\":1,\"agentCapabilities\":{capabilities},\"authMethods\":[],\
                 \"agentInfo\":{{\"name\":\"fake-agent\",\"version\":\"1\"}}}}"
            ))?,
        )
    }

    fn open(&mut self, id: Id<'_>, session_id: String, is_load: bool) -> io::Result<()> {
        let updates = match &self.script.replay_updates {
            Some(updates) => updates.clone(),
            None => self.sessions.get(&session_id).cloned().unwrap_or_default(),
        };
        let replays = (is_load || self.script.resume_replays) && self.script.replay != Replay::Never;
        if self.script.replay == Replay::After {
            answer(id, &raw(&serde_json::json!({})))?;
        }
        if replays {
            for update in &updates {
                write_output(&update_frame(&session_id, update)?)?;
            }
        }
        if self.script.replay != Replay::After {
            answer(id, &raw(&serde_json::json!({})))?;
        }
        let steps = self.script.on_opened_session.clone();
        self.start_turn(session_id, None, steps);
        Ok(())
    }

    fn start_turn(&mut self, session_id: String, prompt_id: Option<OwnedId>, steps: Vec<Step>) {
        let number = self.turn_count;
        self.turn_count += 1;
        let (own_signals, signals) = channel();
        let running = RunningTurn { session_id: session_id.clone(), signals: own_signals.clone() };
        self.turns.insert(number, running);
        let events = self.events.clone();
        let turn = Turn { number, session_id, events, signals, own_signals, ignores_cancel: false };
        thread::spawn(move || {
            let outcome = turn.perform(&steps);
            if let (Some(id), Some(outcome)) = (prompt_id, outcome)
                && let Err(error) = outcome_frame(&id, &outcome).and_then(|frame| write_output(&frame))
            {
                eprintln!("fake agent: failed to answer a prompt: {error}");
            }
        });
    }

    fn ask(&mut self, method: &str, params: &RawValue, turn: Sender<Signal>) -> io::Result<()> {
        let id = self.question_count;
        self.question_count += 1;
        self.questions.insert(id, turn);
        let mut frame = Vec::new();
        jsonrpc::write_raw_request(&mut frame, id, method, Some(params));
        write_output(&frame)
    }

    fn is_known(&self, session_id: &str) -> bool {
        self.script.state.is_none() || self.sessions.contains_key(session_id)
    }

    fn remember(&mut self, session_id: &str, update: Option<Box<RawValue>>) -> io::Result<()> {
        if let Some(path) = &self.script.state {
            let line = StateLine { session_id: session_id.to_owned(), update: update.clone() };
            let mut line = serde_json::to_vec(&line)?;
            line.push(b'\n');
            OpenOptions::new().create(true).append(true).open(path)?.write_all(&line)?;
        }
        self.sessions.entry(session_id.to_owned()).or_default().extend(update);
        Ok(())
    }
}

fn die(death: &Death) -> ! {
    use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
    let asked = match death {
        Death::Exit(code) => process::exit(i32::from(*code)),
        Death::Kill => kill_process(getpid(), Signal::KILL),
        // No core files in the way of the tests.
        Death::Abort => setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }),
    };
    if let Err(error) = asked {
        eprintln!("fake agent: failed to die as told: {error}");
    }
    process::abort()
}

fn answer(id: Id<'_>, result: &RawValue) -> io::Result<()> {
    let mut frame = Vec::new();
    jsonrpc::write_raw_result(&mut frame, id, result);
    write_output(&frame)
}

fn read_state(path: Option<&Path>) -> io::Result<BTreeMap<String, Vec<Box<RawValue>>>> {
    let mut sessions: BTreeMap<String, Vec<Box<RawValue>>> = BTreeMap::new();
    let file = match path.map(std::fs::File::open) {
        None => return Ok(sessions),
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(sessions),
        Some(file) => file?,
    };
    for line in io::BufReader::new(file).lines() {
        let line: StateLine = serde_json::from_str(&line?)?;
        sessions.entry(line.session_id).or_default().extend(line.update);
    }
    Ok(sessions)
}

fn read_lines(events: &Sender<Event>) {
    let mut stdin = io::stdin().lock();
    let mut buffer = LineBuffer::new(holdfast_protocol::acp::FRAME_MAX_BYTES);
    loop {
        match stdin.read(buffer.spare_mut()) {
            Ok(0) | Err(_) => break,
            Ok(count) => buffer.advance(count),
        }
        while let Some(line) = buffer.next_line() {
            // A line over the limit can't be in the trace; an empty one stands for it.
            if events.send(Event::Line(line.unwrap_or_default().to_vec())).is_err() {
                return;
            }
        }
    }
    let _ = events.send(Event::EndOfInput);
}
