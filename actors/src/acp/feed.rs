//! One client's view of one session: a cursor over the stored history that becomes live when it has caught up.
//!
//! Updates come from the live session while the client keeps up, and from the store when it does not, so a slow client
//! costs no memory and loses nothing. Answers and requests that must not overtake an update wait for its position.

use std::collections::VecDeque;
use std::sync::Arc;

use holdfast_protocol::acp::capabilities::ClientCapabilities;
use holdfast_protocol::acp::method::SESSION_UPDATE;
use holdfast_protocol::acp::update::UpdateKind;
use holdfast_protocol::jsonrpc;
use holdfast_stores::acp_sessions::{AcpSessionRowId, AcpUpdate};
use serde_json::value::RawValue;
use tokio::sync::{broadcast, mpsc};

use crate::acp_sessions::AcpSessionsHandle;
use crate::channel::{ChannelClosed, FrameSender};

/// Updates read from the store at once.
const PAGE: i64 = 256;

/// What a feed is told beside updates.
pub enum FeedCommand {
    /// The client made this update itself (its own prompt) and is not sent it.
    Skip {
        /// Its position.
        seq: i64,
    },
    /// Send a frame once every update up to a position was sent.
    After {
        /// The position.
        seq: i64,
        /// A whole line.
        frame: Vec<u8>,
    },
}

/// Where a feed begins and what it reads.
pub struct FeedStart {
    /// The session in the store.
    pub row_id: AcpSessionRowId,
    /// The position of the first update to send.
    pub next_seq: i64,
    /// Updates that must not be replayed (live-only kinds) end here: later ones are sent as they come.
    pub replay_through: i64,
    /// Updates as they are stored.
    pub live: broadcast::Receiver<Arc<AcpUpdate>>,
    /// What else is to be sent.
    pub commands: mpsc::UnboundedReceiver<FeedCommand>,
}

/// Runs a feed until the client or the session has gone.
pub async fn run(start: FeedStart, store: AcpSessionsHandle, capabilities: ClientCapabilities, out: FrameSender) {
    let FeedStart { row_id, next_seq, replay_through, live, commands } = start;
    let feed =
        Feed { row_id, next_seq, replay_through, store, capabilities, out, skips: VecDeque::new(), frames: Vec::new() };
    if let Err(Stopped::StoreFailed(error)) = feed.run(live, commands).await {
        tracing::error!(%error, "a client's feed ended: the session's history can't be read");
    }
}

struct Feed {
    row_id: AcpSessionRowId,
    next_seq: i64,
    replay_through: i64,
    store: AcpSessionsHandle,
    capabilities: ClientCapabilities,
    out: FrameSender,
    skips: VecDeque<i64>,
    frames: Vec<(i64, Vec<u8>)>,
}

enum Stopped {
    ClientGone,
    StoreFailed(crate::acp_sessions::AcpSessionsError),
}

impl From<ChannelClosed> for Stopped {
    fn from(_: ChannelClosed) -> Self {
        Self::ClientGone
    }
}

impl Feed {
    async fn run(
        mut self,
        mut live: broadcast::Receiver<Arc<AcpUpdate>>,
        mut commands: mpsc::UnboundedReceiver<FeedCommand>,
    ) -> Result<(), Stopped> {
        self.catch_up(self.replay_through, &mut commands).await?;
        loop {
            self.flush_frames().await?;
            tokio::select! {
                // Commands first: a skip must be known before its update comes.
                biased;
                command = commands.recv() => match command {
                    Some(command) => self.note(command),
                    None => return Ok(()),
                },
                update = live.recv() => match update {
                    Ok(update) => {
                        self.take_commands(&mut commands);
                        if update.seq > self.next_seq {
                            self.catch_up(update.seq - 1, &mut commands).await?;
                        }
                        if update.seq == self.next_seq {
                            self.send(&update).await?;
                        }
                    }
                    Err(broadcast::error::RecvError::Lagged(_)) => self.catch_up(i64::MAX, &mut commands).await?,
                    Err(broadcast::error::RecvError::Closed) => {
                        // The session ended; what it left for the client still goes out.
                        self.take_commands(&mut commands);
                        self.catch_up(i64::MAX, &mut commands).await?;
                        return self.flush_frames().await;
                    }
                },
            }
        }
    }

    /// Sends stored updates up to `through`, or as far as there are any.
    async fn catch_up(
        &mut self,
        through: i64,
        commands: &mut mpsc::UnboundedReceiver<FeedCommand>,
    ) -> Result<(), Stopped> {
        while self.next_seq <= through {
            self.take_commands(commands);
            self.flush_frames().await?;
            let page = self.store.updates_after(self.row_id, self.next_seq - 1, PAGE).await;
            let page = page.map_err(Stopped::StoreFailed)?;
            if page.is_empty() {
                return Ok(());
            }
            for update in &page {
                if update.seq <= through {
                    self.flush_frames().await?;
                    self.send(update).await?;
                }
            }
        }
        Ok(())
    }

    async fn send(&mut self, update: &AcpUpdate) -> Result<(), Stopped> {
        self.next_seq = update.seq + 1;
        if let Some(at) = self.skips.iter().position(|seq| *seq == update.seq) {
            self.skips.remove(at);
            return Ok(());
        }
        if let Some(frame) = self.frame(update) {
            self.out.push(frame).await?;
        }
        self.flush_frames().await
    }

    /// Makes the frame of an update, unless this client is not to have it.
    fn frame(&self, update: &AcpUpdate) -> Option<Vec<u8>> {
        let replayed = update.seq <= self.replay_through;
        let method = match &update.method {
            // Only updates are history; what else an agent tells is for whoever is there.
            Some(_) if replayed => return None,
            Some(method) => method.as_str(),
            None => {
                let kind = UpdateKind::from_name(update.kind.as_str().into());
                if (replayed && kind == UpdateKind::Notice) || !self.capabilities.takes(&kind) {
                    return None;
                }
                SESSION_UPDATE
            }
        };
        let params: Option<&RawValue> = match update.params.as_str() {
            "" => None,
            // What was stored was JSON when it was stored; a damaged row is caught by the store.
            params => Some(serde_json::from_str(params).ok()?),
        };
        let mut frame = Vec::with_capacity(update.params.len() + 64);
        jsonrpc::write_raw_notification(&mut frame, method, params);
        Some(frame)
    }

    fn take_commands(&mut self, commands: &mut mpsc::UnboundedReceiver<FeedCommand>) {
        while let Ok(command) = commands.try_recv() {
            self.note(command);
        }
    }

    fn note(&mut self, command: FeedCommand) {
        match command {
            FeedCommand::Skip { seq } => self.skips.push_back(seq),
            FeedCommand::After { seq, frame } => self.frames.push((seq, frame)),
        }
    }

    async fn flush_frames(&mut self) -> Result<(), Stopped> {
        // In the order they were given among those that are due; few wait at a time.
        while let Some(at) = self.frames.iter().position(|(seq, _)| *seq < self.next_seq) {
            let (_, frame) = self.frames.remove(at);
            self.out.push(frame).await?;
        }
        Ok(())
    }
}
