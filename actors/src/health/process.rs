//! What the operating system says of this process. Source: proc_pid_status(5), proc_pid_fd(5), getrlimit(2).

use holdfast_protocol::health::ProcessFacts;

/// Returns what is known of this process now; what the system does not tell is absent.
pub fn process_facts() -> ProcessFacts {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let (resident_bytes, threads) = read_status(&status);
    // One of them is the directory being read.
    let open_files = std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count().saturating_sub(1) as u64);
    let open_files_limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    ProcessFacts { pid: std::process::id(), resident_bytes, threads, open_files, open_files_limit }
}

/// Reads `VmRSS` (kilobytes) and `Threads`.
fn read_status(status: &str) -> (Option<u64>, Option<u64>) {
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    (field("VmRSS").map(|kilobytes| kilobytes * 1024), field("Threads"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_file_is_read() {
        let status = "Name:\tholdfast\nVmRSS:\t   12345 kB\nThreads:\t7\n";
        assert_eq!(read_status(status), (Some(12345 * 1024), Some(7)));
        assert_eq!(read_status("Name:\tx\nVmRSSx:\t1 kB\n"), (None, None));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_memory_threads_and_files() {
        let facts = process_facts();
        assert_eq!(facts.pid, std::process::id());
        assert!(facts.resident_bytes.unwrap() > 100_000);
        assert!(facts.threads.unwrap() >= 1);
        assert!(facts.open_files.unwrap() >= 3);
    }
}
