//! An install root whose daemon does not run: the same methods, as far as they only read, answered from its files.
//!
//! Nothing is made, changed, migrated or kept waiting. A store that can't be read answers for itself, as a surface that is
//! down does, and leaves the others alone.

use std::path::PathBuf;

use holdfast_protocol::error::WireError;
use holdfast_protocol::method::Method;
use holdfast_protocol::methods::Empty;
use holdfast_protocol::methods::agent::List as AgentList;
use holdfast_protocol::methods::daemon::{SurfaceState, SurfaceStatus};
use holdfast_protocol::methods::lease;
use holdfast_protocol::methods::log::Query;
use holdfast_protocol::methods::session::{Events, List, Show};
use holdfast_stores::config::{AgentsConfig, ConfigSource};
use holdfast_stores::install_root::InstallRoot;
use holdfast_stores::instance_lock::{self, Owner};
use holdfast_stores::kit::{AtRest as Store, CursorKey, DatabaseSpec, OpenError};
use holdfast_stores::leases::LeaseReads as StoredLeases;
use holdfast_stores::sessions::SessionReads;
use holdfast_stores::{acp_sessions, control_plane, leases, sessions};

use crate::acp_sessions::AcpReads;
use crate::address::Down;
use crate::leases::LeaseReads;
use crate::log;
use crate::methods;
use crate::methods::session::Stores;
use crate::router::{Router, RouterBuilder};
use crate::sessions::ChatReads;
use crate::store::down;
use crate::visibility::{Eyes, Viewer};

/// The stores, under the names of their surfaces, in the order in which those start.
const STORES: [(&str, &DatabaseSpec); 4] = [
    ("control-plane", &control_plane::SPEC),
    ("sessions", &sessions::SPEC),
    ("acp-sessions", &acp_sessions::SPEC),
    ("leases", &leases::SPEC),
];

/// The methods that are answered.
pub const METHODS: [&str; 7] =
    [AgentList::NAME, lease::List::NAME, lease::Show::NAME, Query::NAME, Events::NAME, List::NAME, Show::NAME];

/// Where an install root lies and what is needed to read it.
#[derive(Clone)]
pub struct Place {
    /// The install root.
    pub root: InstallRoot,
    /// Its configuration.
    pub source: ConfigSource,
    /// This program, which the built-in agents are part of.
    pub program: PathBuf,
    /// The version of this program.
    pub version: &'static str,
    /// Makes the cursors of lists; the same over several [`AtRest::open`], so that a list can go on.
    pub cursors: CursorKey,
}

/// The opened files. What it answers is good as long as [`AtRest::is_unchanged`].
pub struct AtRest {
    stores: Vec<Store>,
    router: Router,
}

impl AtRest {
    /// Opens what the methods read. A store that can't be opened answers why.
    pub async fn open(place: &Place) -> Self {
        let data_dir = place.root.data_dir();
        let (chat, acp, leased) = tokio::join!(
            Store::open(&data_dir, &sessions::SPEC),
            Store::open(&data_dir, &acp_sessions::SPEC),
            Store::open(&data_dir, &leases::SPEC),
        );
        let opened = [&chat, &acp, &leased].into_iter().filter_map(|store| store.as_ref().ok()?.clone()).collect();
        // A daemon may be there without answering: starting, ending, stopped by a signal. Its turns are its own.
        let settled = matches!(instance_lock::owner(&place.root), Ok(None));
        let readers = |store: Result<Option<Store>, OpenError>| match store {
            Ok(store) => Ok(store.map(|store| store.readers().clone())),
            Err(error) => Err::<_, Down>(down(&error)),
        };
        let reads = readers(chat).map(|readers| readers.map(SessionReads::new));
        let stores = Stores {
            chat: ChatReads::AtRest { reads, cursors: place.cursors.clone() },
            // Whoever can read the files sees all that is in them.
            acp: Eyes::over(Viewer::Owner, AcpReads::AtRest { readers: readers(acp), settled }),
            cursors: place.cursors.clone(),
        };
        let mut builder = RouterBuilder::new();
        methods::session::register_at_rest(&mut builder, &stores);
        let leased = LeaseReads::AtRest(readers(leased).map(|readers| readers.map(StoredLeases::new)));
        methods::lease::register_reads(&mut builder, leased, place.cursors.clone());
        log::register_at_rest(&mut builder, &place.root.state_dir());
        let (source, program) = (place.source.clone(), place.program.clone());
        builder.on::<AgentList>(move |_call, Empty {}, reply| {
            let agents = source
                .load_for_start()
                .map_err(|error| WireError::from(&error))
                .and_then(|config| config.section::<AgentsConfig>().map_err(|error| WireError::from(&error)));
            reply.send(agents.map(|agents| methods::agent::list(&program, &agents)));
        });
        Self { stores: opened, router: builder.build(place.version) }
    }

    /// Returns what answers [`METHODS`].
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Says whether what was answered is what the files held at one moment; see [`Store::is_unchanged`].
    pub fn is_unchanged(&self) -> bool {
        self.stores.iter().all(Store::is_unchanged)
    }
}

/// How an install root lies there without an answering daemon.
#[derive(Debug, Clone)]
pub struct Report {
    /// Who owns it all the same: a daemon that starts, ends or hangs.
    pub owner: Option<Owner>,
    /// Every store under the name of its surface: `stopped` when it can be read, else `down` with the reason.
    pub surfaces: Vec<SurfaceStatus>,
    /// Agents in the configuration.
    pub agents: u64,
    /// What is wrong with the configuration, a sentence each.
    pub warnings: Vec<String>,
}

/// Looks at every store and at the configuration.
pub async fn report(place: &Place) -> Report {
    let (mut agents, mut warnings) = (0, Vec::new());
    let config_file = place.root.config_file();
    let mut surfaces = vec![surface("config")];
    match place.source.load_for_start() {
        Ok(config) => {
            surfaces[0].size_bytes = config.text().len() as u64;
            warnings.extend(config.problems().chain(config.warnings()).map(|problem| problem.describe(&config_file)));
            agents = config.section::<AgentsConfig>().map_or(0, |agents| agents.0.len() as u64);
        }
        Err(error) => {
            surfaces[0].state = SurfaceState::Down;
            surfaces[0].reason = Some(error.to_string());
            surfaces[0].remedy = Some(error.remedy());
        }
    }
    for (name, spec) in STORES {
        let mut surface = surface(name);
        match Store::open(&place.root.data_dir(), spec).await {
            Ok(store) => surface.size_bytes = store.map_or(0, |store| store.size_bytes()),
            Err(error) => {
                let Down { kind: _, reason, remedy } = down(&error);
                (surface.state, surface.reason, surface.remedy) = (SurfaceState::Down, Some(reason), Some(remedy));
            }
        }
        surfaces.push(surface);
    }
    Report { owner: instance_lock::owner(&place.root).unwrap_or(None), surfaces, agents, warnings }
}

fn surface(name: &str) -> SurfaceStatus {
    SurfaceStatus {
        name: name.to_owned(),
        state: SurfaceState::Stopped,
        generation: 0,
        restarts: 0,
        queue_depth: 0,
        in_flight_max: 0,
        commit_p50_us: None,
        size_bytes: 0,
        reason: None,
        remedy: None,
        since: None,
        since_ms: None,
    }
}
