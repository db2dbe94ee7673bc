//! Where text leaves the program.

use std::io::{self, BufWriter, IsTerminal, Write};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

use super::exit::Exit;
use super::failure::{Failure, Fault};
use super::listing::{Cell, Human, Listing, exact};
use super::style::{ColorChoice, Tone};
use super::table::layout;
use super::text::{clean, clean_lines, display_width, push_padded};
use super::time;

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// For people: aligned columns, short ids, local times. Not a contract.
    #[default]
    Table,
    /// One JSON document. A contract.
    Json,
    /// One JSON record a line. A contract.
    Jsonl,
    /// Tab separated values under a line of titles. A contract.
    Tsv,
}

/// What the program stands in: terminal, environment, time. Passed in, so that tests need no terminal.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Whether standard output is a terminal.
    pub stdout_is_terminal: bool,
    /// Whether standard error is a terminal.
    pub stderr_is_terminal: bool,
    /// Whether both streams go to one place, as with `2>&1`, so that their lines stand below each other.
    pub is_one_place: bool,
    /// The terminal's width in columns, where there is one.
    pub width: Option<usize>,
    /// Whether the environment forbids colours: `NO_COLOR` set to anything but nothing, or `TERM=dumb`.
    pub plain: bool,
    /// The present, UTC milliseconds.
    pub now_ms: i64,
    /// The user's time zone.
    pub zone: TimeZone,
}

impl Surroundings {
    /// Looks around. Sources: <https://no-color.org>, `TIOCGWINSZ` in tty_ioctl(4), `TZ` and the system's zone.
    pub fn look() -> Self {
        let stdout = io::stdout();
        let stdout_is_terminal = stdout.is_terminal();
        let width = stdout_is_terminal
            .then(|| rustix::termios::tcgetwinsize(&stdout).ok())
            .flatten()
            .map(|size| usize::from(size.ws_col))
            .filter(|columns| *columns > 0);
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self {
            stdout_is_terminal,
            stderr_is_terminal: io::stderr().is_terminal(),
            is_one_place: is_one_place(),
            width,
            plain: no_color || dumb,
            now_ms: Timestamp::now().as_millisecond(),
            zone: TimeZone::system(),
        }
    }

    fn colours(&self, choice: ColorChoice, is_terminal: bool) -> bool {
        match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => is_terminal && !self.plain,
        }
    }
}

/// Writes answers to standard output and the conversation to standard error.
///
/// Every method that writes the answer fails with [`Failure::PipeClosed`] when the reader has gone; passing that on with
/// `?` ends the command quietly. What can't be written to standard error is dropped: there is nowhere left to say so.
pub struct Renderer {
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    format: Format,
    surroundings: Surroundings,
    out_colours: bool,
    err_colours: bool,
}

impl Renderer {
    /// Makes a renderer on the process's own standard streams.
    pub fn standard(format: Format, colour: ColorChoice) -> Self {
        Self::new(Box::new(BufWriter::new(io::stdout())), Box::new(io::stderr()), format, colour, Surroundings::look())
    }

    /// Makes a renderer on any two sinks.
    pub fn new(
        out: Box<dyn Write + Send>,
        err: Box<dyn Write + Send>,
        format: Format,
        colour: ColorChoice,
        surroundings: Surroundings,
    ) -> Self {
        let out_colours = surroundings.colours(colour, surroundings.stdout_is_terminal);
        let err_colours = surroundings.colours(colour, surroundings.stderr_is_terminal);
        Self { out, err, format, surroundings, out_colours, err_colours }
    }

    /// Returns the format asked for.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Says whether the answer goes to a program rather than to a person.
    pub fn is_for_programs(&self) -> bool {
        self.format != Format::Table
    }

    /// Returns what the program stands in.
    pub fn surroundings(&self) -> &Surroundings {
        &self.surroundings
    }

