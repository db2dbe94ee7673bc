//! The token of the admin HTTP: `data/http-token`, readable by the daemon's own user only.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What every token begins with, so that log redaction and secret scanners know one.
const PREFIX: &str = "hdf_";
/// The prefix and 32 bytes in hexadecimal.
const LENGTH: usize = PREFIX.len() + 64;

/// A token, kept as its hash: the text is only in the file.
#[derive(Clone)]
pub struct HttpToken {
    hash: blake3::Hash,
}

/// Why there is no token. Requests of our own user work without.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action} `{}`", path.display())]
pub struct TokenError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl HttpToken {
    /// Reads the token in `path`, or makes one of `random` when there is none or others may have read it.
    ///
    /// # Errors
    /// [`TokenError`] when the file can be neither read nor made.
    pub fn load_or_make(path: &Path, random: [u8; 32]) -> Result<Self, TokenError> {
        let failed = |action| move |source| TokenError { action, path: path.to_owned(), source };
        if let Some(text) = read_private(path).map_err(failed("read the HTTP token in"))? {
            return Ok(Self::from_text(&text));
        }
        let mut text = String::with_capacity(LENGTH);
        text.push_str(PREFIX);
        text.push_str(blake3::Hash::from_bytes(random).to_hex().as_str());
        write_private(path, &text).map_err(failed("write the HTTP token to"))?;
        Ok(Self::from_text(&text))
    }

    pub(super) fn from_text(text: &str) -> Self {
        Self { hash: blake3::hash(text.as_bytes()) }
    }

    /// Says whether `given` is the token. Takes the same time whatever is given: hashes are compared in constant time.
    pub fn matches(&self, given: &str) -> bool {
        blake3::hash(given.as_bytes()) == self.hash
    }
}

impl fmt::Debug for HttpToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HttpToken(…)")
    }
}

/// Returns the token in the file; `None` when there is none that only we could read.
fn read_private(path: &Path) -> io::Result<Option<String>> {
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let file = match OpenOptions::new().read(true).custom_flags(nofollow).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.mode() & 0o077 != 0 || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Ok(None);
    }
    let mut text = String::new();
    file.take(LENGTH as u64 + 2).read_to_string(&mut text)?;
    let text = text.trim_end();
    let whole = text.len() == LENGTH && text.starts_with(PREFIX);
    Ok(whole.then(|| text.to_owned()))
}

/// Writes the file whole or not at all.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.with_extension("new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_private() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("http-token");
        let token = HttpToken::load_or_make(&path, [1; 32]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("hdf_{}\n", "01".repeat(32)));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(token.matches(text.trim()));
        assert!(!token.matches("") && !token.matches("hdf_"));
        assert!(HttpToken::load_or_make(&path, [2; 32]).unwrap().matches(text.trim()));
        assert_eq!(format!("{token:?}"), "HttpToken(…)");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_token_that_others_could_read_or_that_is_cut_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("http-token");
        HttpToken::load_or_make(&path, [1; 32]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let token = HttpToken::load_or_make(&path, [2; 32]).unwrap();
        assert!(token.matches(&format!("hdf_{}", "02".repeat(32))));
        fs::write(&path, "hdf_0202").unwrap();
        let token = HttpToken::load_or_make(&path, [3; 32]).unwrap();
        assert!(token.matches(&format!("hdf_{}", "03".repeat(32))));
    }
}
