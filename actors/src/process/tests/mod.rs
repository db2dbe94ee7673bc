mod simulated;
mod verify;
