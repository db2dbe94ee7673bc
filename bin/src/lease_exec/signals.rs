//! Signals as data: blocked, and read from a signalfd.

use std::fs::File;
use std::io::{self, Read};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};

use rustix::process::Signal;

/// What tells us that the thread that started us has ended. Nobody sends SIGPWR to a process group for other reasons, so
/// an adapter that signals its own group does not set it off; and it is only a hint to look at the parent.
pub(super) const PARENT_DEATH_SIGNAL: Signal = Signal::POWER;

/// Signals that are passed on to the group.
pub(super) const FORWARDED: [Signal; 3] = [Signal::TERM, Signal::INT, Signal::HUP];

/// Signals a fault of our own raises; blocking these would be undefined. Source: sigprocmask(2), notes.
const FAULTS: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT, libc::SIGTRAP, libc::SIGSYS];

/// One received signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    /// The signal's number.
    pub(super) number: i32,
    /// Who sent it; 0 for the kernel.
    pub(super) sender_pid: i32,
}

/// Reads what arrives for us.
pub(super) struct SignalReader {
    file: File,
}

impl SignalReader {
    /// Blocks every signal that can be blocked and reads those that matter.
    ///
    /// All are blocked, since the adapter shares our group: `kill -USR1 0` in it must not end the one who watches it.
    pub(super) fn install() -> io::Result<Self> {
        let mut mask = filled_set();
        for fault in FAULTS {
            // SAFETY: the set is initialised and the number valid.
            unsafe { libc::sigdelset(&raw mut mask, fault) };
        }
        // SAFETY: the set is initialised; the old mask is not wanted.
        check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const mask, std::ptr::null_mut()) })?;
        let mut wanted = empty_set();
        let numbers = FORWARDED.iter().chain([&Signal::CHILD, &PARENT_DEATH_SIGNAL]).map(|signal| signal.as_raw());
        for number in numbers {
            // SAFETY: the set is initialised and the number valid.
            unsafe { libc::sigaddset(&raw mut wanted, number) };
        }
        // SAFETY: the set is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const wanted, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        check(fd)?;
        // SAFETY: the descriptor is new and ours.
        Ok(Self { file: unsafe { File::from_raw_fd(fd) } })
    }

    /// Returns the next signal that has arrived, if any.
    pub(super) fn next(&self) -> Option<Received> {
        let mut buffer = [0_u8; size_of::<libc::signalfd_siginfo>()];
        let length = (&self.file).read(&mut buffer).ok()?;
        if length != buffer.len() {
            return None;
        }
        // SAFETY: the kernel filled the buffer with exactly one of these plain structs.
        let info = unsafe { buffer.as_ptr().cast::<libc::signalfd_siginfo>().read_unaligned() };
        Some(Received {
            number: i32::try_from(info.ssi_signo).ok()?,
            sender_pid: i32::try_from(info.ssi_pid).unwrap_or(0),
        })
    }
}

impl AsFd for SignalReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Unblocks everything: what a program expects to be started with. Async-signal-safe, for use between fork and exec.
pub(super) fn unblock_all() -> io::Result<()> {
    let mask = empty_set();
    // SAFETY: the set is initialised.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut()) })
}

/// Gives one signal its default action back and lets it through; others stay blocked.
pub(super) fn restore_default(number: i32) -> io::Result<()> {
    let mut mask = empty_set();
    // SAFETY: the set is initialised, no handler is installed, and an invalid number is refused.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::sigaddset(&raw mut mask, number);
        check(libc::sigprocmask(libc::SIG_UNBLOCK, &raw const mask, std::ptr::null_mut()))
    }
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn filled_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
