mod careful;
mod lineage;
pub(crate) mod simulated;
mod verify;
