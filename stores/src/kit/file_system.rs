//! The few file operations that durable saving needs, behind a trait so that tests can make each of them fail.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// What is known about a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFacts {
    /// Bytes.
    pub size_bytes: u64,
    /// The permission bits (`0o600`).
    pub mode: u32,
    /// Whether it is a regular file.
    pub is_file: bool,
}

/// A file being written.
pub trait WritableFile: Send {
    /// Writes all bytes at the current end.
    ///
    /// # Errors
    /// The system's.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Waits until what was written is on stable storage.
    ///
    /// # Errors
    /// The system's. Afterwards nothing may be assumed about the file's content.
    fn sync(&mut self) -> io::Result<()>;
}

/// File operations. All block for as long as the disk does.
pub trait FileSystem: Send + Sync {
    /// Makes a file that must not exist yet, with exactly these permission bits, whatever the umask.
    ///
    /// # Errors
    /// `AlreadyExists`, or the system's.
    fn create_new(&self, path: &Path, mode: u32) -> io::Result<Box<dyn WritableFile>>;
    /// Reads a whole file.
    ///
    /// # Errors
    /// The system's.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Looks at a file, following links.
    ///
    /// # Errors
    /// `NotFound`, or the system's.
    fn facts(&self, path: &Path) -> io::Result<FileFacts>;
    /// Renames, replacing what is at `to` in one step.
    ///
    /// # Errors
    /// The system's.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives the file at `from` the second name `to`, which must not exist yet.
    ///
    /// # Errors
    /// The system's; some file systems know no second names.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound`, or the system's.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Waits until the directory's entries are on stable storage.
    ///
    /// # Errors
    /// The system's.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
}

/// The operating system's files.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFileSystem;

impl WritableFile for File {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        Write::write_all(self, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl FileSystem for RealFileSystem {
    fn create_new(&self, path: &Path, mode: u32) -> io::Result<Box<dyn WritableFile>> {
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        // The umask may have taken bits away.
        file.set_permissions(Permissions::from_mode(mode))?;
        Ok(Box::new(file))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn facts(&self, path: &Path) -> io::Result<FileFacts> {
        let metadata = std::fs::metadata(path)?;
        Ok(FileFacts {
            size_bytes: metadata.len(),
            mode: metadata.permissions().mode() & 0o7777,
            is_file: metadata.is_file(),
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}
