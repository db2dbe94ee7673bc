//! A command under a lease, from start to end: what it is told on stdin, how long it may take, what it said and how it
//! ended. For work that is not a conversation: hooks, deliveries, scheduled commands.

use std::time::Duration;

use holdfast_protocol::ids::LeaseId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::ChildStdin;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::launch::{LaunchError, LaunchPlan, LeaseLauncher};
use super::leased::ProcessExit;

/// How long output may still be read once the tree has gone: a pipe can be held by what has left the tree.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Bytes read at a time.
const CHUNK_BYTES: usize = 8 * 1024;

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandPlan {
    /// What to start, and for whom.
    pub launch: LaunchPlan,
    /// What it reads on stdin, which ends after that.
    pub input: Vec<u8>,
    /// Bytes of stdout, and of stderr, that are kept: the first half and the last half of them.
    pub output_max_bytes: usize,
    /// How long it may take until its tree is ended.
    pub time_limit: Duration,
}

/// What became of a command. Its whole tree has gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutcome {
    /// The lease it ran under.
    pub lease_id: LeaseId,
    /// How it ended.
    pub end: CommandEnd,
    /// What it wrote to stdout.
    pub stdout: Captured,
    /// What it wrote to stderr.
    pub stderr: Captured,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandEnd {
    /// By itself. Neither code nor signal when its wrapper was killed, so that nobody can tell.
    Exited(ProcessExit),
    /// We ended it: its time was over.
    TimedOut,
    /// We ended it: it was cancelled.
    Cancelled,
}

/// Output in bounds: the beginning and the end of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// The beginning.
    pub head: Vec<u8>,
    /// The end, if that did not fit behind the beginning.
    pub tail: Vec<u8>,
    /// All bytes that were written.
    pub total_bytes: u64,
}

impl Captured {
    /// Returns how many bytes between head and tail were not kept.
    pub fn missing_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub((self.head.len() + self.tail.len()) as u64)
    }

    /// Returns the output as text; where bytes are missing a line says how many.
    pub fn to_text(&self) -> String {
        let head = String::from_utf8_lossy(&self.head);
        match self.missing_bytes() {
            0 => String::from_utf8_lossy(&[self.head.as_slice(), self.tail.as_slice()].concat()).into_owned(),
            missing => format!("{head}\n[… {missing} bytes left out …]\n{}", String::from_utf8_lossy(&self.tail)),
        }
    }

    /// Adds what was written next. The tail may grow to twice its share before it is cut, so that bytes are moved once.
    fn push(&mut self, mut bytes: &[u8], max_bytes: usize) {
        self.total_bytes += bytes.len() as u64;
        let (for_head, for_tail) = (max_bytes - max_bytes / 2, max_bytes / 2);
        let taken = bytes.len().min(for_head - self.head.len().min(for_head));
        self.head.extend_from_slice(&bytes[..taken]);
        bytes = &bytes[taken..];
        self.tail.extend_from_slice(bytes);
        if self.tail.len() > 2 * for_tail {
            self.cut(for_tail);
        }
    }

    fn cut(&mut self, for_tail: usize) {
        let surplus = self.tail.len().saturating_sub(for_tail);
        self.tail.drain(..surplus);
    }
}

impl LeaseLauncher {
    /// Runs a command to its end. `cancel` ends it early when it completes; a future that never does means never.
    ///
    /// When this future is dropped, the command's tree is ended. A tree that outlives its own time limit by more than the
    /// grace period and the kill that follows it is an error, and its lease stays open.
    ///
    /// # Errors
    /// [`LaunchError`]: it could not be started, or not be ended.
    pub async fn run(
        &self,
        plan: CommandPlan,
        cancel: impl Future<Output = ()> + Send,
    ) -> Result<CommandOutcome, LaunchError> {
        let leased = self.launch(plan.launch).await?;
        let lease_id = leased.lease_id;
        let guard = EndsWhenDropped { launcher: self.clone(), lease_id: Some(lease_id) };
        let process = leased.process;
        let input = tokio::spawn(feed(process.stdin, plan.input));
        let stdout = Capture::start(process.stdout, plan.output_max_bytes);
        let stderr = Capture::start(process.stderr, plan.output_max_bytes);
        let mut exit = process.exit;
        let end = tokio::select! {
            _tree = exit.tree_ended() => CommandEnd::Exited(exit.adapter_ended().await.unwrap_or_default()),
            () = tokio::time::sleep(plan.time_limit) => CommandEnd::TimedOut,
            () = cancel => CommandEnd::Cancelled,
        };
        let reason = match end {
            // The lease ends as its tree has.
            CommandEnd::Exited(_) => None,
            CommandEnd::TimedOut => Some("its time was over"),
            CommandEnd::Cancelled => Some("it was cancelled"),
        };
        let closed = match reason {
            Some(reason) => self.leases().close(lease_id, Some(reason.to_owned())).await.map(drop),
            None => Ok(()),
        };
        guard.disarm();
        input.abort();
        let outcome = CommandOutcome { lease_id, end, stdout: stdout.finish().await, stderr: stderr.finish().await };
        closed?;
        Ok(outcome)
    }
}

