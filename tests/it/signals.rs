//! What signals do to a daemon. None that the documentation names ends it by its default action.

use std::fs;
use std::time::Duration;

use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::Status;
use holdfast_tests::daemon::TestDaemon;
use holdfast_tests::eventually::{PATIENCE, eventually};
use rustix::process::Signal;

fn generation(daemon: &TestDaemon) -> u64 {
    daemon.client().call::<Status>(&Empty {}).unwrap().generation
}

#[test]
fn hup_reloads_and_a_bad_file_changes_nothing() {
    let daemon = TestDaemon::start();
    let pid = daemon.pid();
    daemon.signal(Signal::HUP);
    eventually(PATIENCE, || generation(&daemon), |generation| *generation == 2);

    let good = fs::read_to_string(daemon.root.config_file()).unwrap();
    fs::write(daemon.root.config_file(), "port = = 1\n").unwrap();
    daemon.signal(Signal::HUP);
    eventually(PATIENCE, || daemon.stderr(), |said| said.contains("reload refused") && said.contains("line 1"));
    assert_eq!(generation(&daemon), 2);

    fs::write(daemon.root.config_file(), good).unwrap();
    daemon.signal(Signal::HUP);
    eventually(PATIENCE, || generation(&daemon), |generation| *generation == 3);
    assert_eq!(daemon.client().call::<Status>(&Empty {}).unwrap().pid, pid);
}

#[test]
fn usr1_tells_and_usr2_and_pipe_do_nothing() {
    let mut daemon = TestDaemon::start();
    for signal in [Signal::USR2, Signal::PIPE, Signal::USR1] {
        daemon.signal(signal);
    }
    let trace = || fs::read_to_string(daemon.root.trace_file()).unwrap();
    eventually(PATIENCE, trace, |text| {
        text.contains("\"name\":\"control-plane\"") && text.contains("\"state\":\"up\"")
    });
    assert_eq!(generation(&daemon), 1);
    assert!(daemon.is_running());
}

#[test]
fn term_and_int_end_it_in_order() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = TestDaemon::start();
        let client = daemon.client();
        daemon.signal(signal);
        let status = daemon.wait();
        assert!(status.success(), "{status}");
        drop(client);
        assert!(!daemon.root.socket().exists());
        let data = fs::read_dir(daemon.root.data_dir()).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = data.filter(|name| name.to_string_lossy().ends_with("-wal")).collect();
        assert!(left.is_empty(), "stores were not closed: {left:?}");
    }
}

#[test]
fn a_term_during_the_start_ends_it_too() {
    let daemon = TestDaemon::start();
    drop(daemon);
    let daemon = TestDaemon::prepare(Default::default());
    for pause_ms in [0, 1, 2, 5, 10, 20, 40, 80] {
        let mut child = daemon.command().stdout(std::process::Stdio::null()).spawn().unwrap();
        // The moment is what is tested: before, in and after the start.
        std::thread::sleep(Duration::from_millis(pause_ms));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut child = daemon.command().stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(pause_ms));
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        eventually(PATIENCE, || child.try_wait().unwrap(), Option::is_some);
    }
}
