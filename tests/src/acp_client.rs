//! A plain client for agents, on stdio or on a socket: sends what it is told, keeps what comes, judges nothing.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long anything may take before a test gives up. Generous: it only ever passes when something is broken.
pub const LIMIT: Duration = Duration::from_secs(30);

/// One agent process and the conversation with it. Ends with the process killed, its own children excluded.
#[derive(Debug)]
pub struct AcpClient {
    child: Child,
    conversation: Conversation,
}

impl Deref for AcpClient {
    type Target = Conversation;

    fn deref(&self) -> &Conversation {
        &self.conversation
    }
}

impl DerefMut for AcpClient {
    fn deref_mut(&mut self) -> &mut Conversation {
        &mut self.conversation
    }
}

/// What is said to an agent and what it says.
pub struct Conversation {
    input: Option<Box<dyn Write + Send>>,
    lines: Receiver<String>,
    next_id: u64,
    /// All lines received so far, byte for byte but for invalid UTF-8.
    pub received: Vec<String>,
}

impl fmt::Debug for Conversation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Conversation").field("received", &self.received).finish_non_exhaustive()
    }
}

impl AcpClient {
    /// Starts the agent. Its stderr goes to the test's.
    ///
    /// # Errors
    /// If the process can't be started.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or_else(|| io::Error::other("the agent has no stdin"))?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("the agent has no stdout"))?;
        Ok(Self { child, conversation: Conversation::new(input, output) })
    }

    /// Returns the agent's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the agent to end.
    ///
    /// # Errors
    /// If it lives on for [`LIMIT`].
    pub fn wait_for_exit(&mut self) -> io::Result<ExitStatus> {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > end {
                return Err(io::Error::other("the agent did not end in time"));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Says whether the agent runs.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn is_running(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }
}

impl Conversation {
    /// Begins a conversation; what comes is read in a thread of its own.
    pub fn new(input: impl Write + Send + 'static, output: impl Read + Send + 'static) -> Self {
        let (sender, lines) = channel();
        thread::spawn(move || read_lines(output, |line| sender.send(line).is_ok()));
        Self { input: Some(Box::new(input)), lines, next_id: 0, received: Vec::new() }
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// If the agent no longer reads.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let input = self.input.as_mut().ok_or_else(|| io::Error::other("the agent's stdin is closed"))?;
        input.write_all(bytes)?;
        input.flush()
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// If the agent no longer reads.
    pub fn send(&mut self, frame: &Value) -> io::Result<()> {
        self.send_bytes(format!("{frame}\n").as_bytes())
    }

    /// Sends a request and returns its id.
    ///
    /// # Errors
    /// If the agent no longer reads.
    pub fn request(&mut self, method: &str, params: &Value) -> io::Result<u64> {
        self.next_id += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params }))?;
        Ok(self.next_id)
    }

    /// Sends a notification.
    ///
    /// # Errors
    /// If the agent no longer reads.
    pub fn notify(&mut self, method: &str, params: &Value) -> io::Result<()> {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }))
    }

    /// Waits for the next line.
    ///
    /// # Errors
    /// After [`LIMIT`], or if the agent's output ends.
    pub fn next_line(&mut self) -> io::Result<String> {
        self.lines.recv_timeout(LIMIT).map_err(io::Error::other)
    }

    /// Waits for a frame that `wanted` accepts, among those received before too, and returns it.
    ///
    /// # Errors
    /// As [`wait_for_line`](Self::wait_for_line).
    pub fn wait_for(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> io::Result<Value> {
        let frame_of = |line: &str| serde_json::from_str::<Value>(line).ok();
        let line = self.wait_for_line(what, |line| frame_of(line).is_some_and(|frame| wanted(&frame)))?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits for a line that `wanted` accepts, among those received before too, and returns it.
    ///
    /// # Errors
    /// After [`LIMIT`], or if the agent's output ends, with all that was received.
    pub fn wait_for_line(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> io::Result<String> {
        let end = Instant::now() + LIMIT;
        let mut looked_at = 0;
        loop {
            if let Some(line) = self.received[looked_at..].iter().find(|line| wanted(line)) {
                return Ok(line.clone());
            }
            looked_at = self.received.len();
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => self.received.push(line),
                Err(reason) => {
                    let reason = match reason {
                        RecvTimeoutError::Timeout => "did not come in time",
                        RecvTimeoutError::Disconnected => "did not come before the agent's output ended",
                    };
                    return Err(io::Error::other(format!("{what} {reason}; received: {:#?}", self.received)));
                }
            }
        }
    }

    /// Waits for the answer to a request of ours and returns the whole frame.
    ///
    /// # Errors
    /// As [`wait_for`](Self::wait_for).
    pub fn wait_for_answer(&mut self, id: u64) -> io::Result<Value> {
        self.wait_for(&format!("the answer to {id}"), |frame| frame["id"] == id && frame.get("method").is_none())
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// As [`wait_for`](Self::wait_for), or if the agent no longer reads.
    pub fn call(&mut self, method: &str, params: &Value) -> io::Result<Value> {
        let id = self.request(method, params)?;
        self.wait_for_answer(id)
    }

    /// Sends a prompt of one text block and returns the request's id.
    ///
    /// # Errors
    /// If the agent no longer reads.
    pub fn prompt(&mut self, session_id: &str, text: &str) -> io::Result<u64> {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.request("session/prompt", &json!({ "sessionId": session_id, "prompt": prompt }))
    }

    /// Initializes and makes a session in `/`; returns its id.
    ///
    /// # Errors
    /// As [`call`](Self::call), or if the agent answers with an error.
    pub fn new_session(&mut self) -> io::Result<String> {
        self.call("initialize", &json!({ "protocolVersion": 1, "clientCapabilities": {} }))?;
        let answer = self.call("session/new", &json!({ "cwd": "/", "mcpServers": [] }))?;
        let session_id = answer["result"]["sessionId"].as_str();
        session_id.map(str::to_owned).ok_or_else(|| io::Error::other(format!("no session: {answer}")))
    }

    /// Returns the `update` objects received so far, in order.
    pub fn updates(&self) -> Vec<Value> {
        let frames = self.received.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        frames.filter(|frame| frame["method"] == "session/update").map(|mut f| f["params"]["update"].take()).collect()
    }

    /// Returns the agent's text received so far.
    pub fn text(&self) -> String {
        let chunks = self.updates().into_iter().filter(|update| update["sessionUpdate"] == "agent_message_chunk");
        chunks.filter_map(|update| update["content"]["text"].as_str().map(str::to_owned)).collect()
    }

    /// Closes the agent's stdin.
    pub fn close_input(&mut self) {
        self.input = None;
    }
}

impl Drop for AcpClient {
    fn drop(&mut self) {
        // It may have ended by itself; then both fail, or have nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(output: impl Read, mut hand_over: impl FnMut(String) -> bool) {
    let mut output = BufReader::new(output);
    loop {
        let mut line = Vec::new();
        match output.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if !hand_over(String::from_utf8_lossy(line.trim_ascii_end()).into_owned()) {
            return;
        }
    }
}
