//! Control groups of version 2: a leaf a lease, where the system lets us make one.
//!
//! A process can't leave its cgroup by forking, `setsid` or an empty environment, so membership in a leaf that only ever
//! held one lease's tree is proof of where a process comes from, and `cgroup.kill` reaches all of it. Nothing here is
//! required: most machines give an unprivileged daemon no cgroup of its own. No controller is used. Source: the kernel's
//! `Documentation/admin-guide/cgroup-v2.rst`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use holdfast_protocol::ids::LeaseId;
use rustix::io::Errno;

/// The directory below our own cgroup that holds the leaves.
const DIRECTORY: &str = "holdfast";
/// There where systemd manages the cgroups. Source: sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";
/// Writing `1` kills all members. Since Linux 5.14.
const KILL_FILE: &str = "cgroup.kill";
/// Lists members; writing `0` moves the writer in.
const MEMBERS_FILE: &str = "cgroup.procs";

/// Why leases get no cgroups of their own.
#[derive(Debug, thiserror::Error)]
pub enum CgroupsUnavailable {
    /// There is no unified hierarchy, or this process is not in the part of it that is mounted.
    #[error("this process sees no cgroup of version 2 that it is in")]
    NoHierarchy,
    /// systemd manages our own cgroup and has not handed it over.
    #[error("systemd has not delegated {} (Delegate=yes in the unit does)", .0.display())]
    NotDelegated(PathBuf),
    /// The kernel is older than 5.14.
    #[error("the kernel has no {KILL_FILE}")]
    NoKill,
    /// Its own cgroup was not delegated to this process.
    #[error("failed to {action} {}: {source}", path.display())]
    Refused {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Where leaves are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups {
    directory: PathBuf,
}

impl Cgroups {
    /// Finds our own cgroup and makes the directory for leaves in it.
    ///
    /// # Errors
    /// [`CgroupsUnavailable`], which is how most machines are.
    pub fn find() -> Result<Self, CgroupsUnavailable> {
        let membership = Path::new("/proc/self/cgroup");
        let mounts = Path::new("/proc/self/mountinfo");
        let own = fs::read(membership).map_err(refused("read", membership))?;
        let mounted = fs::read(mounts).map_err(refused("read", mounts))?;
        let own = unified_path(&own).ok_or(CgroupsUnavailable::NoHierarchy)?;
        let own = own_directory(&mounted, &own).ok_or(CgroupsUnavailable::NoHierarchy)?;
        if Path::new(SYSTEMD).exists() && !is_delegated(&own) {
            return Err(CgroupsUnavailable::NotDelegated(own));
        }
        let directory = own.join(DIRECTORY);
        make_directory(&directory).map_err(refused("make", &directory))?;
        let cgroups = Self { directory };
        if !cgroups.directory.join(KILL_FILE).exists() {
            cgroups.tidy();
            return Err(CgroupsUnavailable::NoKill);
        }
        Ok(cgroups)
    }

    /// Returns the directory that a lease's leaf has, whether or not it is there.
    pub fn leaf(&self, lease_id: LeaseId) -> PathBuf {
        self.directory.join(lease_id.to_string())
    }

    /// Returns the leaves that are there. Other installs of this user may have some among them.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub fn leaves(&self) -> io::Result<Vec<(LeaseId, PathBuf)>> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut leaves = Vec::new();
        for entry in entries {
            let entry = entry?;
            if let Some(lease_id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                leaves.push((lease_id, entry.path()));
            }
        }
        Ok(leaves)
    }

    /// Removes the directory for leaves unless it has any.
    pub fn tidy(&self) {
        // Others may be using it, which is no fault.
        let _in_use = fs::remove_dir(&self.directory);
    }
}

/// systemd marks what it has handed over; in the rest of its tree nobody else may make cgroups. Source:
/// <https://systemd.io/CGROUP_DELEGATION>.
fn is_delegated(directory: &Path) -> bool {
    // Only root reads the first; the second is there since systemd 251.
    ["trusted.delegate", "user.delegate"].into_iter().any(|name| {
        let mut value = [0_u8; 2];
        matches!(rustix::fs::getxattr(directory, name, &mut value), Ok(1)) && value[0] == b'1'
    })
}

fn refused(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupsUnavailable {
    let path = path.to_owned();
    move |source| CgroupsUnavailable::Refused { action, path, source }
}

/// Says whether `path` can be the leaf of this lease. A stored path may be anything, and what is done to a leaf must never be
/// done to another cgroup.
pub fn is_leaf_of(path: &Path, lease_id: LeaseId) -> bool {
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let named = path.file_name() == Some(OsStr::new(&lease_id.to_string()));
    let placed = path.parent().and_then(Path::file_name) == Some(OsStr::new(DIRECTORY));
    path.is_absolute() && plain && named && placed
}

/// Returns the leases whose leaves are on a cgroup's path, the outermost first.
pub fn leases_on_path(path: &Path) -> Vec<LeaseId> {
    let parts: Vec<&OsStr> = path.components().map(Component::as_os_str).collect();
    let leaf = |pair: &[&OsStr]| match pair {
        [parent, name] if *parent == OsStr::new(DIRECTORY) => name.to_str().and_then(|name| name.parse().ok()),
        _ => None,
    };
    parts.windows(2).filter_map(leaf).collect()
}

/// Makes a leaf and returns the file through which a process joins it: it writes `0`.
///
/// # Errors
/// When the leaf can't be made or not be joined.
pub fn make_leaf(leaf: &Path) -> io::Result<File> {
    if let Some(parent) = leaf.parent() {
        make_directory(parent)?;
    }
    match fs::create_dir(leaf) {
        // Somebody tidied up between the two.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            leaf.parent().map_or(Ok(()), make_directory)?;
            fs::create_dir(leaf)?;
        }
        made => made?,
    }
    OpenOptions::new().write(true).open(leaf.join(MEMBERS_FILE)).inspect_err(|_refused| {
        // It is empty: nobody could join.
        let _left = fs::remove_dir(leaf);
    })
}

/// Returns the processes in a cgroup and below it; `None` when it is not there.
pub(super) fn members(directory: &Path) -> io::Result<Option<Vec<i32>>> {
    let listed = match fs::read_to_string(directory.join(MEMBERS_FILE)) {
        Ok(listed) => listed,
        Err(error) if has_gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    // Processes of other PID namespaces are listed as 0.
    let mut found: Vec<i32> =
        listed.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid > 0).collect();
    for below in children(directory)? {
        found.extend(members(&below)?.unwrap_or_default());
    }
    Ok(Some(found))
}

/// Kills everything in a cgroup and below it.
pub(super) fn kill(directory: &Path) -> io::Result<()> {
    match fs::write(directory.join(KILL_FILE), "1") {
        Err(error) if has_gone(&error) => Ok(()),
        written => written,
    }
}

/// Removes a cgroup and those below it, the deepest first.
pub(super) fn remove(directory: &Path) -> io::Result<()> {
    for below in children(directory)? {
        remove(&below)?;
    }
    match fs::remove_dir(directory) {
        Err(error) if has_gone(&error) => Ok(()),
        removed => removed,
    }
}

fn children(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if has_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// A cgroup that is removed while one of its files is open answers ENODEV.
fn has_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NODEV))
}

