//! Why a question about the configuration brought no answer.

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_stores::config::SectionError;

use crate::address::{CallError, Down};

/// Why a question about the configuration brought no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigCallError {
    /// Config itself didn't answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The section can't be used.
    #[error(transparent)]
    Section(#[from] SectionError),
}

impl From<ConfigCallError> for WireError {
    fn from(error: ConfigCallError) -> Self {
        match error {
            ConfigCallError::Call(error) => error.into(),
            ConfigCallError::Section(error) => WireError::from(&error),
        }
    }
}

impl From<ConfigCallError> for Down {
    /// A surface that can't get its section at its start is down.
    fn from(error: ConfigCallError) -> Self {
        match error {
            ConfigCallError::Section(error) => error.into(),
            ConfigCallError::Call(CallError::Down(down)) => down,
            ConfigCallError::Call(error) => Down {
                kind: ErrorKind::Down,
                reason: format!("the configuration could not be asked for: {error}"),
                remedy: "holdfast reload".to_owned(),
            },
        }
    }
}

impl From<SectionError> for Down {
    fn from(error: SectionError) -> Self {
        Down { kind: error.kind(), reason: error.to_string(), remedy: error.remedy() }
    }
}
