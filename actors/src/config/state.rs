//! What one incarnation of Config holds.

use holdfast_stores::config::{ConfigSnapshot, ConfigSource};

use super::message::ConfigStatus;
use crate::reply::Reply;

/// The configuration in force and where it came from.
pub struct ConfigState {
    snapshot: ConfigSnapshot,
    source: ConfigSource,
    generation: u64,
}

impl ConfigState {
    pub(super) fn new(snapshot: ConfigSnapshot, source: ConfigSource, generation: u64) -> Self {
        Self { snapshot, source, generation }
    }

    pub(super) fn snapshot(&self) -> ConfigSnapshot {
        self.snapshot.clone()
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.snapshot.text().len() as u64
    }

    /// Says in the log what is wrong or odd. The texts hold no values that may be secret.
    pub(super) fn log_problems(&self) {
        let file = self.snapshot.file();
        for error in self.snapshot.section_errors() {
            tracing::error!(section = error.section, remedy = error.remedy(), "{error}");
        }
        for warning in self.snapshot.warnings() {
            tracing::warn!(hint = warning.hint.as_deref(), "{}", warning.describe(file));
        }
    }

    /// Looks at the file beside the actor's work, then answers.
    pub(super) fn status(&self, reply: Reply<ConfigStatus>) {
        let (snapshot, source, generation) = (self.snapshot.clone(), self.source.clone(), self.generation);
        tokio::task::spawn_blocking(move || {
            reply.send(ConfigStatus {
                file: snapshot.file().to_owned(),
                applied: snapshot.revision(),
                generation,
                saved: source.revision_on_disk().map_err(|error| error.to_string()),
                overrides: snapshot.overrides().iter().map(|applied| applied.variable.clone()).collect(),
                warnings: snapshot.warnings().cloned().collect(),
                problems: snapshot.problems().cloned().collect(),
            });
        });
    }
}
