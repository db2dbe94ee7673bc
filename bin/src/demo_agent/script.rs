//! What each prompt makes the agent do, as a list of steps: no I/O and no clock.

use std::collections::VecDeque;

use serde_json::json;

/// The pause between two pieces of text: short enough not to bore, long enough to see the streaming.
const PIECE_MS: u64 = 20;

/// The pause between the pieces of `slow` and `crash after`. Clients may count on a piece at least this often.
const SLOW_PIECE_MS: u64 = 100;

/// The longest `slow` and `crash after`, in seconds: nobody waits longer for a demonstration.
const SECONDS_MAX: u64 = 24 * 3600;

/// The exit status of a crash that was asked for. Any but 0 would do; this one is rare elsewhere.
pub(super) const CRASH_EXIT_CODE: u8 = 23;

/// What is offered to clients as slash commands, and in answers as hints.
pub(super) const COMMANDS: [(&str, &str); 9] = [
    ("hello", "Answer shortly, in several chunks"),
    ("slow", "Stream for N seconds: `slow 5`"),
    ("tool", "Run a tool call that shows a diff"),
    ("permission", "Ask for permission before a tool call"),
    ("plan", "Send a plan and work through it"),
    ("recall", "List what you said in this session"),
    ("crash", "Exit in the middle of a turn: `crash` or `crash after 3` (seconds)"),
    ("fail", "Answer the prompt with an error"),
    ("help", "List these words"),
];

/// One thing to do, some time after the one before.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub(super) after_ms: u64,
    pub(super) action: Action,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    /// Sends an update.
    Update(serde_json::Value),
    /// Sends a piece of text and itself again, until `count` of them are sent.
    Count { sent: u64, count: u64 },
    /// Asks for permission for the tool call; the answer decides how the turn goes on.
    AskPermission { tool_call_id: String },
    /// Answers the prompt with an error.
    Fail(String),
    /// Ends the process.
    Crash,
}

/// What a script may refer to.
pub(super) struct Scene<'a> {
    /// The session's directory.
    pub(super) cwd: &'a str,
    /// Unique in the session.
    pub(super) tool_call_id: &'a str,
    /// What the user said before in this session.
    pub(super) earlier_prompts: &'a [String],
}

/// Returns the steps of a turn. `words` is the text of the prompt's last text block: what clients put before it, such
/// as files or an earlier transcript, is context.
pub(super) fn steps(words: &str, scene: &Scene<'_>) -> VecDeque<Step> {
    let lower = words.trim().trim_start_matches('/').to_lowercase();
    let mut parts = lower.split_whitespace();
    let command = parts.next().unwrap_or_default().trim_end_matches(['!', '.', ',', '?']);
    let number = parts.find_map(|part| part.parse::<u64>().ok()).map(|seconds| seconds.min(SECONDS_MAX));
    match command {
        "hello" | "hi" => say(&[
            "Hello! ",
            "I'm the demonstration agent. ",
            "Try `holdfast run demo \"tool\"` or `\"permission\"`; ",
            "`\"help\"` lists the rest.",
        ]),
        "help" => {
            let lines: Vec<String> = COMMANDS.iter().map(|(name, what)| format!("- `{name}`: {what}\n")).collect();
            say(&lines)
        }
        "slow" => [Step {
            after_ms: 0,
            action: Action::Count { sent: 0, count: number.unwrap_or(5) * (1000 / SLOW_PIECE_MS) },
        }]
        .into(),
        "tool" => tool(scene),
        "permission" => permission(scene),
        "plan" => plan(),
        "recall" => recall(scene.earlier_prompts),
        "crash" => crash(number, scene),
        "fail" => {
            let mut steps = say(&["This prompt will fail now."]);
            steps.push_back(Step { after_ms: PIECE_MS, action: Action::Fail("failed, as you asked".to_owned()) });
            steps
        }
        _ => echo(words),
    }
}

/// Returns the steps after a permission question was answered. `option` is the chosen option, `None` if the question
/// was cancelled or could not be answered.
pub(super) fn after_permission(option: Option<&str>, tool_call_id: &str, cwd: &str) -> VecDeque<Step> {
    match option {
        Some(option) if option.starts_with("allow") => {
            let mut steps = work(tool_call_id, cwd);
            let text = format!("You chose `{option}`, so I did it. (Not really: I never touch your files.)");
            steps.extend(say(&[text]));
            steps
        }
        other => {
            let text = match other {
                Some(option) => format!("You chose `{option}`, so I left it."),
                None => "The question was cancelled, so I left it.".to_owned(),
            };
            let failed = json!({ "sessionUpdate": "tool_call_update", "toolCallId": tool_call_id, "status": "failed" });
            let mut steps: VecDeque<Step> = [update(PIECE_MS, failed)].into();
            steps.extend(say(&[text]));
            steps
        }
    }
}

/// Returns the piece of text that a [`Action::Count`] sends, and the step that follows it.
pub(super) fn count_on(sent: u64, count: u64) -> (Option<serde_json::Value>, Option<Step>) {
    if sent >= count {
        return (None, None);
    }
    let next = Step { after_ms: SLOW_PIECE_MS, action: Action::Count { sent: sent + 1, count } };
    (Some(chunk(&format!("{} ", sent + 1))), Some(next))
}

/// Returns the update that streams a piece of the agent's text.
pub(super) fn chunk(text: &str) -> serde_json::Value {
    json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } })
}

