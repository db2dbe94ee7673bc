//! Where the socket is, and what may be in its place.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};

use super::super::BindError;
use super::*;

fn socket_in(directory: &TempDir) -> PathBuf {
    directory.path().join("holdfast.sock")
}

#[test]
fn the_file_is_for_its_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = socket_in(&directory);
    let bound = bind(&path).unwrap();
    let metadata = std::fs::symlink_metadata(&path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    bound.remove_file();
    assert!(!path.exists());
}

#[test]
fn the_file_is_for_its_owner_only_whatever_the_umask() {
    // A umask belongs to a whole process, so the test above runs again in others.
    for umask in ["000", "022", "077"] {
        let outcome = std::process::Command::new("/bin/sh")
            .args(["-c", "umask $1 && exec \"$0\" --exact socket::tests::place::the_file_is_for_its_owner_only"])
            .arg(std::env::current_exe().unwrap())
            .arg(umask)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&outcome.stdout);
        assert!(outcome.status.success() && text.contains("1 passed"), "umask {umask}: {text}");
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = socket_in(&directory);
    // Closed without being removed, as a killed daemon leaves it.
    drop(UnixListener::bind(&path).unwrap());
    assert_eq!(connect(&path).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    let bound = bind(&path).unwrap();
    connect(&path).unwrap();
    let error = bind(&path).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
    connect(&path).unwrap();
    drop(bound);
}

#[test]
fn what_is_no_socket_is_left_alone_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = socket_in(&directory);
    let target = directory.path().join("target");
    std::fs::write(&target, "of somebody else").unwrap();
    let place: [(&str, &dyn Fn()); 4] = [
        ("regular file", &|| std::fs::write(&path, "text").unwrap()),
        ("directory", &|| std::fs::create_dir(&path).unwrap()),
        ("symbolic link", &|| std::os::unix::fs::symlink(&target, &path).unwrap()),
        ("symbolic link", &|| std::os::unix::fs::symlink("nowhere", &path).unwrap()),
    ];
    for (found, make) in place {
        make();
        let before = std::fs::symlink_metadata(&path).unwrap();
        let error = bind(&path).unwrap_err();
        assert!(matches!(error, BindError::Occupied { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(found) && text.contains(path.to_str().unwrap()), "{text}");
        let after = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!((before.file_type(), before.len()), (after.file_type(), after.len()));
        if before.is_dir() { std::fs::remove_dir(&path).unwrap() } else { std::fs::remove_file(&path).unwrap() }
    }
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "of somebody else");
    let datagram = UnixDatagram::bind(&path).unwrap();
    assert!(matches!(bind(&path).unwrap_err(), BindError::Occupied { .. }));
    drop(datagram);
}

#[test]
fn a_missing_directory_is_an_error_with_the_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("missing").join("holdfast.sock");
    let error = bind(&path).unwrap_err();
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    assert_eq!(connect(&path).unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[cfg(target_os = "linux")]
#[test]
fn a_path_over_the_kernels_limit_works_at_both_ends() {
    let directory = tempfile::tempdir().unwrap();
    // Directories that make the socket's path as long as wanted.
    let short_bytes = directory.path().as_os_str().len() + "//holdfast.sock".len();
    // Right at the limit, one byte over, and far over.
    for path_bytes in [107, 108, 250] {
        let base = directory.path().join("d".repeat(path_bytes - short_bytes));
        std::fs::create_dir(&base).unwrap();
        let path = base.join("holdfast.sock");
        assert_eq!(path.as_os_str().len(), path_bytes);
        // Stale first, since finding that out goes through the long path as well.
        drop(bind(&path).unwrap());
        let bound = bind(&path).unwrap();
        connect(&path).unwrap();
        assert!(matches!(bind(&path), Err(BindError::InUse { .. })));
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        bound.remove_file();
        assert!(!path.exists());
    }
}
