//! First starts: many at once, each whole.

use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::daemon::{Status, SurfaceState};
use holdfast_tests::daemon::TestDaemon;

/// Roots in all, and at a time.
const ROOTS: usize = 100;
const AT_A_TIME: usize = 10;

#[test]
fn a_hundred_fresh_roots_come_up_whole_ten_at_a_time() {
    let start = |_| {
        let daemon = TestDaemon::start();
        assert_eq!(daemon.ready().down, Vec::<String>::new(), "{}", daemon.stderr());
        let status = daemon.client().call::<Status>(&Empty {}).unwrap();
        for surface in &status.surfaces {
            assert_eq!(surface.state, SurfaceState::Up, "{}: {:?}", surface.name, surface.reason);
        }
        assert!(daemon.root.control_plane_database().metadata().unwrap().len() > 0);
        status.instance_id
    };
    let mut instances: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_A_TIME)
            .map(|_| scope.spawn(move || (0..ROOTS / AT_A_TIME).map(start).collect::<Vec<_>>()))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    instances.sort();
    instances.dedup();
    assert_eq!(instances.len(), ROOTS, "every root is an install of its own");
}
