//! Tells local file systems from those that other machines may write.
//!
//! SQLite's write-ahead log needs shared memory between all users of a file, and our lock is a kernel lock of this machine;
//! neither reaches over a network.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Numbers of network file systems as `statfs` reports them. Sources: linux/magic.h, statfs(2), and the file systems' own
/// headers for those that live outside the kernel.
const NETWORK_MAGICS: &[(u32, &str)] = &[
    (0x0000_6969, "nfs"),
    (0x0000_517B, "smb"),
    (0xFF53_4D42, "cifs"),
    (0xFE53_4D42, "smb2"),
    (0x7375_7245, "coda"),
    (0x5346_414F, "afs"),
    (0x6B41_4653, "afs"),
    (0x0000_564C, "ncpfs"),
    (0x00C3_6400, "ceph"),
    (0x0102_1997, "9p"),
    (0x7461_636F, "ocfs2"),
    (0x0116_1970, "gfs2"),
    (0x0BD0_0BD0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x1983_0326, "beegfs"),
    (0xAAD7_AAEA, "panfs"),
    (0x786F_4256, "vboxsf"),
    (0xBACB_ACBC, "vmhgfs"),
];

/// FUSE has one number for all; only the name in the mount table tells a local one from a network one.
const FUSE_MAGIC: u32 = 0x6573_5546;

/// Names of FUSE file systems that are known to be backed by another machine.
const NETWORK_FUSE_TYPES: &[&str] = &[
    "fuse.sshfs",
    "fuse.rclone",
    "fuse.s3fs",
    "fuse.goofys",
    "fuse.gcsfuse",
    "fuse.blobfuse",
    "fuse.blobfuse2",
    "fuse.davfs",
    "fuse.davfs2",
    "fuse.curlftpfs",
    "fuse.glusterfs",
    "fuse.ceph",
    "fuse.ceph-fuse",
    "fuse.juicefs",
    "fuse.JuiceFS",
    "fuse.seaweedfs",
    "fuse.mount-s3",
    "fuse.mfs",
    "fuse.moosefs",
    "fuse.nfs",
    "fuse.smbnetfs",
    "fuse.afpfs",
    "fuse.gvfsd-fuse",
    "fuse.kio-fuse",
    "fuse.lizardfs",
    "fuse.vmhgfs-fuse",
    "fuse.google-drive-ocamlfuse",
    "fuse.onedriver",
];

/// Whether a file system is of this machine alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileSystemKind {
    /// Of this machine, as far as can be told.
    Local,
    /// Shared with other machines; the name it goes by.
    Network(String),
}

impl FileSystemKind {
    /// Looks up the file system that `path`, which exists, lies on.
    ///
    /// # Errors
    /// What `statfs` or `stat` fails with. An unreadable mount table counts as "no name known".
    pub fn of(path: &Path) -> io::Result<Self> {
        // The kernel's numbers are 32 bits; the field's width differs between architectures.
        let magic = rustix::fs::statfs(path)?.f_type as u32;
        if magic != FUSE_MAGIC {
            return Ok(classify_file_system(magic, None));
        }
        let device = std::fs::metadata(path)?.dev();
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Ok(classify_file_system(magic, mount_type(&table, device)))
    }
}

/// Decides by the number of `statfs` and, for FUSE, by the type in the mount table.
pub fn classify_file_system(magic: u32, mount_type: Option<&str>) -> FileSystemKind {
    if let Some((_, name)) = NETWORK_MAGICS.iter().find(|(number, _)| *number == magic) {
        return FileSystemKind::Network((*name).to_owned());
    }
    match mount_type {
        Some(name) if magic == FUSE_MAGIC && NETWORK_FUSE_TYPES.contains(&name) => {
            FileSystemKind::Network(name.to_owned())
        }
        _ => FileSystemKind::Local,
    }
}

/// Finds the type of the file system on `device` in the text of `/proc/self/mountinfo` (proc_pid_mountinfo(5)): the third
/// field is `major:minor`, the type follows the `-`.
fn mount_type(table: &str, device: u64) -> Option<&str> {
    let wanted = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    table
        .lines()
        .filter(|line| line.split(' ').nth(2) == Some(wanted.as_str()))
        .find_map(|line| line.split_once(" - ")?.1.split(' ').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_told_from_local_ones() {
        let network = |name: &str| FileSystemKind::Network(name.to_owned());
        for (magic, mount_type, expected) in [
            (0x6969, None, network("nfs")),
            (0xFF53_4D42, None, network("cifs")),
            (0xFE53_4D42, None, network("smb2")),
            (0x0102_1997, None, network("9p")),
            (0xEF53, None, FileSystemKind::Local),
            (0x9123_683E, None, FileSystemKind::Local),
            (0x0102_1994, None, FileSystemKind::Local),
            (0x794C_7630, None, FileSystemKind::Local),
            (FUSE_MAGIC, Some("fuse.sshfs"), network("fuse.sshfs")),
            (FUSE_MAGIC, Some("fuseblk"), FileSystemKind::Local),
            (FUSE_MAGIC, Some("virtiofs"), FileSystemKind::Local),
            (FUSE_MAGIC, None, FileSystemKind::Local),
        ] {
            assert_eq!(classify_file_system(magic, mount_type), expected, "{magic:#x} {mount_type:?}");
        }
    }

    #[test]
    fn the_mount_table_is_read_by_device() {
        let table = "36 35 98:0 / / rw,noatime master:1 - ext4 /dev/root rw\n\
                     41 36 0:52 / /home/u/remote rw,nosuid - fuse.sshfs host:/srv rw\n";
        assert_eq!(mount_type(table, rustix::fs::makedev(0, 52)), Some("fuse.sshfs"));
        assert_eq!(mount_type(table, rustix::fs::makedev(98, 0)), Some("ext4"));
        assert_eq!(mount_type(table, rustix::fs::makedev(9, 9)), None);
    }

    #[test]
    fn the_temporary_directory_is_local() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(FileSystemKind::of(directory.path()).unwrap(), FileSystemKind::Local);
    }
}
