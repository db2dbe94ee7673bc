//! Sets up an install root: directories, a first `config.toml`, the key that opens secrets. Replaces nothing, ever.

use std::fs;
use std::path::PathBuf;

use age::secrecy::ExposeSecret;
use holdfast_protocol::error::ErrorKind;

use super::error::ConfigError;
use super::load::{good_backup, read_limited};
use super::save::{SaveError, write_new};
use super::secret::{SEALED_PREFIX, sealed_paths};
use super::snapshot::parse;
use crate::install_root::{InstallRoot, InstallRootError, Prepared};

/// The first configuration.
const FIRST_CONFIG: &str = include_str!("first.toml");

/// What to do with a root that is already set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitMode {
    /// A person asked for a new root: an existing configuration is an error.
    New,
    /// A first run makes what is missing: an existing configuration is kept.
    Missing,
}

/// What became of the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyOutcome {
    /// It was made.
    Made,
    /// There was one.
    Kept,
    /// None was made, because something here is sealed with one that is missing: a new key could not open it, and would
    /// hide that the old one is gone. Says what is sealed.
    Withheld(String),
}

/// What was made and what was there.
#[derive(Debug, PartialEq, Eq)]
pub struct Initialized {
    /// The directories.
    pub prepared: Prepared,
    /// Whether `config.toml` was made.
    pub config_made: bool,
    /// The key.
    pub key: KeyOutcome,
}

/// Why a root was not set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The directory can't be one.
    #[error(transparent)]
    Root(#[from] InstallRootError),
    /// There is a configuration already.
    #[error("`{file}` exists; it is never replaced")]
    AlreadySetUp {
        /// The file.
        file: PathBuf,
    },
    /// The configuration is lost, but its backup is there: a new one would bury it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file couldn't be made.
    #[error(transparent)]
    Save(#[from] SaveError),
}

impl InitError {
    /// Returns the stable kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Root(error) => error.kind(),
            Self::AlreadySetUp { .. } => ErrorKind::Conflict,
            Self::Config(error) => error.kind(),
            Self::Save(error) => error.kind(),
        }
    }

    /// Returns what to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Root(error) => error.remedy(),
            Self::AlreadySetUp { .. } => "edit it, or choose another root with --root".to_owned(),
            Self::Config(error) => error.remedy(),
            Self::Save(_) => "check the permissions of the install root and the disk".to_owned(),
        }
    }
}

/// Sets up `root`.
///
/// # Errors
/// [`InitError`]. What was made before stays; running it again goes on from there.
pub fn init(root: &InstallRoot, mode: InitMode) -> Result<Initialized, InitError> {
    let file = root.config_file();
    let exists = fs::symlink_metadata(&file).is_ok();
    if exists && mode == InitMode::New {
        return Err(InitError::AlreadySetUp { file });
    }
    let prepared = root.prepare()?;
    if !exists && let Some(backup) = good_backup(&root.config_backup()) {
        return Err(ConfigError::Lost { file, found: "missing", backup }.into());
    }
    // The key comes first, so that a root with a configuration has one.
    let key = make_key(root)?;
    let config_made = !exists && write_new(&file, FIRST_CONFIG.as_bytes())?;
    if !config_made && mode == InitMode::New {
        // Somebody else was quicker.
        return Err(InitError::AlreadySetUp { file });
    }
    Ok(Initialized { prepared, config_made, key })
}

/// Makes the key, unless there is one or something waits for another.
fn make_key(root: &InstallRoot) -> Result<KeyOutcome, InitError> {
    let path = root.secret_key();
    if fs::symlink_metadata(&path).is_ok() {
        return Ok(KeyOutcome::Kept);
    }
    if let Some(sealed) = what_is_sealed(root) {
        return Ok(KeyOutcome::Withheld(sealed));
    }
    let identity = age::x25519::Identity::generate();
    let secret = identity.to_string();
    let text = age::secrecy::SecretString::from(format!(
        "# Opens the secrets of this Holdfast root. Lost, they are lost: back it up, show it to nobody.\n\
         # public key: {}\n{}\n",
        identity.to_public(),
        secret.expose_secret()
    ));
    match write_new(&path, text.expose_secret().as_bytes())? {
        true => Ok(KeyOutcome::Made),
        false => Ok(KeyOutcome::Kept),
    }
}

/// Says what in this root was sealed with a key, or nothing.
fn what_is_sealed(root: &InstallRoot) -> Option<String> {
    let file = root.config_file();
    if let Ok(bytes) = read_limited(&file) {
        match parse(&file, &bytes) {
            Ok((_, table)) => {
                let paths: Vec<String> = sealed_paths(&table).iter().map(ToString::to_string).collect();
                if !paths.is_empty() {
                    return Some(paths.join(", "));
                }
            }
            // It can't be told which, but that may be one.
            Err(_) if bytes.windows(SEALED_PREFIX.len()).any(|window| window == SEALED_PREFIX.as_bytes()) => {
                return Some(file.display().to_string());
            }
            Err(_) => {}
        }
    }
    let plugin_state = root.plugin_state_database();
    fs::symlink_metadata(&plugin_state).is_ok().then(|| plugin_state.display().to_string())
}
