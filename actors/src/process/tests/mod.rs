mod careful;
pub(crate) mod simulated;
mod verify;
