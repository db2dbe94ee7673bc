//! Who answers commands that only read: the daemon, or the files of an install root whose daemon does not run.
//!
//! The one rule: such a command asks [`Answers`], which is the daemon where one answers. Where none does, the same requests
//! are answered in this process from the files, opened for reading only, and a line on standard error says so.

use std::io::{self, Cursor, Read, Write};
use std::sync::Arc;

use holdfast_actors::at_rest::{self, AtRest};
use holdfast_actors::ports::Ports;
use holdfast_actors::router::{Caller, Origin};
use holdfast_protocol::client::Client;
use holdfast_protocol::method::Method;
use holdfast_stores::instance_lock;
use holdfast_stores::kit::CursorKey;
use serde_json::value::RawValue;
use tokio::runtime::Runtime;

use super::connection::{Reached, failure, reach};
use super::{Connection, Place};
use crate::daemon::{VERSION, config_source};
use crate::render::{Exit, Failure, Renderer};

/// How often the files are opened anew when a daemon starts in the middle of a read. The second time finds its log.
const TRIES: usize = 4;

/// Something that typed questions can be put to.
pub trait Asked {
    /// Calls the method `M`.
    ///
    /// # Errors
    /// What the other side says, or why it can't be reached any more.
    fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, Failure>;
}

impl Asked for Connection {
    fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, Failure> {
        Connection::call::<M>(self, params)
    }
}

/// Who answers a command that only reads.
pub enum Answers {
    /// The daemon.
    Daemon(Box<Connection>),
    /// The files.
    Files(Box<Client<Files>>),
}

impl Answers {
    /// Calls any method with params as JSON text.
    ///
    /// # Errors
    /// As [`Asked::call`].
    pub fn call_raw(&mut self, method: &str, params: &RawValue) -> Result<Box<RawValue>, Failure> {
        match self {
            Self::Daemon(connection) => connection.call_raw(method, params),
            Self::Files(client) => client.call_raw(method, Some(params)).map_err(failure),
        }
    }
}

impl Asked for Answers {
    fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, Failure> {
        match self {
            Self::Daemon(connection) => connection.call::<M>(params),
            Self::Files(client) => client.call::<M>(params).map_err(failure),
        }
    }
}

/// Returns who answers a command that only reads.
///
/// # Errors
/// As [`super::connect`], but for the absence of a daemon.
pub fn answers(place: &Place, renderer: &mut Renderer) -> Result<Answers, Failure> {
    let (answers, absence) = reached(place)?;
    if let Some(absence) = absence {
        renderer.note(&absence);
    }
    Ok(answers)
}

/// Returns who answers, and what a person is told when that is not the daemon.
///
/// # Errors
/// As [`answers`].
pub(super) fn reached(place: &Place) -> Result<(Answers, Option<String>), Failure> {
    match reach(place)? {
        Reached::Daemon(connection) => Ok((Answers::Daemon(connection), None)),
        Reached::Nobody(_) => Ok((Answers::Files(Box::new(Client::new(Files::of(place)?))), Some(absence(place)))),
    }
}

/// Says that no daemon answers and what is shown instead.
fn absence(place: &Place) -> String {
    match instance_lock::owner(&place.root) {
        Ok(Some(owner)) => format!("the daemon does not answer ({owner}); read from its files"),
        _ if place.root.path().exists() => "the daemon is not running; read from its files".to_owned(),
        _ => format!("the daemon is not running, and there is no {} yet", place.shown()),
    }
}

/// The files of an install root, as the other end of a conversation: a request goes in, its answer comes out.
pub struct Files {
    runtime: Runtime,
    place: at_rest::Place,
    opened: Option<AtRest>,
    caller: Arc<Caller>,
    request: Vec<u8>,
    answer: Cursor<Vec<u8>>,
}

impl Files {
    /// # Errors
    /// When this process can't have what it needs for that.
    fn of(place: &Place) -> Result<Self, Failure> {
        let user = rustix::process::geteuid().as_raw();
        let origin = Origin::Socket { uid: user, pid: Some(std::process::id()) };
        Ok(Self {
            runtime: runtime()?,
            place: place_at_rest(place)?,
            opened: None,
            caller: Arc::new(Caller { origin, lineage: None, client: None }),
            request: Vec::new(),
            answer: Cursor::default(),
        })
    }

    /// Answers a request, anew if an owner of the files appeared meanwhile.
    fn answer(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        for _ in 0..TRIES {
            let opened = match self.opened.take() {
                Some(opened) => opened,
                None => self.runtime.block_on(AtRest::open(&self.place)),
            };
            let answer = self.runtime.block_on(opened.router().answer_frame(&self.caller, request));
            if opened.is_unchanged() {
                self.opened = Some(opened);
                return Ok(answer.unwrap_or_default());
            }
        }
        Err(io::Error::other("the files change while they are read"))
    }
}

impl Write for Files {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.request.extend_from_slice(bytes);
        if self.request.ends_with(b"\n") {
            let request = std::mem::take(&mut self.request);
            self.answer = Cursor::new(self.answer(&request)?);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Files {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.answer.read(buffer)
    }
}

/// Looks at the files without putting a question to them.
///
/// # Errors
/// As [`Files::of`].
pub(super) fn report(place: &Place) -> Result<at_rest::Report, Failure> {
    let place = place_at_rest(place)?;
    Ok(runtime()?.block_on(at_rest::report(&place)))
}

fn runtime() -> Result<Runtime, Failure> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Failure::new(Exit::Failed, format!("failed to start the runtime: {error}")))
}

fn place_at_rest(place: &Place) -> Result<at_rest::Place, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(Exit::Failed, format!("failed to find this program's own file: {error}")))?;
    Ok(at_rest::Place {
        root: place.root.clone(),
        source: config_source(&place.root)?,
        program,
        version: VERSION,
        cursors: CursorKey::new(Ports::system().ids.random_key()),
    })
}
