//! Where everything lies: the install root, its paths, and the rules a directory must keep to be one.
//!
//! Nothing here repairs what a person made: directories are created, never changed.

mod file_system;

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use holdfast_protocol::error::ErrorKind;
use holdfast_protocol::ids::AgentAlias;

pub use file_system::{FileSystemKind, classify_file_system};

/// The mode of every directory we make: the owner alone.
const DIRECTORY_MODE: u32 = 0o700;

/// What can be wrong with an install root.
#[derive(Debug, thiserror::Error)]
pub enum InstallRootError {
    /// Neither `--root`, `HOLDFAST_ROOT` nor a home directory is known.
    #[error("there is no install root: no --root, no HOLDFAST_ROOT and no home directory")]
    NoHome,
    /// The path can't be made absolute (it is empty, or the working directory is gone).
    #[error("`{path}` can't be made an absolute path")]
    NotAbsolute {
        /// The path as given.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Something that is no directory is where a directory must be.
    #[error("`{path}` is {found}, not a directory")]
    NotADirectory {
        /// The path.
        path: PathBuf,
        /// What is there, with its article.
        found: &'static str,
    },
    /// A directory below the root is a symbolic link: what it holds could lie outside the root.
    #[error("`{path}` is a symbolic link; directories below the install root must be real ones")]
    LinkInside {
        /// The path.
        path: PathBuf,
    },
    /// The root is a symbolic link to nothing.
    #[error("the install root `{path}` is a symbolic link to nothing")]
    DanglingLink {
        /// The path.
        path: PathBuf,
    },
    /// The directory belongs to somebody else.
    #[error("`{path}` belongs to user {owner}, but this process runs as user {user}")]
    OtherOwner {
        /// The path.
        path: PathBuf,
        /// The user id of the directory's owner.
        owner: u32,
        /// Our effective user id.
        user: u32,
    },
    /// The root lies on a file system that other machines may write.
    #[error("`{path}` lies on a network file system ({file_system}); locks and write-ahead logs are not safe there")]
    NetworkFileSystem {
        /// The path.
        path: PathBuf,
        /// The name of the file system.
        file_system: String,
    },
    /// The operating system refused.
    #[error("failed to {action} `{path}`")]
    Io {
        /// What was being done, as a verb.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl InstallRootError {
    /// Returns the stable kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoHome | Self::NotAbsolute { .. } => ErrorKind::InvalidParams,
            Self::NotADirectory { .. } | Self::LinkInside { .. } | Self::DanglingLink { .. } => ErrorKind::Conflict,
            Self::OtherOwner { .. } | Self::NetworkFileSystem { .. } => ErrorKind::Denied,
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::StorageFull,
                io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
                _ => ErrorKind::Internal,
            },
        }
    }

    /// Returns what to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::NoHome | Self::NotAbsolute { .. } => "give a directory with --root or HOLDFAST_ROOT".to_owned(),
            Self::NotADirectory { path, .. } => {
                format!("move `{}` away, or choose another root with --root", path.display())
            }
            Self::LinkInside { .. } => {
                "make it a real directory; to keep the install elsewhere, let the root itself be the link".to_owned()
            }
            Self::DanglingLink { path } => {
                format!("make the directory that `{}` points to, or remove the link", path.display())
            }
            Self::OtherOwner { .. } => "run as its owner, or choose another root with --root".to_owned(),
            Self::NetworkFileSystem { .. } => {
                "choose a directory on a local disk with --root or HOLDFAST_ROOT".to_owned()
            }
            Self::Io { .. } => "check the permissions and the disk, or choose another root with --root".to_owned(),
        }
    }
}

/// What [`InstallRoot::prepare`] did and saw.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// The directories made, outermost first.
    pub created: Vec<PathBuf>,
    /// Existing directories that group or others may enter or write, with their permission bits. They are left as they are:
    /// the files inside are private, but a person should know.
    pub loose: Vec<(PathBuf, u32)>,
}

/// The install root: one directory that holds everything of one daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallRoot {
    root: PathBuf,
}

impl InstallRoot {
    /// Finds the root: `argument` (`--root`), else `environment` (`HOLDFAST_ROOT`, ignored when empty), else `.holdfast`
    /// in `home`. Relative paths are taken from the working directory. Looks at no file.
    ///
    /// # Errors
    /// [`InstallRootError::NoHome`] and [`InstallRootError::NotAbsolute`].
    pub fn resolve(
        argument: Option<&Path>,
        environment: Option<&OsStr>,
        home: Option<&Path>,
    ) -> Result<Self, InstallRootError> {
        let environment = environment.filter(|value| !value.is_empty()).map(Path::new);
        let path = match argument.or(environment) {
            Some(path) => path.to_owned(),
            None => home.filter(|home| !home.as_os_str().is_empty()).ok_or(InstallRootError::NoHome)?.join(".holdfast"),
        };
        let root = std::path::absolute(&path).map_err(|source| InstallRootError::NotAbsolute { path, source })?;
        Ok(Self { root })
    }

