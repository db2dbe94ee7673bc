//! The benchmarks: each figure beside a raw baseline of the same run, since absolute figures drift with the machine.
//!
//! Variants take turns, and the median of the rounds is what counts.

mod acp;
mod append;
mod daemon;
mod raw;
mod report;
mod scale;
mod socket;
mod stuck;

pub use report::{Row, print_table};

/// How thorough a run is.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rounds a variant.
    pub rounds: usize,
    /// How long one round of a throughput lasts, milliseconds.
    pub round_ms: u64,
    /// Only rows whose name contains this.
    pub only: Option<String>,
}

impl Options {
    /// Says whether a group of rows is wanted.
    fn wants(&self, group: &str) -> bool {
        self.only.as_ref().is_none_or(|only| group.contains(only.as_str()))
    }
}

/// Measures some rows that belong together.
type Group = fn(&Options) -> Vec<Row>;

/// Runs the benchmarks and hands each row to `emit` as soon as it is known.
pub fn run(options: &Options, mut emit: impl FnMut(Row)) {
    let groups: [(&str, Group); 7] = [
        ("append", append::rows),
        ("socket", socket::rows),
        ("scale", scale::rows),
        ("stuck", stuck::rows),
        ("daemon", daemon::rows),
        ("acp", acp::rows),
        ("command line", daemon::command_line_rows),
    ];
    for (group, rows) in groups {
        if options.wants(group) {
            rows(options).into_iter().for_each(&mut emit);
        }
    }
}

/// Reads a number from `/proc/PID/status`, whose sizes are kilobytes (proc(5)).
fn status_field(pid: u32, field: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the median.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the value below which the given share of the sorted values lies.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = ((last as f64) * share).round() as usize;
    sorted.get(at.min(last)).copied().unwrap_or(f64::NAN)
}

/// Returns this process's CPU time, user and system, in microseconds.
fn cpu_us() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a rusage of ours, which the call fills; zeroes are a valid rusage if it does not.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}
