//! A turn for a person: the answer on standard output, all else on standard error.

use std::collections::HashMap;
use std::time::Instant;

use holdfast_protocol::acp::permission::{OptionKind, PermissionRequest};
use holdfast_protocol::acp::update::{Update, UpdateKind};
use holdfast_protocol::raw;

use super::facts::{Changed, PlanEntry, changes, plan_entries, plan_news, tool_word};
use crate::render::{Failure, Renderer, Tone, duration};

/// Columns of a thought that are shown when it is folded.
const THOUGHT_COLUMNS: usize = 72;
/// Columns of the word before a title.
const WORD_COLUMNS: usize = 9;

/// What is on the screen, as far as the next thing depends on it.
pub(super) struct Screen {
    verbose: bool,
    /// The cursor stands behind text of the answer that did not end its line.
    in_text: bool,
    /// The cursor stands behind text on standard error that did not end its line, and what it belongs to.
    aside: Aside,
    thought: String,
    tools: HashMap<String, Tool>,
    plan: Vec<PlanEntry>,
}

#[derive(Debug, PartialEq, Eq)]
enum Aside {
    Nothing,
    Thought,
    Tool(String),
    Question,
}

#[derive(Debug)]
struct Tool {
    word: String,
    title: String,
    changed: Option<Changed>,
    began: Instant,
    ended: bool,
}

impl Screen {
    pub(super) fn new(verbose: bool) -> Self {
        Self {
            verbose,
            in_text: false,
            aside: Aside::Nothing,
            thought: String::new(),
            tools: HashMap::new(),
            plan: Vec::new(),
        }
    }

    /// Shows an update.
    ///
    /// # Errors
    /// When standard output can't be written.
    pub(super) fn update(&mut self, update: &Update<'_>, now: Instant, renderer: &mut Renderer) -> Result<(), Failure> {
        match update.kind {
            UpdateKind::AgentMessageChunk => self.text(update, renderer),
            UpdateKind::AgentThoughtChunk => self.think(update, renderer),
            UpdateKind::ToolCall | UpdateKind::ToolCallUpdate => self.tool(update, now, renderer),
            UpdateKind::Plan => self.plan(update, renderer),
            UpdateKind::Notice => {
                let text = update.text().or_else(|| raw::pick(update.raw, ["message"])[0].and_then(raw::string));
                text.map_or(Ok(()), |text| self.line(&[("▸ notice    ", Tone::Dim), (&text, Tone::Plain)], renderer))
            }
            // Of others: what somebody else says in the session, and what changes nothing on this screen.
            UpdateKind::UserMessageChunk => {
                update.text().map_or(Ok(()), |text| self.line(&[("› ", Tone::Strong), (&text, Tone::Dim)], renderer))
            }
            UpdateKind::AvailableCommandsUpdate
            | UpdateKind::CurrentModeUpdate
            | UpdateKind::ConfigOptionUpdate
            | UpdateKind::SessionInfoUpdate
            | UpdateKind::UsageUpdate
            | UpdateKind::PlanUpdate
            | UpdateKind::PlanRemoved
            | UpdateKind::CompactionUpdate
            | UpdateKind::CompactionSummaryChunk
            | UpdateKind::SubagentUpdate
            | UpdateKind::SessionMessage
            | UpdateKind::SessionMessageChunk
            | UpdateKind::PromptSuggestionsUpdate
            | UpdateKind::CursorUpdate
            | UpdateKind::Other(_) => Ok(()),
        }
    }

    /// Asks a person; the answer comes from the keyboard.
    ///
    /// # Errors
    /// When standard output can't be written.
    pub(super) fn ask(
        &mut self,
        agent: &str,
        request: &PermissionRequest<'_>,
        renderer: &mut Renderer,
    ) -> Result<(), Failure> {
        self.make_room(renderer)?;
        let known = request.tool_call_id.as_deref().and_then(|id| self.tools.get(id)).map(|tool| tool.title.as_str());
        let title = request.title.as_deref().or(known).unwrap_or("something that it does not name");
        renderer.aside_stream("? ", Tone::Warning);
        renderer.aside_stream(&format!("{agent} wants to  "), Tone::Plain);
        renderer.aside_stream(&crate::render::clean(title), Tone::Strong);
        for (key, words, kind) in CHOICES {
            if request.options.iter().any(|option| option.kind == kind) {
                renderer.aside_stream(&format!("   [{key}] {words}"), Tone::Plain);
            }
        }
        renderer.aside_stream("   [?] why  ›  ", Tone::Plain);
        self.aside = Aside::Question;
        Ok(())
    }

