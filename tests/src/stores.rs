//! The stores of an install, for tests that hold for each of them.

use std::path::PathBuf;

use holdfast_stores::install_root::InstallRoot;

/// A store and the surface that owns it.
#[derive(Debug)]
pub struct Store {
    /// The surface's name.
    pub surface: &'static str,
    path: fn(&InstallRoot) -> PathBuf,
}

impl Store {
    /// Returns its file.
    pub fn path(&self, root: &InstallRoot) -> PathBuf {
        (self.path)(root)
    }
}

/// All of them.
pub const STORES: [Store; 4] = [
    Store { surface: "control-plane", path: InstallRoot::control_plane_database },
    Store { surface: "leases", path: InstallRoot::leases_database },
    Store { surface: "sessions", path: InstallRoot::sessions_database },
    Store { surface: "acp-sessions", path: InstallRoot::acp_sessions_database },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that is added has to be added here as well.
    #[test]
    fn none_is_missing() {
        let daemon = crate::daemon::TestDaemon::start();
        let mut found = Vec::new();
        let mut directories = vec![daemon.root.data_dir()];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => directories.push(path),
                    false if path.extension().is_some_and(|extension| extension == "db") => found.push(path),
                    false => {}
                }
            }
        }
        let mut known: Vec<PathBuf> = STORES.iter().map(|store| store.path(&daemon.root)).collect();
        found.sort();
        known.sort();
        assert_eq!(found, known);
    }
}
