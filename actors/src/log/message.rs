//! What the Log can be asked or told.

use std::sync::Arc;

use holdfast_stores::log::{LogFilter, LogLine, LogPage, LogQuery};
use tokio::sync::{mpsc, oneshot};

use super::config::LogsConfig;
use super::error::LogsError;
use super::levels::Levels;
use crate::reply::Reply;

/// What the Log can be asked or told. Requests carry a `reply`.
pub enum LogMessage {
    /// Returns a page of stored lines.
    Query {
        /// Which lines.
        query: LogQuery,
        /// The page.
        reply: Reply<Result<LogPage, LogsError>>,
    },
    /// Follows the log from now on.
    Subscribe {
        /// Which lines.
        filter: LogFilter,
        /// How many items may wait for the subscriber.
        capacity: usize,
        /// Where the items arrive. Dropping it ends the subscription.
        reply: Reply<mpsc::Receiver<LogItem>>,
    },
    /// Changes what is logged, until the next reload or restart.
    SetLevels {
        /// The new levels.
        levels: Levels,
        /// Answered once they apply.
        reply: Reply<()>,
    },
    /// Applies a changed `[logs]` section.
    Configure {
        /// The section.
        config: LogsConfig,
        /// Answered once it applies.
        reply: Reply<Result<(), LogsError>>,
    },
    /// Returns how the Log is doing.
    Status {
        /// The answer.
        reply: Reply<LogStatus>,
    },
    /// Writes what has been emitted so far.
    Flush {
        /// Answered once it is in the file.
        reply: Reply<()>,
    },
    /// Events wait, or time has passed. Sent by the Log's own waker, one at a time.
    Wake {
        /// Dropped when the waker may look again.
        done: oneshot::Sender<()>,
    },
}

/// What a subscriber gets.
#[derive(Debug, Clone, PartialEq)]
pub enum LogItem {
    /// A line.
    Line(Arc<LogLine>),
    /// The subscriber was too slow: lines from `from_seq` on are missing here and can be read from the store.
    Lagged {
        /// The first line missed.
        from_seq: u64,
    },
}

/// How the Log is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogStatus {
    /// `rolling` or `none`.
    pub mode: &'static str,
    /// What is logged, as configuration text.
    pub levels: String,
    /// Lines written or passed to subscribers since the Log started.
    pub lines: u64,
    /// Events folded into the repeat count of another line.
    pub folded: u64,
    /// Events lost because the queue was full.
    pub dropped: u64,
    /// Lines lost because the disk refused.
    pub lost: u64,
    /// Why the last write failed, until one succeeds.
    pub failing: Option<String>,
    /// The number of the next line.
    pub next_seq: u64,
    /// The size of all segments, in bytes.
    pub size_bytes: u64,
    /// Subscriptions.
    pub subscribers: usize,
}