    /// Says more about what is asked.
    pub(super) fn explain(&mut self, request: &PermissionRequest<'_>, renderer: &mut Renderer) {
        // The person ended the line.
        self.aside = Aside::Nothing;
        for path in &request.paths {
            renderer.aside(&[("  touches ", Tone::Dim), (path, Tone::Plain)]);
        }
        let [input] = raw::pick(request.tool_call, ["rawInput"]);
        if let Some(input) = input {
            renderer.aside(&[("  input   ", Tone::Dim), (input, Tone::Plain)]);
        }
        for option in &request.options {
            renderer.aside(&[("  option  ", Tone::Dim), (&option.name, Tone::Plain)]);
        }
    }

    /// The person ended the line by typing.
    pub(super) fn answered(&mut self) {
        self.aside = Aside::Nothing;
    }

    /// Writes a line on standard error, below whatever is on the screen.
    ///
    /// # Errors
    /// When standard output can't be written.
    pub(super) fn line(&mut self, pieces: &[(&str, Tone)], renderer: &mut Renderer) -> Result<(), Failure> {
        self.make_room(renderer)?;
        renderer.aside(pieces);
        Ok(())
    }

    /// Ends what is open: the turn has ended.
    ///
    /// # Errors
    /// When standard output can't be written.
    pub(super) fn finish(&mut self, renderer: &mut Renderer) -> Result<(), Failure> {
        self.make_room(renderer)?;
        if std::mem::take(&mut self.in_text) {
            renderer.stream("\n", Tone::Plain)?;
        }
        Ok(())
    }

    fn text(&mut self, update: &Update<'_>, renderer: &mut Renderer) -> Result<(), Failure> {
        let Some(text) = update.text().filter(|text| !text.is_empty()) else { return Ok(()) };
        self.fold_thought(renderer);
        self.end_aside(renderer);
        self.in_text = !text.ends_with('\n');
        renderer.stream(&text, Tone::Plain)
    }

    fn think(&mut self, update: &Update<'_>, renderer: &mut Renderer) -> Result<(), Failure> {
        let Some(text) = update.text() else { return Ok(()) };
        if self.verbose {
            if self.aside != Aside::Thought {
                self.make_room(renderer)?;
                renderer.aside_stream("▸ thinking  ", Tone::Dim);
                self.aside = Aside::Thought;
            }
            renderer.aside_stream(&text, Tone::Dim);
            return Ok(());
        }
        if self.thought.chars().count() <= THOUGHT_COLUMNS {
            self.thought.push_str(&text);
        }
        Ok(())
    }

    /// Shows the beginning of a thought that has ended.
    fn fold_thought(&mut self, renderer: &mut Renderer) {
        let thought = std::mem::take(&mut self.thought);
        let thought = thought.trim();
        if thought.is_empty() {
            return;
        }
        let mut folded: String = thought.chars().take(THOUGHT_COLUMNS).collect();
        if folded.len() < thought.len() {
            folded.push('…');
        }
        renderer.aside(&[("▸ thinking  ", Tone::Dim), (&folded, Tone::Dim)]);
    }

