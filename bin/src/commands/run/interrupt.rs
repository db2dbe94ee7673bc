//! Ctrl-C: the first one is an event, the second one ends the program at once.

use std::io::{self, PipeReader, Read};
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;

use super::wire::Event;
use crate::render::Exit;

/// Where the handler writes; a signal handler can reach nothing but a static. -1: no handler, -2: was used.
static PIPE: AtomicI32 = AtomicI32::new(NOT_SET);
const NOT_SET: i32 = -1;
const USED: i32 = -2;

/// Turns the first SIGINT, SIGTERM or SIGHUP from now on into an [`Event::Interrupt`].
///
/// # Errors
/// When the system gives no pipe or no handler.
pub(super) fn install(sender: SyncSender<Event>) -> io::Result<()> {
    let (reader, writer) = io::pipe()?;
    PIPE.store(writer.into_raw_fd(), Ordering::SeqCst);
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only does what signal-safety(7) allows: an atomic swap, write(2) and _exit(2).
        let before = unsafe { libc::signal(number, handle as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        if before == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    thread::spawn(move || pass_on(reader, &sender));
    Ok(())
}

extern "C" fn handle(_number: libc::c_int) {
    let pipe = PIPE.swap(USED, Ordering::SeqCst);
    // SAFETY: write(2) reads one byte that lives for ever, _exit(2) does not return; both may be called here.
    unsafe {
        if pipe < 0 || libc::write(pipe, b"!".as_ptr().cast(), 1) != 1 {
            libc::_exit(i32::from(Exit::Interrupted.code()));
        }
    }
}

fn pass_on(mut reader: PipeReader, sender: &SyncSender<Event>) {
    let mut byte = [0];
    if reader.read_exact(&mut byte).is_ok() {
        // The program is on its way out if nobody listens.
        let _gone = sender.send(Event::Interrupt);
    }
}