    /// Takes `root`, an absolute path, as it is.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the directory itself.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Returns the root as people write it: with `~` for `home`.
    pub fn shown(&self, home: Option<&Path>) -> String {
        match home.and_then(|home| self.root.strip_prefix(home).ok()) {
            Some(rest) if !rest.as_os_str().is_empty() => format!("~/{}", rest.display()),
            _ => self.root.display().to_string(),
        }
    }

    /// Returns `config.toml`.
    pub fn config_file(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// Returns `config.toml.bak`, the version before the last save.
    pub fn config_backup(&self) -> PathBuf {
        self.root.join("config.toml.bak")
    }

    /// Returns `.secret_key`, the age identity that opens secrets.
    pub fn secret_key(&self) -> PathBuf {
        self.root.join(".secret_key")
    }

    /// Returns `data/`.
    pub fn data_dir(&self) -> PathBuf {
        self.root.join("data")
    }

    /// Returns the path of the RPC socket.
    pub fn socket(&self) -> PathBuf {
        self.root.join("data/holdfast.sock")
    }

    /// Returns the file whose kernel lock makes one daemon the owner of the root.
    pub fn lock_file(&self) -> PathBuf {
        self.root.join("data/daemon.lock")
    }

    /// Returns `data/sessions/sessions.db`.
    pub fn sessions_database(&self) -> PathBuf {
        self.root.join("data/sessions/sessions.db")
    }

    /// Returns `data/sessions/sessions-search.db`, a derived index that can be made again.
    pub fn sessions_search_database(&self) -> PathBuf {
        self.root.join("data/sessions/sessions-search.db")
    }

    /// Returns `data/sessions/acp-sessions.db`.
    pub fn acp_sessions_database(&self) -> PathBuf {
        self.root.join("data/sessions/acp-sessions.db")
    }

    /// Returns `data/cron/jobs.db`.
    pub fn cron_database(&self) -> PathBuf {
        self.root.join("data/cron/jobs.db")
    }

    /// Returns `data/sop/runs.db`.
    pub fn sop_database(&self) -> PathBuf {
        self.root.join("data/sop/runs.db")
    }

    /// Returns `data/control_plane.db`.
    pub fn control_plane_database(&self) -> PathBuf {
        self.root.join("data/control_plane.db")
    }

    /// Returns `data/devices.db`.
    pub fn devices_database(&self) -> PathBuf {
        self.root.join("data/devices.db")
    }

    /// Returns `data/leases.db`.
    pub fn leases_database(&self) -> PathBuf {
        self.root.join("data/leases.db")
    }

    /// Returns `data/audit.db`.
    pub fn audit_database(&self) -> PathBuf {
        self.root.join("data/audit.db")
    }

    /// Returns `data/cost.db`.
    pub fn cost_database(&self) -> PathBuf {
        self.root.join("data/cost.db")
    }

    /// Returns `data/plugin-state.db`.
    pub fn plugin_state_database(&self) -> PathBuf {
        self.root.join("data/plugin-state.db")
    }

    /// Returns `data/memory/memory.db`.
    pub fn memory_database(&self) -> PathBuf {
        self.root.join("data/memory/memory.db")
    }

    /// Returns `data/state/`.
    pub fn state_dir(&self) -> PathBuf {
        self.root.join("data/state")
    }

    /// Returns the trace file, one JSON object a line.
    pub fn trace_file(&self) -> PathBuf {
        self.root.join("data/state/runtime-trace.jsonl")
    }

    /// Returns `shared/skills/`, which holds one directory a skill bundle.
    pub fn skills_dir(&self) -> PathBuf {
        self.root.join("shared/skills")
    }

    /// Returns `shared/sops/`, which holds one directory a workflow.
    pub fn sops_dir(&self) -> PathBuf {
        self.root.join("shared/sops")
    }

    /// Returns `agents/`.
    pub fn agents_dir(&self) -> PathBuf {
        self.root.join("agents")
    }

    /// Returns `agents/<alias>/`, made lazily.
    pub fn agent_dir(&self, alias: &AgentAlias) -> PathBuf {
        self.agents_dir().join(alias.as_str())
    }

    /// Returns `agents/<alias>/agent.db`.
    pub fn agent_database(&self, alias: &AgentAlias) -> PathBuf {
        self.agent_dir(alias).join("agent.db")
    }

    /// Returns `agents/<alias>/workspace/`, the agent's own files.
    pub fn agent_workspace(&self, alias: &AgentAlias) -> PathBuf {
        self.agent_dir(alias).join("workspace")
    }

    /// Makes the root and the directories below it, 0700 whatever the umask. What exists is checked and left as it is.
    ///
    /// # Errors
    /// Any [`InstallRootError`] but the two of [`InstallRoot::resolve`]. A root on a network file system is refused
    /// before anything is made.
    pub fn prepare(&self) -> Result<Prepared, InstallRootError> {
        let mut prepared = Prepared::default();
        self.prepare_root(&mut prepared)?;
        for directory in [
            self.data_dir(),
            self.data_dir().join("sessions"),
            self.data_dir().join("cron"),
            self.data_dir().join("sop"),
            self.data_dir().join("memory"),
            self.state_dir(),
            self.root.join("shared"),
            self.skills_dir(),
            self.sops_dir(),
            self.agents_dir(),
        ] {
            prepare_inside(&directory, &mut prepared)?;
        }
        Ok(prepared)
    }

    /// Makes the directory `relative` below the root, and what is missing on the way, 0700 each.
    ///
    /// For what is made lazily, such as an agent's workspace. `relative` is made of plain names: `..` and absolute paths
    /// are refused, and so are symbolic links on the way.
    ///
    /// # Errors
    /// As [`InstallRoot::prepare`].
    pub fn make_directory(&self, relative: &Path) -> Result<PathBuf, InstallRootError> {
        let mut path = self.root.clone();
        for part in relative.components() {
            match part {
                std::path::Component::Normal(name) => path.push(name),
                _ => {
                    let source = io::Error::new(io::ErrorKind::InvalidInput, "the path would leave the install root");
                    return Err(InstallRootError::Io {
                        action: "make the directory",
                        path: relative.to_owned(),
                        source,
                    });
                }
            }
            prepare_inside(&path, &mut Prepared::default())?;
        }
        Ok(path)
    }

    /// Checks or makes the root directory itself. It alone may be a symbolic link, so that an install can live on another
    /// disk.
    fn prepare_root(&self, prepared: &mut Prepared) -> Result<(), InstallRootError> {
        refuse_network_file_system(&self.root)?;
        match fs::metadata(&self.root) {
            Ok(metadata) => check_directory(&self.root, &metadata, prepared),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(&self.root).is_ok_and(|metadata| metadata.is_symlink()) {
                    return Err(InstallRootError::DanglingLink { path: self.root.clone() });
                }
                let missing: Vec<&Path> = self.root.ancestors().take_while(|path| !path.exists()).collect();
                for path in missing.into_iter().rev() {
                    make_private_directory(path, prepared)?;
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                let path = self.root.ancestors().find(|path| path.exists()).unwrap_or(&self.root).to_owned();
                Err(InstallRootError::NotADirectory { path, found: "a file" })
            }
            Err(source) => Err(InstallRootError::Io { action: "look at", path: self.root.clone(), source }),
        }
    }
}

/// Refuses a path whose nearest existing ancestor lies on a network file system.
fn refuse_network_file_system(root: &Path) -> Result<(), InstallRootError> {
    let Some(existing) = root.ancestors().find(|path| path.exists()) else { return Ok(()) };
    let kind = FileSystemKind::of(existing).map_err(|source| InstallRootError::Io {
        action: "find the file system of",
        path: existing.to_owned(),
        source,
    })?;
    match kind {
        FileSystemKind::Local => Ok(()),
        FileSystemKind::Network(file_system) => {
            Err(InstallRootError::NetworkFileSystem { path: root.to_owned(), file_system })
        }
    }
}

/// Checks or makes a directory below the root, whose parent exists.
fn prepare_inside(path: &Path, prepared: &mut Prepared) -> Result<(), InstallRootError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => Err(InstallRootError::LinkInside { path: path.to_owned() }),
        Ok(metadata) => check_directory(path, &metadata, prepared),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make_private_directory(path, prepared),
        Err(source) => Err(InstallRootError::Io { action: "look at", path: path.to_owned(), source }),
    }
}