    fn tool(&mut self, update: &Update<'_>, now: Instant, renderer: &mut Renderer) -> Result<(), Failure> {
        let Some(id) = update.tool_call_id.as_deref() else { return Ok(()) };
        let [kind] = raw::pick(update.raw, ["kind"]).map(|raw| raw.and_then(raw::string));
        let is_new = !self.tools.contains_key(id);
        let tool = self.tools.entry(id.to_owned()).or_insert_with(|| Tool {
            word: "Tool".to_owned(),
            title: id.to_owned(),
            changed: None,
            began: now,
            ended: false,
        });
        if let Some(kind) = kind {
            tool.word = tool_word(Some(&kind)).into_owned();
        }
        if let Some(title) = update.title() {
            tool.title = title.into_owned();
        }
        if let Some(changed) = changes(update.raw) {
            tool.changed = Some(changed);
        }
        let ends = update.tool_status.as_ref().is_some_and(|status| status.is_final());
        if ends && !tool.ended {
            tool.ended = true;
            let ok = update.tool_status.as_ref().is_some_and(|status| status.name() == "completed");
            return self.tool_ended(id, ok, now, renderer);
        }
        // A person waits at a terminal; elsewhere the line comes when there is all of it to say.
        if is_new && renderer.surroundings().stderr_is_terminal {
            self.make_room(renderer)?;
            self.tool_head(id, renderer);
            self.aside = Aside::Tool(id.to_owned());
        }
        Ok(())
    }

    fn tool_head(&self, id: &str, renderer: &mut Renderer) {
        let Some(tool) = self.tools.get(id) else { return };
        let word = crate::render::clean(&tool.word);
        renderer.aside_stream(&format!("▸ {word:<WORD_COLUMNS$} "), Tone::Dim);
        renderer.aside_stream(&crate::render::clean(&tool.title), Tone::Plain);
    }

    fn tool_ended(&mut self, id: &str, ok: bool, now: Instant, renderer: &mut Renderer) -> Result<(), Failure> {
        if self.aside != Aside::Tool(id.to_owned()) {
            self.make_room(renderer)?;
            self.tool_head(id, renderer);
        }
        self.aside = Aside::Nothing;
        let Some(tool) = self.tools.get(id) else { return Ok(()) };
        if let Some(Changed { added, removed }) = tool.changed {
            renderer.aside_stream("   ", Tone::Plain);
            renderer.aside_stream(&format!("+{added}"), Tone::Good);
            renderer.aside_stream(" ", Tone::Plain);
            renderer.aside_stream(&format!("−{removed}"), Tone::Bad);
        }
        let took = duration(now.saturating_duration_since(tool.began));
        let (mark, tone) = if ok { ("✓", Tone::Good) } else { ("✗ failed", Tone::Bad) };
        renderer.aside(&[("   ", Tone::Plain), (mark, tone), (&format!(" {took}"), Tone::Dim)]);
        Ok(())
    }

    fn plan(&mut self, update: &Update<'_>, renderer: &mut Renderer) -> Result<(), Failure> {
        let now = plan_entries(update.raw);
        let before = std::mem::replace(&mut self.plan, now);
        let news = plan_news(&before, &self.plan).into_iter().cloned().collect::<Vec<_>>();
        if before.is_empty() && !news.is_empty() {
            self.line(&[("▸ plan", Tone::Dim)], renderer)?;
        }
        for entry in news {
            let (mark, tone) = match entry.status.as_str() {
                "completed" => ("  ✓ ", Tone::Good),
                "in_progress" => ("  ▸ ", Tone::Strong),
                _ => ("  · ", Tone::Dim),
            };
            self.line(&[(mark, tone), (&entry.content, Tone::Plain)], renderer)?;
        }
        Ok(())
    }

    /// Brings the cursor to the beginning of a line of standard error.
    fn make_room(&mut self, renderer: &mut Renderer) -> Result<(), Failure> {
        // Where the answer goes to a file of its own, its lines are not ours to break.
        let shown = renderer.surroundings();
        if self.in_text && (shown.stdout_is_terminal || shown.is_one_place) {
            self.in_text = false;
            renderer.stream("\n", Tone::Plain)?;
        }
        self.end_aside(renderer);
        self.fold_thought(renderer);
        Ok(())
    }

    fn end_aside(&mut self, renderer: &mut Renderer) {
        if std::mem::replace(&mut self.aside, Aside::Nothing) != Aside::Nothing {
            renderer.aside_stream("\n", Tone::Plain);
        }
    }
}

/// Keys, words and what they choose.
pub(super) const CHOICES: [(&str, &str, OptionKind<'static>); 4] = [
    ("y", "once", OptionKind::AllowOnce),
    ("a", "always here", OptionKind::AllowAlways),
    ("n", "no", OptionKind::RejectOnce),
    ("d", "never here", OptionKind::RejectAlways),
];
