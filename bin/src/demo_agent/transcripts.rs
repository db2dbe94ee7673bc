//! What the agent remembers: one JSON file a session, or memory only.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

/// One session with everything said in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Session {
    pub(super) cwd: String,
    pub(super) title: Option<String>,
    pub(super) updated_at_ms: i64,
    /// Tokens so far, as this agent counts them (four bytes each).
    pub(super) used_tokens: u64,
    /// The `update` objects of all turns, in order, as a load replays them.
    pub(super) updates: Vec<Box<RawValue>>,
    /// Whether it was opened in this process and not closed since. A stored session has to be loaded or resumed first.
    #[serde(skip)]
    pub(super) is_open: bool,
}

/// A transcript that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum TranscriptError {
    #[error("failed to {action} `{}`", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("transcript `{}` is damaged", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

/// All sessions that this process has seen, in front of the directory that keeps them.
pub(super) struct Transcripts {
    directory: Option<PathBuf>,
    sessions: BTreeMap<String, Session>,
}

impl Transcripts {
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        Self { directory, sessions: BTreeMap::new() }
    }

    /// Returns a session that this process has seen; does not look at the disk.
    pub(super) fn seen_mut(&mut self, session_id: &str) -> Option<&mut Session> {
        self.sessions.get_mut(session_id)
    }

    /// Returns a session, read from its file if need be. `Ok(None)`: there is no such session.
    pub(super) fn find_mut(&mut self, session_id: &str) -> Result<Option<&mut Session>, TranscriptError> {
        if !self.sessions.contains_key(session_id)
            && let Some(path) = self.path_of(session_id)
            && let Some(session) = read(&path)?
        {
            self.sessions.insert(session_id.to_owned(), session);
        }
        Ok(self.sessions.get_mut(session_id))
    }

    /// Adds a session and saves it.
    pub(super) fn insert(&mut self, session_id: &str, session: Session) -> Result<(), TranscriptError> {
        self.sessions.insert(session_id.to_owned(), session);
        let saved = self.save(session_id);
        if saved.is_err() {
            self.sessions.remove(session_id);
        }
        saved
    }

    /// Writes a session to its file, whole: a crash in between leaves the old one. Does nothing without a directory.
    pub(super) fn save(&self, session_id: &str) -> Result<(), TranscriptError> {
        let (Some(path), Some(session)) = (self.path_of(session_id), self.sessions.get(session_id)) else {
            return Ok(());
        };
        let failed = |action| {
            let path = path.clone();
            move |source| TranscriptError::Io { action, path, source }
        };
        if let Some(directory) = path.parent() {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(failed("make the directory of"))?;
        }
        let text =
            serde_json::to_vec(session).map_err(|source| TranscriptError::Damaged { path: path.clone(), source })?;
        let temporary = path.with_extension("json.new");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(failed("create a new version of"))?;
        file.write_all(&text).map_err(failed("write"))?;
        fs::rename(&temporary, &path).map_err(failed("replace"))
    }

    /// Returns ids and sessions, the latest change first. Files that can't be read are named on stderr and left out.
    pub(super) fn list(&mut self) -> Result<Vec<(&str, &Session)>, TranscriptError> {
        for session_id in self.stored_ids()? {
            if let Err(error) = self.find_mut(&session_id) {
                eprintln!("demo agent: session `{session_id}` is left out of the list: {error}");
            }
        }
        let mut sessions: Vec<(&str, &Session)> = self.sessions.iter().map(|(id, session)| (&**id, session)).collect();
        sessions.sort_by(|(left_id, left), (right_id, right)| {
            right.updated_at_ms.cmp(&left.updated_at_ms).then_with(|| right_id.cmp(left_id))
        });
        Ok(sessions)
    }

    fn stored_ids(&self) -> Result<Vec<String>, TranscriptError> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        let failed = |source| TranscriptError::Io { action: "list", path: directory.clone(), source };
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut ids = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            ids.extend(name.to_str().and_then(|name| name.strip_suffix(".json")).map(str::to_owned));
        }
        Ok(ids)
    }

    /// Returns the file of a session; `None` without a directory and for ids that are not ours: they become file names.
    fn path_of(&self, session_id: &str) -> Option<PathBuf> {
        let id = Uuid::try_parse(session_id).ok()?;
        Some(self.directory.as_ref()?.join(format!("{}.json", id.hyphenated())))
    }
}

fn read(path: &Path) -> Result<Option<Session>, TranscriptError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(TranscriptError::Io { action: "read", path: path.to_owned(), source }),
    };
    let session = serde_json::from_slice(&text);
    session.map(Some).map_err(|source| TranscriptError::Damaged { path: path.to_owned(), source })
}
