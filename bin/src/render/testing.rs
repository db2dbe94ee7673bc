//! Helpers of tests: what a reader sits at, and what it sees.

use std::io::{self, Write};
use std::sync::mpsc;

use jiff::tz::TimeZone;

use super::*;

/// A sink that hands over what was written through a channel.
pub(crate) struct Sink(pub(crate) mpsc::Sender<Vec<u8>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes.to_vec()).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a reader sits at.
pub(crate) fn surroundings(width: Option<usize>) -> Surroundings {
    Surroundings {
        stdout_is_terminal: width.is_some(),
        stderr_is_terminal: width.is_some(),
        is_one_place: width.is_some(),
        width,
        plain: false,
        now_ms: 1_796_068_800_000, // 2026-11-30T20:00:00Z
        zone: TimeZone::fixed(jiff::tz::offset(1)),
    }
}

/// Runs `command` and returns both streams and the exit code, as a shell session would show them.
pub(crate) fn shown(
    format: Format,
    colour: ColorChoice,
    surroundings: Surroundings,
    command: impl FnOnce(&mut Renderer) -> Result<Exit, Failure>,
) -> String {
    let (out, out_read) = mpsc::channel();
    let (err, err_read) = mpsc::channel();
    let mut renderer = Renderer::new(Box::new(Sink(out)), Box::new(Sink(err)), format, colour, surroundings);
    let exit = match command(&mut renderer) {
        Ok(exit) => exit,
        Err(failure) => renderer.failure(&failure),
    };
    drop(renderer);
    let text = |read: mpsc::Receiver<Vec<u8>>| String::from_utf8(read.iter().flatten().collect()).unwrap();
    format!("{}--- stderr\n{}--- exit {}\n", text(out_read), text(err_read), exit.code())
}
