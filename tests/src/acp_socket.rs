//! A client that speaks ACP with a daemon over its socket, as an editor's bridge does.

use std::io;
use std::net::Shutdown;
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;
use std::path::Path;

use holdfast_protocol::client::ClientError;
use holdfast_protocol::methods::acp::{Attach, AttachParams};
use serde_json::{Value, json};

use crate::acp_client::Conversation;
use crate::daemon::connect;

/// A client attached to an agent. Dropping it cuts the connection without a word.
#[derive(Debug)]
pub struct AcpSocket {
    stream: UnixStream,
    conversation: Conversation,
}

impl Deref for AcpSocket {
    type Target = Conversation;

    fn deref(&self) -> &Conversation {
        &self.conversation
    }
}

impl DerefMut for AcpSocket {
    fn deref_mut(&mut self) -> &mut Conversation {
        &mut self.conversation
    }
}

impl Drop for AcpSocket {
    fn drop(&mut self) {
        // The daemon may have cut it already.
        let _cut = self.stream.shutdown(Shutdown::Both);
    }
}

impl AcpSocket {
    /// Connects, attaches to an agent and initializes; the client offers nothing.
    ///
    /// # Errors
    /// When nobody listens, the daemon turns us away, or the agent does not introduce itself.
    pub fn attach(socket: &Path, agent: &str) -> Result<Self, ClientError> {
        Self::attach_with(socket, agent, &json!({}))
    }

    /// Like [`attach`](Self::attach), with these client capabilities.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    ///
    /// # Panics
    /// When the name is no alias: a fault of the test.
    pub fn attach_with(socket: &Path, agent: &str, capabilities: &Value) -> Result<Self, ClientError> {
        let failed = |source| ClientError::Io { action: "speak ACP over", source };
        let mut attached = Self::connect(socket, agent)?;
        let params = json!({ "protocolVersion": 1, "clientCapabilities": capabilities });
        let answer = attached.call("initialize", &params).map_err(failed)?;
        match answer["result"]["protocolVersion"] == 1 {
            true => Ok(attached),
            false => Err(failed(io::Error::other(format!("no good introduction: {answer}")))),
        }
    }

    /// Connects and attaches to an agent; nothing of ACP was said yet.
    ///
    /// # Errors
    /// When nobody listens, or the daemon turns us away.
    ///
    /// # Panics
    /// When the name is no alias: a fault of the test.
    pub fn connect(socket: &Path, agent: &str) -> Result<Self, ClientError> {
        let failed = |source| ClientError::Io { action: "speak ACP over", source };
        let (mut client, _) = connect(socket)?;
        let agent = agent.parse().expect("a test's agent has a good name");
        client.call::<Attach>(&AttachParams { agent, client_key: None, session_id: None })?;
        let stream = client.into_parts().stream;
        // Turns last as long as they last.
        stream.set_read_timeout(None).map_err(failed)?;
        let conversation = Conversation::new(stream.try_clone().map_err(failed)?, stream.try_clone().map_err(failed)?);
        Ok(Self { stream, conversation })
    }

    /// Makes a session in `/` and returns its id.
    ///
    /// # Errors
    /// If the daemon refuses, or does not answer.
    pub fn open_session(&mut self) -> io::Result<String> {
        let answer = self.call("session/new", &json!({ "cwd": "/", "mcpServers": [] }))?;
        let session_id = answer["result"]["sessionId"].as_str();
        session_id.map(str::to_owned).ok_or_else(|| io::Error::other(format!("no session: {answer}")))
    }

    /// Calls `session/load`, forgets what came before, and returns the updates that came before the answer and the answer.
    ///
    /// # Errors
    /// As [`Conversation::call`].
    pub fn load(&mut self, session_id: &str) -> io::Result<(Vec<Value>, Value)> {
        self.open_again("session/load", session_id)
    }

    /// Like [`load`](Self::load), with `session/resume`.
    ///
    /// # Errors
    /// As [`Conversation::call`].
    pub fn resume(&mut self, session_id: &str) -> io::Result<(Vec<Value>, Value)> {
        self.open_again("session/resume", session_id)
    }

    fn open_again(&mut self, method: &str, session_id: &str) -> io::Result<(Vec<Value>, Value)> {
        self.received.clear();
        let answer = self.call(method, &json!({ "sessionId": session_id, "cwd": "/", "mcpServers": [] }))?;
        Ok((self.updates(), answer))
    }

    /// Sends a prompt and waits for its answer.
    ///
    /// # Errors
    /// As [`Conversation::call`].
    pub fn turn(&mut self, session_id: &str, text: &str) -> io::Result<Value> {
        let id = self.prompt(session_id, text)?;
        self.wait_for_answer(id)
    }

    /// Waits until the agent's text so far contains `text`.
    ///
    /// # Errors
    /// As [`Conversation::wait_for`].
    pub fn wait_for_text(&mut self, text: &str) -> io::Result<()> {
        self.wait_for(text, |frame| {
            frame["params"]["update"]["content"]["text"].as_str().is_some_and(|seen| seen.contains(text))
        })
        .map(drop)
    }
}
