//! Signals as wishes. None that the documentation names ends the process by its default action.
//!
//! | signal | effect |
//! | --- | --- |
//! | TERM, INT | an orderly end; a second one no longer waits for turns in flight; a third ends at once |
//! | HUP | reload |
//! | USR1 | the log tells how every surface stands |
//! | USR2, PIPE | none |

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// An end.
    Stop,
    /// A reload.
    Reload,
    /// A look at the surfaces.
    Tell,
}

/// The signals of this process.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    user_1: Signal,
    /// Kept so that it stays without effect. PIPE is ignored by the standard library already.
    _user_2: Signal,
}

impl Signals {
    /// Takes the signals over. Needs a runtime.
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            user_1: signal(SignalKind::user_defined1())?,
            _user_2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next wish. Equal signals that arrive together may be one wish.
    pub(super) async fn next(&mut self) -> Wish {
        tokio::select! {
            Some(()) = self.terminate.recv() => Wish::Stop,
            Some(()) = self.interrupt.recv() => Wish::Stop,
            Some(()) = self.hang_up.recv() => Wish::Reload,
            Some(()) = self.user_1.recv() => Wish::Tell,
            // The streams end with the runtime only.
            else => std::future::pending().await,
        }
    }
}
