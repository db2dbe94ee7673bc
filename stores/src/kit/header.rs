//! What can be said about a database file before SQLite sees it.
//!
//! SQLite makes a new database out of an empty file and reports a cut file only when a query needs a page beyond the
//! end, so both are caught here. Source: sqlite.org/fileformat2.html, section 1.3.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::error::OpenError;

const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// What lies at a database's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Missing,
    /// A file of 0 bytes.
    Empty,
    /// A file with a sound header.
    Database {
        /// Whether it is in WAL mode, as all of ours are while in use.
        write_ahead: bool,
    },
}

/// Looks at the file. `has_log` says that a write-ahead log lies beside it, from which SQLite may mend the size.
///
/// Reads through a plain descriptor, whose closing drops SQLite's locks on the same file: only for a file that no
/// connection of this process is using.
///
/// # Errors
/// [`OpenError::Damaged`], [`OpenError::NotAFile`], or [`OpenError::FileSystem`].
pub fn inspect(path: &Path, has_log: bool) -> Result<Found, OpenError> {
    let failed = |action| move |source| OpenError::FileSystem { path: path.to_owned(), action, source };
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Missing),
        Err(error) => return Err(failed("look at")(error)),
    };
    let kind = metadata.file_type();
    if !kind.is_file() {
        let found = if kind.is_dir() {
            "a directory"
        } else if kind.is_socket() {
            "a socket"
        } else if kind.is_fifo() {
            "a pipe"
        } else {
            "a device"
        };
        return Err(OpenError::NotAFile { path: path.to_owned(), found });
    }
    if metadata.len() == 0 {
        return Ok(Found::Empty);
    }
    let mut bytes = Vec::with_capacity(100);
    File::open(path).and_then(|file| file.take(100).read_to_end(&mut bytes)).map_err(failed("read the header of"))?;
    check(&bytes, metadata.len(), has_log)
        // Bytes 18 and 19 are 2 in WAL mode.
        .map(|()| Found::Database { write_ahead: bytes.get(18..20) == Some(&[2, 2]) })
        .map_err(|problem| OpenError::Damaged { path: path.to_owned(), problem })
}

/// Checks the first 100 bytes against the size of the file.
fn check(header: &[u8], size_bytes: u64, has_log: bool) -> Result<(), String> {
    let Some((magic, rest)) = header.split_first_chunk::<16>() else {
        return Err(format!("it has {size_bytes} bytes, less than a header"));
    };
    if magic != MAGIC {
        return Err("it does not begin with the header of an SQLite database".to_owned());
    }
    if header.len() < 100 {
        return Err(format!("it has {size_bytes} bytes, less than a header"));
    }
    let page_bytes = match rest {
        // The value 1 stands for 65 536, which does not fit the field.
        [0, 1, ..] => 65_536,
        [high, low, ..] => u64::from(u16::from_be_bytes([*high, *low])),
        _ => 0,
    };
    if !(512..=65_536).contains(&page_bytes) || !page_bytes.is_power_of_two() {
        return Err(format!("its header names the impossible page size {page_bytes}"));
    }
    if size_bytes < page_bytes {
        return Err(format!("it has {size_bytes} bytes, less than one page of {page_bytes}"));
    }
    if has_log {
        return Ok(());
    }
    if !size_bytes.is_multiple_of(page_bytes) {
        return Err(format!("it was cut: {size_bytes} bytes are no whole number of pages of {page_bytes}"));
    }
    let word = |at: usize| header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    // The page count is valid only if the change counter equals the version-valid-for number.
    if word(24) == word(92)
        && let Some(pages) = word(28)
        && pages != 0
        && size_bytes / page_bytes < u64::from(pages)
    {
        return Err(format!("it was cut: it has {} pages of {pages}", size_bytes / page_bytes));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(page_bytes: u16, pages: u32) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16..18].copy_from_slice(&page_bytes.to_be_bytes());
        bytes[28..32].copy_from_slice(&pages.to_be_bytes());
        bytes
    }

    #[test]
    fn sizes_that_fit_the_header_pass() {
        assert_eq!(check(&header(4096, 2), 8192, false), Ok(()));
        assert_eq!(check(&header(1, 1), 65_536, false), Ok(()));
        assert_eq!(check(&header(4096, 2), 12_288, false), Ok(()), "a longer file is no damage to SQLite");
    }

    #[test]
    fn sizes_that_do_not_fit_the_header_are_refused() {
        for (bytes, size) in [
            (header(4096, 2), 4096),
            (header(4096, 2), 1000),
            (header(4096, 1), 4097),
            (header(1000, 1), 4000),
            (header(0, 1), 4096),
            (header(4096, 1)[..50].to_vec(), 50),
            (vec![0; 100], 4096),
        ] {
            assert!(check(&bytes, size, false).is_err(), "{size} bytes passed");
        }
    }

    #[test]
    fn a_log_may_hold_what_the_file_lacks() {
        assert_eq!(check(&header(4096, 9), 4096, true), Ok(()));
        assert!(check(&[0; 100], 4096, true).is_err());
    }
}
