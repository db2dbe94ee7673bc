//! Who may read what an install keeps.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Checks that nobody but the owner may read or write anything in `root`, and returns all files in it.
///
/// # Panics
/// When somebody may.
#[track_caller]
pub fn assert_private(root: &Path) -> Vec<PathBuf> {
    let mut entries = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(path) = entries.pop() {
        // What a daemon that runs replaces or removes meanwhile is gone by now.
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let mode = metadata.permissions().mode() & 0o777;
        if metadata.is_dir() {
            assert_eq!(mode, 0o700, "{}", path.display());
            entries.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            assert_eq!(mode, 0o600, "{}", path.display());
            files.push(path);
        }
    }
    files
}

/// Returns the files in `root` that hold any of `secrets`, each with what it holds.
///
/// # Panics
/// When a file can't be read.
pub fn files_with(root: &Path, secrets: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for path in assert_private(root).into_iter().filter(|path| path.is_file()) {
        let bytes = fs::read(&path).unwrap();
        for secret in secrets {
            if memchr::memmem::find(&bytes, secret.as_bytes()).is_some() {
                found.push((path.clone(), (*secret).to_owned()));
            }
        }
    }
    found
}