fn make_directory(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Returns the path in the unified hierarchy from the content of `/proc/PID/cgroup`: the line with the number 0 and without
/// controllers. Source: cgroups(7).
pub(super) fn unified_path(content: &[u8]) -> Option<PathBuf> {
    let path = content.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::"))?;
    Some(PathBuf::from(OsString::from_vec(path.to_vec())))
}

/// Returns where the cgroup `own` is in the file system, from the content of `/proc/self/mountinfo`. Source:
/// proc_pid_mountinfo(5).
fn own_directory(mounts: &[u8], own: &Path) -> Option<PathBuf> {
    mounts.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-")?;
        if fields.get(separator + 1) != Some(&&b"cgroup2"[..]) {
            return None;
        }
        let (root, place) = (unescape(fields.get(3)?), unescape(fields.get(4)?));
        let below = own.strip_prefix(&root).ok()?;
        Some(if below.as_os_str().is_empty() { place } else { place.join(below) })
    })
}

/// Blanks and the like are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| after.get(..3)).flatten();
        let number = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match number {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> LeaseId {
        "0199a3c2-0000-7000-8000-00000000000a".parse().unwrap()
    }

    #[test]
    fn our_cgroup_is_found_where_the_unified_hierarchy_is_mounted() {
        let own = |text: &str| unified_path(text.as_bytes());
        assert_eq!(own("9:name=systemd:/x\n0::/user.slice/a b\n"), Some("/user.slice/a b".into()));
        assert_eq!(own("9:pids:/x\n"), None);
        let hybrid = b"24 1 0:5 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            25 1 0:6 / /sys/fs/cgroup/unified rw shared:3 - cgroup2 cgroup2 rw\n";
        let found = |mounts: &[u8], own: &str| own_directory(mounts, Path::new(own));
        assert_eq!(found(hybrid, "/"), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(found(hybrid, "/a/b"), Some("/sys/fs/cgroup/unified/a/b".into()));
        // A container that sees only its own part.
        let part = b"25 1 0:6 /docker/7 /sys/fs\\040x/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(found(part, "/docker/7"), Some("/sys/fs x/cgroup".into()));
        assert_eq!(found(part, "/docker/8"), None);
        assert_eq!(found(b"24 1 0:5 / /x rw - cgroup cgroup rw,cpu\n", "/"), None);
    }

    #[test]
    fn only_the_leaf_of_the_lease_itself_is_taken_for_one() {
        let good = format!("/sys/fs/cgroup/user.slice/holdfast/{}", lease());
        assert!(is_leaf_of(Path::new(&good), lease()));
        for bad in [
            "/sys/fs/cgroup".to_owned(),
            "/sys/fs/cgroup/holdfast".to_owned(),
            format!("/sys/fs/cgroup/{}", lease()),
            format!("holdfast/{}", lease()),
            format!("/sys/fs/cgroup/x/../holdfast/{}", lease()),
            format!("/sys/fs/cgroup/holdfast/{}/..", lease()),
            good.replace("0a", "0b"),
        ] {
            assert!(!is_leaf_of(Path::new(&bad), lease()), "{bad}");
        }
        let nested = format!("/user.slice{}/holdfast/x/holdfast/{}", good, lease());
        assert_eq!(leases_on_path(Path::new(&nested)), [lease(), lease()]);
        assert!(leases_on_path(Path::new("/user.slice/holdfast")).is_empty());
    }
}
