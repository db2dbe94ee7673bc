//! Which tree an event belongs to, and the bounded way from wherever it happens to that tree's Log.
//!
//! `tracing` has one subscriber a process, while a process may run several trees that share nothing. So the layer keeps
//! one sender for each tree and looks up which to use by the tree id that the event's span carries. This is plumbing of
//! the process, like the subscriber itself: it holds no domain state, and what passes through is owned by the tree at
//! the other end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use holdfast_stores::log::{LogEvent, LogLevel};
use tokio::sync::{Notify, mpsc, watch};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

use super::layer::{LevelGate, LogLayer, Stderr};
use super::levels::Levels;
use crate::ports::Clock;

/// Events that may wait for the writer. With at most [`super::layer::EVENT_BYTES_MAX`] each, 32 MiB.
const QUEUE_EVENTS_MAX: usize = 4_096;

/// Which tree of this process; spans carry it as the field `tree`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TreeId(pub u64);

impl TreeId {
    /// Returns a span that marks everything inside it, spans included, as this tree's.
    pub fn span(self) -> tracing::Span {
        tracing::info_span!("tree", tree = self.0)
    }
}

/// Where one tree's events go.
#[derive(Clone)]
pub(crate) struct Route {
    sender: mpsc::Sender<LogEvent>,
    wake: Arc<Notify>,
    dropped: Arc<AtomicU64>,
    pub(crate) levels: Levels,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Route {
    /// Hands an event over, or counts it when the queue is full. Never blocks: it runs wherever the event happened.
    pub(crate) fn send(&self, event: LogEvent) {
        match self.sender.try_send(event) {
            Ok(()) => self.wake.notify_one(),
            Err(_full_or_closed) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[derive(Default)]
struct Routes {
    by_tree: HashMap<TreeId, Arc<Route>>,
    unmarked: Option<TreeId>,
}

/// The Log's end of a route.
pub(crate) struct EventQueue {
    pub(crate) events: mpsc::Receiver<LogEvent>,
    /// Notified when events arrive.
    pub(crate) wake: Arc<Notify>,
    /// Events that did not fit, since the tree's first route.
    pub(crate) dropped: Arc<AtomicU64>,
}

/// The routes of one subscriber.
#[derive(Clone)]
pub struct LogRouter {
    routes: watch::Sender<Routes>,
    next_tree: Arc<AtomicU64>,
    /// The least grave level any tree logs, as `tracing` counts them; 0 is off.
    most_verbose: Arc<AtomicUsize>,
}

impl Default for LogRouter {
    fn default() -> Self {
        Self {
            routes: watch::Sender::new(Routes::default()),
            next_tree: Arc::new(AtomicU64::new(1)),
            most_verbose: Arc::new(AtomicUsize::new(0)),
        }
    }
}

impl LogRouter {
    /// Makes a router without routes, for a subscriber of the embedder's own; most want [`Self::install`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns this process's router; the first call makes it and installs the process's subscriber.
    ///
    /// With `stderr`, events of that level and graver are also written to stderr, redacted; only the first call decides.
    /// In a program that has installed a subscriber of its own nothing is routed: add [`Self::layer`] to that one.
    pub fn install(stderr: Option<LogLevel>) -> Self {
        static INSTALLED: OnceLock<LogRouter> = OnceLock::new();
        INSTALLED
            .get_or_init(|| {
                let router = Self::new();
                let stderr = stderr.map(|level| {
                    let filter = tracing::level_filters::LevelFilter::from_level(tracing_level(level));
                    tracing_subscriber::fmt::layer().with_ansi(false).with_writer(|| Stderr).with_filter(filter)
                });
                let subscriber = tracing_subscriber::registry().with(router.layer()).with(stderr);
                if tracing::subscriber::set_global_default(subscriber).is_err() {
                    tracing::warn!("a tracing subscriber is installed already; events do not reach the log");
                }
                router
            })
            .clone()
    }

    /// Returns the layer that routes events.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: tracing::Subscriber + for<'span> LookupSpan<'span>,
    {
        LogLayer { router: self.clone() }.with_filter(LevelGate { router: self.clone() })
    }

    /// Returns an id that no other tree of this router has.
    pub fn new_tree(&self) -> TreeId {
        TreeId(self.next_tree.fetch_add(1, Ordering::Relaxed))
    }

    /// Sends events outside any tree's span to `tree`: right for a process that is one daemon.
    pub fn adopt_unmarked(&self, tree: TreeId) {
        self.routes.send_modify(|routes| routes.unmarked = Some(tree));
    }

    /// Opens the route of `tree`; an earlier one is closed, its count of dropped events goes on.
    pub(crate) fn attach(&self, tree: TreeId, levels: Levels, clock: Arc<dyn Clock>) -> EventQueue {
        let (sender, events) = mpsc::channel(QUEUE_EVENTS_MAX);
        let wake = Arc::new(Notify::new());
        let dropped = self.routes.borrow().by_tree.get(&tree).map(|route| Arc::clone(&route.dropped));
        let dropped = dropped.unwrap_or_default();
        let route = Route { sender, wake: Arc::clone(&wake), dropped: Arc::clone(&dropped), levels, clock };
        self.routes.send_modify(|routes| {
            routes.by_tree.insert(tree, Arc::new(route));
        });
        self.levels_changed();
        EventQueue { events, wake, dropped }
    }

    /// Closes the route of `tree`.
    pub(crate) fn detach(&self, tree: TreeId) {
        self.routes.send_modify(|routes| {
            routes.by_tree.remove(&tree);
        });
        self.levels_changed();
    }

    pub(crate) fn set_levels(&self, tree: TreeId, levels: Levels) {
        self.routes.send_modify(|routes| {
            if let Some(route) = routes.by_tree.get(&tree) {
                let changed = Route { levels, ..Route::clone(route) };
                routes.by_tree.insert(tree, Arc::new(changed));
            }
        });
        self.levels_changed();
    }

    pub(crate) fn route(&self, tree: Option<TreeId>) -> Option<Arc<Route>> {
        let routes = self.routes.borrow();
        routes.by_tree.get(&tree.or(routes.unmarked)?).cloned()
    }

    pub(crate) fn most_verbose(&self) -> tracing::level_filters::LevelFilter {
        use tracing::level_filters::LevelFilter;
        match self.most_verbose.load(Ordering::Relaxed) {
            0 => LevelFilter::OFF,
            1 => LevelFilter::ERROR,
            2 => LevelFilter::WARN,
            3 => LevelFilter::INFO,
            4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        }
    }

    fn levels_changed(&self) {
        let most = self.routes.borrow().by_tree.values().filter_map(|route| route.levels.most_verbose()).max();
        let most = most.map_or(0, |level| level as usize + 1);
        if self.most_verbose.swap(most, Ordering::Relaxed) != most {
            // Call sites remember whether anybody listens.
            tracing::callsite::rebuild_interest_cache();
        }
    }
}

fn tracing_level(level: LogLevel) -> tracing::Level {
    match level {
        LogLevel::Error => tracing::Level::ERROR,
        LogLevel::Warn => tracing::Level::WARN,
        LogLevel::Info => tracing::Level::INFO,
        LogLevel::Debug => tracing::Level::DEBUG,
        LogLevel::Trace => tracing::Level::TRACE,
    }
}
