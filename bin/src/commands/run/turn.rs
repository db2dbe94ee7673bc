//! The conversation while a turn runs: calls and what comes between them.

use std::io::{self, IsTerminal};
use std::time::Instant;

use holdfast_protocol::acp::envelope::cancelled_request_id;
use holdfast_protocol::acp::permission::{cancelled_result, parse_permission_request};
use holdfast_protocol::acp::update::{UpdateKind, parse_update};
use holdfast_protocol::acp::{method, permission};
use holdfast_protocol::error::{ErrorKind, ErrorObject, WireError};
use holdfast_protocol::jsonrpc::{Frame, Id, Message, parse_frame};
use holdfast_protocol::raw;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::outcome::Trouble;
use super::questions::{Question, Questions, Typed, meaning, nobody_to_ask, selection};
use super::screen::Screen;
use super::wire::{Event, Events, Origin, Peer};
use crate::commands::AcpStream;
use crate::render::{Renderer, Tone};

/// One run of the program against one session.
pub(super) struct Turn {
    agent: String,
    events: Events,
    peer: Peer,
    watcher: Option<Peer>,
    screen: Screen,
    questions: Questions,
    /// The session whose turn runs; nothing before the prompt.
    prompting: Option<String>,
    cancelled: bool,
    /// The session's cost as last told: amount as the agent wrote it, and currency.
    cost: Option<(String, String)>,
}

/// What a waiting call makes of a frame.
enum Arrived {
    Answer(Result<Box<RawValue>, ErrorObject>),
    Recorded,
    Nothing,
}

impl Turn {
    pub(super) fn new(agent: String, events: Events, peer: Peer, verbose: bool) -> Self {
        Self {
            agent,
            events,
            peer,
            watcher: None,
            screen: Screen::new(verbose),
            questions: Questions::default(),
            prompting: None,
            cancelled: false,
            cost: None,
        }
    }

    /// Listens to a second connection that sees what others do in the session.
    pub(super) fn watch(&mut self, acp: AcpStream) -> io::Result<()> {
        self.watcher = Some(self.events.listen(Origin::Watcher, acp)?);
        Ok(())
    }

    /// Returns the session's cost so far, where the agent tells.
    pub(super) fn cost(&self) -> Option<(&str, &str)> {
        self.cost.as_ref().map(|(amount, currency)| (amount.as_str(), currency.as_str()))
    }

    /// Sends a request and waits for its answer; what comes meanwhile is shown.
    pub(super) fn call(
        &mut self,
        origin: Origin,
        method: &str,
        params: &Value,
        renderer: &mut Renderer,
    ) -> Result<Box<RawValue>, Trouble> {
        let id = self.request(origin, method, params)?;
        loop {
            if let Arrived::Answer(outcome) = self.step(origin, id, None, renderer)? {
                return outcome.map_err(Trouble::Refused);
            }
        }
    }

    /// Prompts and waits for the end of the turn.
    pub(super) fn prompt(
        &mut self,
        session_id: &str,
        blocks: &[Value],
        renderer: &mut Renderer,
    ) -> Result<Box<RawValue>, Trouble> {
        self.prompting = Some(session_id.to_owned());
        let params = json!({ "sessionId": session_id, "prompt": blocks });
        let outcome = self.call(Origin::Ours, method::SESSION_PROMPT, &params, renderer);
        self.prompting = None;
        self.screen.finish(renderer)?;
        outcome
    }

    /// Prompts and waits until the prompt is on disk, which the watcher sees: an update is stored before it is sent.
    pub(super) fn submit(
        &mut self,
        session_id: &str,
        blocks: &[Value],
        renderer: &mut Renderer,
    ) -> Result<(), Trouble> {
        let params = json!({ "sessionId": session_id, "prompt": blocks });
        let id = self.request(Origin::Ours, method::SESSION_PROMPT, &params)?;
        loop {
            match self.step(Origin::Ours, id, blocks.first(), renderer)? {
                Arrived::Recorded => return Ok(()),
                // A short turn may have ended already.
                Arrived::Answer(outcome) => return outcome.map(|_| ()).map_err(Trouble::Refused),
                Arrived::Nothing => {}
            }
        }
    }

