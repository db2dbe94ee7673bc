pub(crate) mod simulated;
mod verify;
