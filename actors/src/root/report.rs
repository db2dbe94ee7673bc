//! What a reload answers, and what can be wrong with a root.

use std::time::Duration;

use holdfast_protocol::error::{ErrorKind, WireError};

use crate::address::Down;
use crate::supervisor::{ChildOutcome, Observed};

/// What a reload did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadReport {
    /// The generation of the tree that runs now.
    pub generation: u64,
    /// The revision of the configuration in force.
    pub config_revision: String,
    /// How each surface came out of it.
    pub surfaces: Vec<SurfaceReport>,
    /// How long it took in all.
    pub took: Duration,
}

/// How one surface came out of a start or a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurfaceReport {
    /// Its name.
    pub name: &'static str,
    /// What became of it.
    pub outcome: SurfaceOutcome,
    /// The generation it runs.
    pub generation: u64,
    /// From the beginning of its end to the end of its start; zero for what was left alone.
    pub took: Duration,
}

/// What a reload did to one surface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SurfaceOutcome {
    /// It runs the new generation.
    Restarted,
    /// It lives above the Tree and was left alone.
    Unchanged,
    /// It could not start and is down.
    Failed(Down),
}

impl SurfaceReport {
    pub(super) fn of_child(outcome: ChildOutcome) -> Self {
        Self {
            name: outcome.name,
            outcome: outcome.down.map_or(SurfaceOutcome::Restarted, SurfaceOutcome::Failed),
            generation: outcome.generation,
            took: outcome.took,
        }
    }

    pub(super) fn unchanged(observed: &Observed) -> Self {
        Self {
            name: observed.name,
            outcome: SurfaceOutcome::Unchanged,
            generation: observed.stats.generation(),
            took: Duration::ZERO,
        }
    }
}

/// Why a reload changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// The configuration is not valid. What ran goes on.
    #[error("{0}")]
    Config(WireError),
    /// A changed listen address could not be bound. What ran goes on.
    #[error("the {name} listener can't move: {error}")]
    Listener {
        /// Which one.
        name: &'static str,
        /// Why.
        error: WireError,
    },
    /// The root is stopping.
    #[error("the daemon is stopping")]
    Stopping,
    /// The reload itself failed; the root ends.
    #[error("the reload failed and the daemon ends: {0}")]
    Failed(String),
}

impl ReloadError {
    /// Returns the stable kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Config(error) | Self::Listener { error, .. } => error.kind,
            Self::Stopping => ErrorKind::Stopping,
            Self::Failed(_) => ErrorKind::Internal,
        }
    }
}

impl From<ReloadError> for WireError {
    fn from(error: ReloadError) -> Self {
        let kind = error.kind();
        let message = error.to_string();
        match error {
            ReloadError::Config(error) => error,
            ReloadError::Listener { error, .. } => Self { message, ..error },
            ReloadError::Stopping => Self::new(kind, message),
            ReloadError::Failed(_) => Self::new(kind, message).with_remedy("see the log for the cause"),
        }
    }
}

/// Why a root did not start. What had started was ended again.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// The configuration can't be used at all.
    #[error("{0}")]
    Config(WireError),
    /// A listener that the daemon can't do without could not be bound.
    #[error("the {name} listener can't start: {error}")]
    Listener {
        /// Which one.
        name: &'static str,
        /// Why.
        error: WireError,
    },
    /// A supervisor could not run.
    #[error("failed to start the {supervisor} supervisor: {reason}")]
    Supervisor {
        /// Which one.
        supervisor: &'static str,
        /// Why.
        reason: String,
    },
}

impl RootError {
    /// Returns the stable kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Config(error) | Self::Listener { error, .. } => error.kind,
            Self::Supervisor { .. } => ErrorKind::Internal,
        }
    }

    /// Returns what to do about it, where that is known.
    pub fn remedy(&self) -> Option<&str> {
        match self {
            Self::Config(error) | Self::Listener { error, .. } => error.remedy.as_deref(),
            Self::Supervisor { .. } => None,
        }
    }
}

/// The root ended otherwise than by an orderly shutdown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the actor tree ended unexpectedly: {reason}")]
pub struct RootFailed {
    /// Why.
    pub reason: String,
}