    fn request(&mut self, origin: Origin, method: &str, params: &Value) -> Result<u64, Trouble> {
        let params = to_raw_value(params).map_err(|error| Trouble::strange(&error.to_string()))?;
        match (origin, &mut self.watcher) {
            (Origin::Watcher, Some(watcher)) => Ok(watcher.request(method, &params)?),
            (Origin::Ours | Origin::Watcher, _) => Ok(self.peer.request(method, &params)?),
        }
    }

    /// Waits for one event and does what it asks for. `recorded` is the block whose recording is waited for.
    fn step(
        &mut self,
        origin: Origin,
        id: u64,
        recorded: Option<&Value>,
        renderer: &mut Renderer,
    ) -> Result<Arrived, Trouble> {
        match self.events.next() {
            Event::Frame(from, line) => match parse_frame(&line) {
                Frame::Single(Message::Response { id: answered, outcome }) => {
                    if from != origin || answered.as_u64() != Some(id) {
                        return Ok(Arrived::Nothing);
                    }
                    return Ok(Arrived::Answer(outcome.map(ToOwned::to_owned)));
                }
                Frame::Single(Message::Notification { method, params }) if from == Origin::Ours => {
                    // With a watcher nobody waits for the turn.
                    if self.watcher.is_none() {
                        self.notified(&method, params, renderer)?;
                    }
                }
                Frame::Single(Message::Notification { method, params }) => {
                    if method == method::SESSION_UPDATE && recorded.is_some_and(|block| records(params, block)) {
                        return Ok(Arrived::Recorded);
                    }
                }
                Frame::Single(Message::Request { id, method, params }) => {
                    self.asked(from, id, &method, params, renderer)?;
                }
                // Noise of an agent is not ours to judge, and the daemon passes none on.
                Frame::Single(Message::Invalid { .. }) | Frame::Batch(_) | Frame::Invalid(_) => {}
            },
            Event::Ended(reason) => return Err(Trouble::DaemonWent(reason)),
            Event::Interrupt => self.interrupted(renderer)?,
            Event::Typed(line) => self.typed(line, renderer)?,
        }
        Ok(Arrived::Nothing)
    }