    /// Returns an instant as a person would say it now.
    pub fn near(&self, at_ms: i64) -> String {
        time::near(at_ms, self.surroundings.now_ms, &self.surroundings.zone)
    }

    /// Writes a listing in the format asked for.
    ///
    /// # Errors
    /// [`Failure`] when standard output can't be written.
    pub fn listing(&mut self, listing: &Listing) -> Result<(), Failure> {
        match self.format {
            Format::Table if listing.is_empty() => self.note(listing.empty_note()),
            Format::Table => {
                let human = Human { now_ms: self.surroundings.now_ms, zone: &self.surroundings.zone };
                let (columns, rows) = listing.to_table(&human);
                let text = layout(&columns, &rows, self.surroundings.width, self.out_colours);
                self.write(text.as_bytes())?;
            }
            Format::Json => self.document(&listing.records())?,
            Format::Jsonl => {
                for record in listing.records() {
                    self.write(record.get().as_bytes())?;
                    self.write(b"\n")?;
                }
            }
            Format::Tsv => self.write(listing.to_tsv().as_bytes())?,
        }
        self.flush()
    }

    /// Writes what is known of one thing: a line a fact for people (unknown ones left out), the whole record for programs.
    ///
    /// # Errors
    /// [`Failure`] when the record is no JSON or standard output can't be written.
    pub fn record(&mut self, facts: &[(&str, Cell)], record: &impl Serialize) -> Result<(), Failure> {
        match self.format {
            Format::Json | Format::Jsonl => return self.value(record),
            Format::Tsv => {
                for (label, cell) in facts {
                    self.write(format!("{label}\t{}\n", exact(cell)).as_bytes())?;
                }
            }
            Format::Table => {
                let human = Human { now_ms: self.surroundings.now_ms, zone: &self.surroundings.zone };
                let width = facts.iter().map(|(label, _)| display_width(label)).max().unwrap_or(0);
                let mut text = String::new();
                for (label, cell) in facts.iter().filter(|(_, cell)| !matches!(cell, Cell::Missing)) {
                    let shown = human.cell(cell);
                    let mut padded = String::new();
                    push_padded(&mut padded, label, width + 2, false);
                    Tone::Dim.push(&mut text, &padded, self.out_colours);
                    shown.tone.push(&mut text, &clean(&shown.text), self.out_colours);
                    text.push('\n');
                }
                self.write(text.as_bytes())?;
            }
        }
        self.flush()
    }

    /// Writes one value: a document with `--json`, one line with `jsonl` and `tsv`.
    ///
    /// # Errors
    /// [`Failure`] when the value is no JSON or standard output can't be written.
    pub fn value(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        match self.format {
            Format::Table | Format::Json => self.document(value),
            Format::Jsonl | Format::Tsv => self.json_line(value),
        }
    }

    /// Writes one value as one line of JSON, whatever the format: for streams.
    ///
    /// # Errors
    /// [`Failure`] when the value is no JSON or standard output can't be written.
    pub fn json_line(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(value).map_err(|error| not_json(&error))?;
        line.push(b'\n');
        self.write(&line)?;
        self.flush()
    }

