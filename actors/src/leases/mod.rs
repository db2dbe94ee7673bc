//! Process leases: which adapter processes are ours.

pub mod wrapper;