    fn notified(&mut self, method: &str, params: Option<&RawValue>, renderer: &mut Renderer) -> Result<(), Trouble> {
        match (method, params) {
            (method::SESSION_UPDATE, Some(params)) => self.updated(params, renderer),
            (method::CANCEL_REQUEST, params) => {
                let Some(id) = cancelled_request_id(params) else { return Ok(()) };
                if self.questions.withdraw(id) {
                    self.screen.line(&[("  answered elsewhere", Tone::Dim)], renderer)?;
                    self.ask_next(renderer)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn updated(&mut self, params: &RawValue, renderer: &mut Renderer) -> Result<(), Trouble> {
        let Ok(update) = parse_update(Some(params)) else { return Ok(()) };
        if let Some((amount, currency)) = update.usage().and_then(|usage| usage.cost) {
            self.cost = Some((amount.to_owned(), currency.into_owned()));
        }
        if renderer.is_for_programs() {
            // As it came: reading it into a tree would reorder keys and round large numbers.
            return Ok(renderer.json_line(params)?);
        }
        Ok(self.screen.update(&update, Instant::now(), renderer)?)
    }

    fn asked(
        &mut self,
        from: Origin,
        id: Id<'_>,
        method: &str,
        params: Option<&RawValue>,
        renderer: &mut Renderer,
    ) -> Result<(), Trouble> {
        let id = id.to_owned();
        // The one who submits and leaves answers nothing: the question is then for whoever is attached.
        if self.watcher.is_some() && method == method::SESSION_REQUEST_PERMISSION {
            return Ok(());
        }
        let peer = match (from, &mut self.watcher) {
            (Origin::Watcher, Some(watcher)) => watcher,
            (Origin::Ours | Origin::Watcher, _) => &mut self.peer,
        };
        if method != method::SESSION_REQUEST_PERMISSION {
            let error = WireError::new(ErrorKind::MethodNotFound, format!("`holdfast run` has no `{method}`"));
            return Ok(peer.answer(&id, Err(&error.to_object()))?);
        }
        if self.cancelled {
            let cancelled = cancelled_result().map_err(|error| Trouble::strange(&error.to_string()))?;
            return Ok(peer.answer(&id, Ok(&cancelled))?);
        }
        let can_ask = !renderer.is_for_programs()
            && renderer.surroundings().stderr_is_terminal
            && io::stdin().is_terminal()
            && parse_permission_request(params).is_ok();
        match params {
            Some(params) if can_ask => {
                self.events.listen_to_keyboard();
                if self.questions.add(Question { id, params: params.to_owned() }) {
                    self.ask_next(renderer)?;
                }
                Ok(())
            }
            _ => {
                if !renderer.is_for_programs() {
                    let title = parse_permission_request(params).ok().and_then(|request| request.title);
                    let title = title.unwrap_or_default();
                    let words = [
                        ("▸ permission  ", Tone::Warning),
                        (&*title, Tone::Plain),
                        ("   nobody to ask: the agent's rule for unattended turns decides", Tone::Dim),
                    ];
                    self.screen.line(&words, renderer)?;
                }
                Ok(self.peer.answer(&id, Err(&nobody_to_ask()))?)
            }
        }
    }

    fn ask_next(&mut self, renderer: &mut Renderer) -> Result<(), Trouble> {
        let Some(question) = self.questions.current() else { return Ok(()) };
        let Ok(request) = permission::parse_permission_request(Some(&question.params)) else { return Ok(()) };
        Ok(self.screen.ask(&self.agent, &request, renderer)?)
    }

    fn typed(&mut self, line: Option<String>, renderer: &mut Renderer) -> Result<(), Trouble> {
        let Some(line) = line else {
            for question in self.questions.take_all() {
                self.peer.answer(&question.id, Err(&nobody_to_ask()))?;
            }
            return Ok(());
        };
        self.screen.answered();
        let Some(question) = self.questions.current() else { return Ok(()) };
        match meaning(&line, &question.params) {
            Typed::Select(option) => {
                let answer = selection(&option).map_err(|error| Trouble::strange(&error.to_string()))?;
                if let Some(question) = self.questions.take_current() {
                    self.peer.answer(&question.id, Ok(&answer))?;
                }
            }
            Typed::Why => {
                if let Ok(request) = parse_permission_request(Some(&question.params)) {
                    self.screen.explain(&request, renderer);
                }
            }
            Typed::Unknown => {}
        }
        self.ask_next(renderer)
    }

    /// The first Ctrl-C cancels the turn and waits for its end; the second one never comes here.
    fn interrupted(&mut self, renderer: &mut Renderer) -> Result<(), Trouble> {
        let Some(session_id) = &self.prompting else { return Err(Trouble::Interrupted) };
        self.cancelled = true;
        let params = format!("{{\"sessionId\":{}}}", raw::quote(session_id));
        let params = RawValue::from_string(params).map_err(|error| Trouble::strange(&error.to_string()))?;
        self.peer.notify(method::SESSION_CANCEL, &params)?;
        // A client that cancels answers what it is asked with `cancelled`: ACP, prompt turn, cancellation.
        let answer = cancelled_result().map_err(|error| Trouble::strange(&error.to_string()))?;
        for question in self.questions.take_all() {
            self.peer.answer(&question.id, Ok(&answer))?;
        }
        if !renderer.is_for_programs() {
            self.screen.line(&[("cancelling; again leaves at once", Tone::Warning)], renderer)?;
        }
        Ok(())
    }
}

/// Says whether an update records `block` as said by the user.
fn records(params: Option<&RawValue>, block: &Value) -> bool {
    let Ok(update) = parse_update(params) else { return false };
    let [content] = raw::pick(update.raw, ["content"]);
    update.kind == UpdateKind::UserMessageChunk
        && content.and_then(|content| serde_json::from_str::<Value>(content).ok()).as_ref() == Some(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_prompt_is_recognised_by_its_block() {
        let block = json!({ "type": "text", "text": "a" });
        let update = |kind: &str, text: &str| {
            let update = json!({ "sessionUpdate": kind, "content": { "text": text, "type": "text" } });
            to_raw_value(&json!({ "sessionId": "s", "update": update })).unwrap()
        };
        assert!(records(Some(&update("user_message_chunk", "a")), &block));
        assert!(!records(Some(&update("user_message_chunk", "b")), &block));
        assert!(!records(Some(&update("agent_message_chunk", "a")), &block));
        assert!(!records(None, &block));
    }
}