/// Ends the command's tree when nobody waits for it any more.
struct EndsWhenDropped {
    launcher: LeaseLauncher,
    lease_id: Option<LeaseId>,
}

impl EndsWhenDropped {
    /// Lets go of it.
    fn disarm(mut self) {
        self.lease_id = None;
    }
}

impl Drop for EndsWhenDropped {
    fn drop(&mut self) {
        // Without a runtime the daemon is ending, and the wrapper ends the tree itself.
        if let (Some(lease_id), Ok(runtime)) = (self.lease_id.take(), Handle::try_current()) {
            let launcher = self.launcher.clone();
            runtime.spawn(async move { launcher.close(lease_id, "nobody waits for it any more").await });
        }
    }
}

/// A program that does not read its input to the end is free to.
async fn feed(mut stdin: ChildStdin, input: Vec<u8>) {
    if let Err(error) = stdin.write_all(&input).await {
        tracing::debug!(%error, "a command left some of its input unread");
    }
}

/// Reads one stream to its end, in bounds.
struct Capture {
    reading: JoinHandle<()>,
    captured: tokio::sync::watch::Receiver<Captured>,
    for_tail: usize,
}

impl Capture {
    fn start(mut stream: impl AsyncRead + Send + Unpin + 'static, max_bytes: usize) -> Self {
        let (sender, captured) = tokio::sync::watch::channel(Captured::default());
        let reading = tokio::spawn(async move {
            let mut chunk = vec![0; CHUNK_BYTES];
            loop {
                match stream.read(&mut chunk).await {
                    Ok(0) => return,
                    Ok(count) => sender.send_modify(|captured| captured.push(&chunk[..count], max_bytes)),
                    Err(error) => return tracing::debug!(%error, "failed to read a command's output to its end"),
                }
            }
        });
        Self { reading, captured, for_tail: max_bytes / 2 }
    }

    async fn finish(self) -> Captured {
        let abort = self.reading.abort_handle();
        if tokio::time::timeout(LAST_WORDS, self.reading).await.is_err() {
            abort.abort();
        }
        let mut captured = self.captured.borrow().clone();
        captured.cut(self.for_tail);
        captured
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn captured(pieces: &[Vec<u8>], max_bytes: usize) -> Captured {
        let mut captured = Captured::default();
        pieces.iter().for_each(|piece| captured.push(piece, max_bytes));
        captured.cut(max_bytes / 2);
        captured
    }

    proptest! {
        #[test]
        fn beginning_and_end_are_kept_in_bounds(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..20),
            max_bytes in 0_usize..200,
        ) {
            let all: Vec<u8> = pieces.concat();
            let kept = captured(&pieces, max_bytes);
            prop_assert!(kept.head.len() + kept.tail.len() <= max_bytes);
            prop_assert_eq!(kept.total_bytes, all.len() as u64);
            prop_assert!(all.starts_with(&kept.head) && all.ends_with(&kept.tail));
            prop_assert_eq!(kept.missing_bytes(), (all.len() as u64).saturating_sub(max_bytes as u64));
        }
    }

    #[test]
    fn text_says_what_is_missing() {
        assert_eq!(captured(&[b"hello world".to_vec()], 100).to_text(), "hello world");
        assert_eq!(captured(&[b"hello world".to_vec()], 4).to_text(), "he\n[… 7 bytes left out …]\nld");
    }
}