fn update(after_ms: u64, update: serde_json::Value) -> Step {
    Step { after_ms, action: Action::Update(update) }
}

fn say(pieces: &[impl AsRef<str>]) -> VecDeque<Step> {
    pieces.iter().map(|piece| update(PIECE_MS, chunk(piece.as_ref()))).collect()
}

fn think(text: &str) -> Step {
    update(PIECE_MS, json!({ "sessionUpdate": "agent_thought_chunk", "content": { "type": "text", "text": text } }))
}

fn greeting_path(cwd: &str) -> String {
    format!("{}/greeting.txt", cwd.trim_end_matches('/'))
}

fn tool_call(scene: &Scene<'_>) -> Step {
    let path = greeting_path(scene.cwd);
    update(
        PIECE_MS,
        json!({
            "sessionUpdate": "tool_call",
            "toolCallId": scene.tool_call_id,
            "title": "Write greeting.txt",
            "kind": "edit",
            "status": "pending",
            "locations": [{ "path": path }],
            "rawInput": { "path": path, "text": "Hello, world!\n" },
        }),
    )
}

fn in_progress(tool_call_id: &str) -> Step {
    update(
        PIECE_MS,
        json!({ "sessionUpdate": "tool_call_update", "toolCallId": tool_call_id, "status": "in_progress" }),
    )
}

/// From running to done, with a diff.
fn work(tool_call_id: &str, cwd: &str) -> VecDeque<Step> {
    let diff = json!({
        "type": "diff",
        "path": greeting_path(cwd),
        "oldText": "Hello\n",
        "newText": "Hello, world!\n",
    });
    let note = json!({ "type": "content", "content": { "type": "text", "text": "1 line changed" } });
    [
        in_progress(tool_call_id),
        update(
            SLOW_PIECE_MS,
            json!({
                "sessionUpdate": "tool_call_update",
                "toolCallId": tool_call_id,
                "status": "completed",
                "content": [diff, note],
                "rawOutput": { "changed_lines": 1 },
            }),
        ),
    ]
    .into()
}

fn tool(scene: &Scene<'_>) -> VecDeque<Step> {
    let mut steps: VecDeque<Step> = [think("A greeting should greet somebody.")].into();
    steps.extend(say(&["I'll improve the greeting. "]));
    steps.push_back(tool_call(scene));
    steps.extend(work(scene.tool_call_id, scene.cwd));
    steps.extend(say(&["Done: ", "the greeting now greets the world. ", "(Not really: I never touch your files.)"]));
    steps
}

fn permission(scene: &Scene<'_>) -> VecDeque<Step> {
    let mut steps = say(&["I'd like to change a file. "]);
    steps.push_back(tool_call(scene));
    let action = Action::AskPermission { tool_call_id: scene.tool_call_id.to_owned() };
    steps.push_back(Step { after_ms: PIECE_MS, action });
    steps
}

fn plan() -> VecDeque<Step> {
    const ENTRIES: [(&str, &str); 3] =
        [("Look around", "high"), ("Do the work", "medium"), ("Check the result", "low")];
    let mut steps = say(&["Here is my plan. "]);
    for done in 0..=ENTRIES.len() {
        let entries: Vec<serde_json::Value> = ENTRIES
            .iter()
            .enumerate()
            .map(|(index, (content, priority))| {
                let status = match index.cmp(&done) {
                    std::cmp::Ordering::Less => "completed",
                    std::cmp::Ordering::Equal => "in_progress",
                    std::cmp::Ordering::Greater => "pending",
                };
                json!({ "content": content, "priority": priority, "status": status })
            })
            .collect();
        steps.push_back(update(SLOW_PIECE_MS, json!({ "sessionUpdate": "plan", "entries": entries })));
    }
    steps.extend(say(&["All ", "done."]));
    steps
}

fn recall(earlier_prompts: &[String]) -> VecDeque<Step> {
    if earlier_prompts.is_empty() {
        return say(&["This is the first thing you say in this session."]);
    }
    let mut pieces = vec![format!("You said {} things before:\n", earlier_prompts.len())];
    pieces.extend(earlier_prompts.iter().enumerate().map(|(index, text)| format!("{}. {text}\n", index + 1)));
    say(&pieces)
}

fn crash(seconds: Option<u64>, scene: &Scene<'_>) -> VecDeque<Step> {
    let mut steps = say(&["I'll ", "crash ", "soon. "]);
    if let Some(seconds) = seconds {
        let count = seconds * (1000 / SLOW_PIECE_MS);
        steps.push_back(Step { after_ms: 0, action: Action::Count { sent: 0, count } });
    }
    steps.push_back(tool_call(scene));
    steps.push_back(in_progress(scene.tool_call_id));
    steps.push_back(Step { after_ms: PIECE_MS, action: Action::Crash });
    steps
}

fn echo(words: &str) -> VecDeque<Step> {
    let count = words.split_whitespace().count();
    let mut pieces = vec![format!("You said ({count} words): ")];
    // In words, as a model would stream them.
    pieces.extend(words.split_inclusive(char::is_whitespace).map(str::to_owned));
    pieces.push("\nI'm only a demonstration: `help` lists what I can do.".to_owned());
    let mut steps: VecDeque<Step> = say(&pieces);
    // A long text would take minutes at the usual pace.
    if count > 100 {
        for step in &mut steps {
            step.after_ms = 0;
        }
    }
    steps
}
