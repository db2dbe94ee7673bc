//! One line of `/proc/PID/stat`, and parentage among many of them.

use std::collections::{HashMap, HashSet};

/// What `/proc/PID/stat` says about a process. Source: proc_pid_stat(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStat {
    /// Field 1: the process id.
    pub pid: i32,
    /// Field 3: the state letter (`R`, `S`, `D`, `Z`, `T`, ...).
    pub state: char,
    /// Field 4: the parent's process id; 0 where the parent is outside our PID namespace.
    pub parent_pid: i32,
    /// Field 5: the process group.
    pub process_group_id: i32,
    /// Field 6: the session.
    pub session_id: i32,
    /// Field 22: start time after boot, in clock ticks (100 a second on Linux).
    pub start_ticks: u64,
}

impl ProcessStat {
    /// Parses the file's content; `None` when it does not have the documented form.
    ///
    /// The command name in parentheses may hold blanks and parentheses itself, so fields are counted from the last `)`.
    pub fn parse(content: &str) -> Option<Self> {
        let open = content.find('(')?;
        let close = content.rfind(')')?;
        let pid = content.get(..open)?.trim().parse().ok()?;
        let mut fields = content.get(close + 1..)?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent_pid = fields.next()?.parse().ok()?;
        let process_group_id = fields.next()?.parse().ok()?;
        let session_id = fields.next()?.parse().ok()?;
        // Fields 7 to 21 are of no interest here.
        let start_ticks = fields.nth(15)?.parse().ok()?;
        Some(Self { pid, state, parent_pid, process_group_id, session_id, start_ticks })
    }

    /// Says whether the process has ended and only waits to be reaped (or is being removed).
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Returns the pids of all descendants of `root` by parentage with their depth below it, deepest first.
///
/// `root` itself is not among them. A subreaper's adopted orphans are its children, so they are found as well.
pub fn descendants_of(root: i32, processes: &[ProcessStat]) -> Vec<(i32, u32)> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for process in processes {
        children.entry(process.parent_pid).or_default().push(process.pid);
    }
    let mut found = Vec::new();
    // A list read while processes come and go may be inconsistent; never visit a pid twice.
    let mut seen = HashSet::from([root]);
    let mut level = vec![root];
    let mut depth = 0;
    while !level.is_empty() {
        depth += 1;
        let next: Vec<i32> = level
            .iter()
            .flat_map(|pid| children.get(pid).into_iter().flatten())
            .copied()
            .filter(|pid| seen.insert(*pid))
            .collect();
        found.extend(next.iter().map(|pid| (*pid, depth)));
        level = next;
    }
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_may_hold_blanks_and_parentheses() {
        let line = "4242 (a) R (b c) S 17 4242 4240 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 2 3\n";
        let stat = ProcessStat::parse(line).unwrap();
        let expected = ProcessStat {
            pid: 4242,
            state: 'S',
            parent_pid: 17,
            process_group_id: 4242,
            session_id: 4240,
            start_ticks: 987_654,
        };
        assert_eq!(stat, expected);
    }

    #[test]
    fn a_broken_line_is_refused_not_guessed() {
        for bad in ["", "1", "1 (x", "1 (x) S", "x (y) S 1 1 1", "1 (x) S 1 1 1 0 0 0"] {
            assert_eq!(ProcessStat::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn descendants_are_listed_deepest_first_and_loops_end() {
        let process = |pid, parent_pid| ProcessStat {
            pid,
            state: 'S',
            parent_pid,
            process_group_id: 1,
            session_id: 1,
            start_ticks: 1,
        };
        let list = [process(10, 1), process(11, 10), process(12, 11), process(13, 10), process(20, 1), process(10, 12)];
        assert_eq!(descendants_of(10, &list), [(12, 2), (13, 1), (11, 1)]);
    }
}
