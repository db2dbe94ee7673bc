//! Which processes carry a mark in their environment: the way to prove that none is left.

use std::fs;

/// Returns the ids of the processes whose environment holds `variable=value`, zombies not counted (their environment is
/// gone).
pub fn with_environment(variable: &str, value: &str) -> Vec<i32> {
    let wanted = format!("{variable}={value}");
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            // Processes of others can't be read, and are not ours.
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
        })
        .collect()
}

/// Returns the command line of a process, for messages.
pub fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// Returns the parent of a process, if it lives.
pub fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name comes before and may hold anything; state and parent follow it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Returns how much memory a process has in use, in bytes; 0 when it is gone.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Returns how many descriptors the process has open on `path` or a file beside it that begins with its name (`-wal`,
/// `-shm`).
pub fn open_files_at(pid: u32, path: &std::path::Path) -> usize {
    let wanted = path.to_string_lossy().into_owned();
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    entries
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with(&wanted))
        .count()
}