    /// Writes a line for people.
    ///
    /// # Errors
    /// [`Failure`] when standard output can't be written.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.toned_line(&[(text, Tone::Plain)])
    }

    /// Writes a line of pieces, each in its tone.
    ///
    /// # Errors
    /// [`Failure`] when standard output can't be written.
    pub fn toned_line(&mut self, pieces: &[(&str, Tone)]) -> Result<(), Failure> {
        let mut line = String::new();
        for (text, tone) in pieces {
            tone.push(&mut line, &clean(text), self.out_colours);
        }
        line.push('\n');
        self.write(line.as_bytes())?;
        self.flush()
    }

    /// Writes streamed text as it comes, line breaks kept, and nothing added.
    ///
    /// # Errors
    /// [`Failure`] when standard output can't be written.
    pub fn stream(&mut self, text: &str, tone: Tone) -> Result<(), Failure> {
        let mut toned = String::new();
        tone.push(&mut toned, &clean_lines(text), self.out_colours);
        self.write(toned.as_bytes())?;
        self.flush()
    }

    /// Writes bytes exactly as they are: completions, generated pages.
    ///
    /// # Errors
    /// [`Failure`] when standard output can't be written.
    pub fn verbatim(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.write(bytes)?;
        self.flush()
    }

    /// Tells the person something that is not the answer, on standard error.
    pub fn note(&mut self, text: &str) {
        let mut line = String::new();
        Tone::Dim.push(&mut line, &clean(text), self.err_colours);
        line.push('\n');
        self.say(&line);
    }

    /// Tells the person what to type next, on standard error, as the hints of errors do.
    pub fn hint(&mut self, text: &str) {
        let mut line = String::new();
        push_hint(&mut line, text, self.err_colours);
        self.say(&line);
    }

    /// Tells the person a line of pieces, each in its tone, on standard error.
    pub fn aside(&mut self, pieces: &[(&str, Tone)]) {
        let mut line = String::new();
        for (text, tone) in pieces {
            tone.push(&mut line, &clean(text), self.err_colours);
        }
        line.push('\n');
        self.say(&line);
    }

    /// Tells the person something that goes on, on standard error: no line break is added, those in `text` are kept.
    pub fn aside_stream(&mut self, text: &str, tone: Tone) {
        let mut toned = String::new();
        tone.push(&mut toned, &clean_lines(text), self.err_colours);
        self.say(&toned);
    }

    /// Tells the person that something was done, on standard error: `✓ daemon started (pid 4711, 38 ms)`.
    pub fn done(&mut self, text: &str) {
        let mut line = String::new();
        Tone::Good.push(&mut line, "✓", self.err_colours);
        line.push(' ');
        line.push_str(&clean(text));
        line.push('\n');
        self.say(&line);
    }

    /// Reports a failure on standard error and returns the exit code that goes with it. A closed pipe is no failure.
    pub fn failure(&mut self, failure: &Failure) -> Exit {
        let fault = match failure {
            Failure::PipeClosed => return Exit::Ok,
            Failure::Fault(fault) => fault,
        };
        let mut text = String::new();
        push_fault(&mut text, fault, self.err_colours);
        self.say(&text);
        fault.exit
    }

    fn document(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let mut text = serde_json::to_vec_pretty(value).map_err(|error| not_json(&error))?;
        text.push(b'\n');
        self.write(&text)?;
        self.flush()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(|error| Failure::of_output(&error))
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(|error| Failure::of_output(&error))
    }

    fn say(&mut self, text: &str) {
        // Standard error is the last place to complain at.
        let _ = self.err.write_all(text.as_bytes()).and_then(|()| self.err.flush());
    }
}

/// Appends `error: …`, its detail and its hints.
fn push_fault(text: &mut String, fault: &Fault, colours: bool) {
    Tone::Bad.push(text, "error:", colours);
    text.push(' ');
    text.push_str(&clean(&fault.message));
    text.push('\n');
    if let Some(detail) = &fault.detail {
        for line in clean_lines(detail).lines() {
            text.push_str("  ");
            text.push_str(line);
            text.push('\n');
        }
    }
    for hint in &fault.hints {
        push_hint(text, hint, colours);
    }
}

fn push_hint(text: &mut String, hint: &str, colours: bool) {
    Tone::Strong.push(text, "hint:", colours);
    text.push(' ');
    text.push_str(&clean(hint));
    text.push('\n');
}

/// Says whether both streams are the same file, pipe or terminal.
fn is_one_place() -> bool {
    let place = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    match (rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr())) {
        (Ok(out), Ok(err)) => place(out) == place(err),
        _ => false,
    }
}

fn not_json(error: &serde_json::Error) -> Failure {
    Failure::new(Exit::Failed, format!("could not write the answer as JSON: {error}"))
}
