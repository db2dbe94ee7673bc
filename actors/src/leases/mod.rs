//! Process leases: which adapter processes are ours.

pub mod adopt;
mod config;
pub mod leased;
pub mod spawn;
pub mod wrapper;

pub use adopt::{Adopter, Orphans, Ownership};
pub use config::LeasesConfig;
pub use leased::{ExitWatch, LeasedProcess, ProcessExit, RootIdentity};
pub use spawn::{SpawnError, SpawnRequest, Spawner};
