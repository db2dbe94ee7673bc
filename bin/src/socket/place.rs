//! Where the socket is: binding it, finding out whether somebody listens, reaching it. Paths over the kernel's limit go
//! through a short name of their directory, for the server and for clients alike.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The longest path that fits into `sockaddr_un`, its terminating zero excluded. Source: unix(7).
const PATH_BYTES_MAX: usize = 107;

/// Connections the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// Why the socket could not be bound. Nothing that was in its place has been touched.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody listens there.
    #[error("another process listens on `{}`", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something that is not ours to remove is in its place.
    #[error("`{}` is {found}, not a socket of ours; move it away", path.display())]
    Occupied {
        /// The place.
        path: PathBuf,
        /// What is there, with its article.
        found: &'static str,
    },
    /// The system refused.
    #[error("failed to {action} `{}`", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// A socket that listens, and its file.
#[derive(Debug)]
pub struct BoundSocket {
    listener: UnixListener,
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl BoundSocket {
    /// Returns the path it was bound at, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes another handle of the listening socket, non-blocking.
    pub(super) fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// Removes the socket's file, unless another one has taken its place.
    pub(super) fn remove_file(&self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| found.dev() == self.device && found.ino() == self.inode);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            // The next start finds it stale and removes it.
            tracing::warn!(path = %self.path.display(), %error, "failed to remove the socket's file");
        }
    }
}

/// Binds `path` with mode 0600, whatever the umask. A socket file that nobody listens on is replaced; that nobody does is
/// found out by connecting. The caller holds the install root's lock and has made the directory private.
///
/// # Errors
/// [`BindError`].
pub fn bind(path: &Path) -> Result<BoundSocket, BindError> {
    let failed = |action| move |source: io::Error| BindError::Io { action, path: path.to_owned(), source };
    clear_the_place(path)?;
    let place = Place::of(path).map_err(failed("find the directory of"))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| failed("make a socket for")(error.into()))?;
    // The file gets the mode of the unbound socket, so it never exists with a wider one (Linux; unix_bind_bsd in
    // net/unix/af_unix.c). Systems that ignore or refuse this rely on the private directory until the line below.
    let _unsupported = rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR);
    match rustix::net::bind(&socket, &place.address) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return Err(BindError::InUse { path: path.to_owned() }),
        Err(error) => return Err(failed("bind a socket at")(error.into())),
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed("set the mode of"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(|error| failed("listen on")(error.into()))?;
    let metadata = std::fs::symlink_metadata(path).map_err(failed("look at"))?;
    Ok(BoundSocket {
        listener: UnixListener::from(socket),
        path: path.to_owned(),
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}

/// Connects to the socket at `path`. The stream blocks.
///
/// # Errors
/// As connect(2): `NotFound` without a socket file, `ConnectionRefused` when nobody listens.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let place = Place::of(path)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &place.address)?;
    Ok(UnixStream::from(socket))
}

/// Removes a stale socket file; refuses everything else that is in the way.
fn clear_the_place(path: &Path) -> Result<(), BindError> {
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(BindError::Io { action: "look at", path: path.to_owned(), source }),
    };
    let kind = metadata.file_type();
    let found = if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_file() {
        "a regular file"
    } else if kind.is_socket() {
        return clear_a_socket(path);
    } else {
        "a device or a pipe"
    };
    Err(BindError::Occupied { path: path.to_owned(), found })
}

fn clear_a_socket(path: &Path) -> Result<(), BindError> {
    let failed = |action| move |source: io::Error| BindError::Io { action, path: path.to_owned(), source };
    let place = Place::of(path).map_err(failed("find the directory of"))?;
    // Not blocking: a daemon that lives but does not accept must not hold up the second one.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| failed("make a socket for")(error.into()))?;
    match rustix::net::connect(&socket, &place.address) {
        // A full backlog answers `AGAIN`: somebody holds it open.
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => Err(BindError::InUse { path: path.to_owned() }),
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed("remove the stale socket")),
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::PROTOTYPE) => Err(BindError::Occupied { path: path.to_owned(), found: "a socket of another type" }),
        Err(error) => Err(failed("connect to")(error.into())),
    }
}

/// A socket address that fits the kernel's limit.
struct Place {
    address: SocketAddrUnix,
    /// Keeps the short name of the directory good while the address is in use.
    _directory: Option<OwnedFd>,
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().as_bytes().len() <= PATH_BYTES_MAX {
            return Ok(Self { address: SocketAddrUnix::new(path)?, _directory: None });
        }
        Self::through_descriptor(path)
    }

    #[cfg(target_os = "linux")]
    fn through_descriptor(path: &Path) -> io::Result<Self> {
        use std::os::fd::AsRawFd;

        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, Mode::empty())?;
        let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
        Ok(Self { address: SocketAddrUnix::new(&short)?, _directory: Some(directory) })
    }

    #[cfg(not(target_os = "linux"))]
    fn through_descriptor(path: &Path) -> io::Result<Self> {
        let message = format!("the path is longer than the {PATH_BYTES_MAX} bytes that a socket may have here");
        let _unused = (path, OFlags::empty());
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    }
}
