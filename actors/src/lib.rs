//! Who keeps it: one actor a surface, and the rules about what they own.

pub mod leases;
pub mod process;
