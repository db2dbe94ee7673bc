//! The configuration: `config.toml` read, checked and handed out as one unchanging snapshot.
//!
//! Order: file, `schema_version`, overrides from the environment, sections. At a start a section that can't be used downs only
//! its surface; at a reload it refuses the file. Unknown keys are kept and warned about.

mod agents;
mod detect;
mod edit;
mod environment;
mod error;
mod init;
mod load;
mod path;
mod permissions;
mod problem;
mod save;
mod schema;
mod secret;
mod section;
mod snapshot;
mod source;
mod suggest;
mod visibility;

#[cfg(test)]
mod tests;

pub use agents::{AgentConfig, AgentsConfig, BuiltinAgent, CommandLine, Launch};
pub use detect::{DetectedAgent, Detection, KNOWN_AGENTS, KnownAgent, MissingAdapter, detect};
pub use edit::{EditError, NewAgent, add_agent};
pub use environment::{AppliedOverride, OVERRIDE_PREFIX, Overrides};
pub use error::ConfigError;
pub use init::{InitError, InitMode, Initialized, KeyOutcome, init};
pub use load::{CONFIG_LIMIT_BYTES, ConfigSource};
pub use path::KeyPath;
pub use permissions::{AgentPermissions, PermissionPolicy, PermissionsConfig, UnattendedPolicy};
pub use problem::{Place, Problem, SectionError};
pub use save::{SaveError, Saved, save};
pub use secret::{SEALED_PREFIX, Sealed, Secret};
pub use section::{ConfigSection, DuplicateSection, SectionDescriptor, SectionProblem, SectionRegistry, Sections};
pub use snapshot::{ConfigSnapshot, Revision};
pub use source::Position;
pub use suggest::nearest;
pub use visibility::{A2aPolicy, AgentVisibility, SessionVisibility};

/// The key that says which layout the file has; missing means the first.
pub const SCHEMA_VERSION_KEY: &str = "schema_version";

/// The layout this program knows.
pub const SCHEMA_VERSION: i64 = 1;