/// Checks what exists: a directory of ours. Loose permissions are noted.
fn check_directory(path: &Path, metadata: &fs::Metadata, prepared: &mut Prepared) -> Result<(), InstallRootError> {
    if !metadata.is_dir() {
        let found = if metadata.is_file() { "a file" } else { "a special file" };
        return Err(InstallRootError::NotADirectory { path: path.to_owned(), found });
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        return Err(InstallRootError::OtherOwner { path: path.to_owned(), owner: metadata.uid(), user });
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        prepared.loose.push((path.to_owned(), mode));
    }
    Ok(())
}

/// Makes one directory, 0700. Another process making it at the same moment is no error.
fn make_private_directory(path: &Path, prepared: &mut Prepared) -> Result<(), InstallRootError> {
    let failed = |action, source| InstallRootError::Io { action, path: path.to_owned(), source };
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return prepare_inside(path, prepared),
        Err(error) => return Err(failed("make the directory", error)),
    }
    let metadata = fs::symlink_metadata(path).map_err(|error| failed("look at", error))?;
    // A umask can only take bits away; one that takes the owner's would leave a directory nobody can use.
    if metadata.permissions().mode() & 0o777 != DIRECTORY_MODE {
        fs::set_permissions(path, Permissions::from_mode(DIRECTORY_MODE))
            .map_err(|error| failed("set the permissions of", error))?;
    }
    prepared.created.push(path.to_owned());
    Ok(())
}

#[cfg(test)]
mod tests;
