//! What a shell offers for names and ids. Whatever can't be had is not offered: a shell has no place for an error.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap_complete::CompletionCandidate;
use holdfast_protocol::methods::session::ListParams;
use holdfast_stores::config::AgentsConfig;
use holdfast_stores::install_root::InstallRoot;

use super::Place;
use super::reading::reached;
use super::session::list_rows;
use crate::daemon::config_source;

/// Sessions that are offered at most, the last changed first.
const SESSIONS_MAX: u32 = 200;

/// Returns the configured agents whose names begin with `current`.
pub fn agents(current: &OsStr) -> Vec<CompletionCandidate> {
    let agents =
        || -> Option<AgentsConfig> { config_source(&place()?.root).ok()?.load_for_start().ok()?.section().ok() };
    let names = agents().into_iter().flat_map(|agents| agents.0.into_keys()).map(|alias| alias.to_string());
    names.filter(|name| begins(name, current)).map(CompletionCandidate::new).collect()
}

/// Returns the sessions whose names, or else ids, begin with `current`.
pub fn sessions(current: &OsStr) -> Vec<CompletionCandidate> {
    let rows = || {
        let (mut answers, _) = reached(&place()?).ok()?;
        list_rows(&mut answers, ListParams::default(), SESSIONS_MAX).ok()
    };
    let candidates = rows().unwrap_or_default().into_iter().map(|row| {
        let about = match &row.title {
            Some(title) => format!("{} · {title}", row.agent_id),
            None => row.agent_id.to_string(),
        };
        (row.session_key.unwrap_or_else(|| row.session_id.to_string()), about)
    });
    let candidates = candidates.filter(|(name, _)| begins(name, current)).enumerate();
    let candidate = |(order, (name, about)): (usize, (String, String))| {
        CompletionCandidate::new(name)
            .help(Some(crate::render::clean(&about).into_owned().into()))
            .display_order(Some(order))
    };
    candidates.map(candidate).collect()
}

fn begins(name: &str, current: &OsStr) -> bool {
    current.to_str().is_some_and(|current| name.starts_with(current))
}

/// Finds the root that the command line being typed means.
fn place() -> Option<Place> {
    let home = std::env::home_dir();
    let environment = std::env::var_os("HOLDFAST_ROOT");
    let given = typed_root(std::env::args_os());
    let root = InstallRoot::resolve(given.as_deref(), environment.as_deref(), home.as_deref()).ok()?;
    Some(Place { root, home })
}

fn typed_root(words: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let mut words = words.skip_while(|word| word != "--root" && !word.to_string_lossy().starts_with("--root="));
    let found = words.next()?;
    match found.to_str().and_then(|text| text.strip_prefix("--root=")) {
        Some(path) => Some(PathBuf::from(path)),
        None => words.next().map(PathBuf::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_read_from_the_words_typed_so_far() {
        let root = |line: &str| typed_root(line.split(' ').map(OsString::from));
        assert_eq!(root("holdfast -- holdfast run de"), None);
        assert_eq!(root("holdfast -- holdfast --root /r run de"), Some(PathBuf::from("/r")));
        assert_eq!(root("holdfast -- holdfast run de --root=/r"), Some(PathBuf::from("/r")));
        assert_eq!(root("holdfast -- holdfast run --root"), None);
    }
}
