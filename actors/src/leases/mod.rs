//! Process leases: which adapter processes are ours.

mod config;
pub mod leased;
pub mod spawn;
pub mod wrapper;

pub use config::LeasesConfig;
pub use leased::{ExitWatch, LeasedProcess, ProcessExit, RootIdentity};
pub use spawn::{SpawnError, SpawnRequest, Spawner};
