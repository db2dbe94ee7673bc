//! `migrate!` reads the folders at compile time, but a new file alone would not make Cargo compile again.

fn main() {
    println!("cargo:rerun-if-changed=../migrations");
}
