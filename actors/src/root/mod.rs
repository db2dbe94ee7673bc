//! The root of one actor tree: one a process as a rule, as many as one likes in tests.
//!
//! It owns the instance lock and the generation counter, and supervises what it starts in this order: Log, the empty
//! supervisors of Live, Tree, the fixed actors of Live, Listeners. It ends them in reverse: the listeners stop accepting,
//! Live settles its turns and ends its adapters, then Tree, then Log, and the lock is released last of all.
//!
//! The map of the tree shows Live above Tree because it outlives a reload. It is started after the Tree and ended before
//! it because its turns need the stores to settle.
//!
//! The root itself has no supervisor: its failure is what [`RootHandle::wait`] returns, and the process ends.

mod builder;
mod control;
mod guardian;
mod listener;
mod reload;
mod report;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::sync::Arc;

use holdfast_stores::instance_lock::InstanceLock;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::watch;

pub use builder::{BuildContext, Built, Live, LoadPurpose, TreeBuilder};
pub use control::{Phase, RootControl, RootHandle, RootView};
pub use listener::{Listener, ListenerStatus};
pub use report::{ReloadError, ReloadReport, RootError, RootFailed, SurfaceOutcome, SurfaceReport};

use crate::ports::Ports;
use crate::supervisor::{Intensity, Observed, Stage, Strategy, Supervisor, SupervisorSpec};
use guardian::{Guardian, GuardianArguments, Parts, RootMessage};
use listener::Listeners;

/// The generation of a tree that was never reloaded.
const FIRST_GENERATION: u64 = 1;

/// What the listeners of a root may be given when they are made: all but they has started.
pub struct Grown<'a, B: TreeBuilder> {
    /// The handles of the surfaces.
    pub handles: &'a B::Handles,
    /// Where connections are put.
    pub live: &'a Live,
    /// The root.
    pub control: &'a RootControl,
    /// The ports.
    pub ports: &'a Ports,
}

type MakeListeners<B> = Box<dyn FnOnce(Grown<'_, B>) -> Vec<Box<dyn Listener<<B as TreeBuilder>::Config>>> + Send>;

/// What a root is made of.
pub struct RootSpec<B: TreeBuilder> {
    /// The right to run in this install root.
    pub lock: InstanceLock,
    /// Time, ids and randomness.
    pub ports: Ports,
    /// The configuration and the surfaces.
    pub builder: B,
    /// Makes the listeners.
    pub listeners: MakeListeners<B>,
}

impl<B: TreeBuilder> RootSpec<B> {
    /// Makes a root without listeners, for embedders and tests.
    pub fn without_listeners(lock: InstanceLock, ports: Ports, builder: B) -> Self {
        Self { lock, ports, builder, listeners: Box::new(|_grown| Vec::new()) }
    }
}

/// Starts roots.
pub struct Root;

impl Root {
    /// Starts a root and all below it, inside the current span. A surface that can't start is down, which is no error: see
    /// [`RootHandle::started`].
    ///
    /// # Errors
    /// [`RootError`]; what had started has ended again and the lock is free.
    pub async fn start<B: TreeBuilder>(spec: RootSpec<B>) -> Result<RootHandle<B>, RootError> {
        let RootSpec { lock, ports, builder, listeners: make_listeners } = spec;
        let builder = Arc::new(builder);
        let config = builder.load(LoadPurpose::Start).await.map_err(RootError::Config)?;
        let view = watch::Sender::new(RootView {
            phase: Phase::Starting,
            generation: FIRST_GENERATION,
            config_revision: builder.revision(&config),
            listeners: Vec::new(),
            surfaces: Arc::from([]),
        });
        let viewed = view.subscribe();
        let config = watch::Sender::new(config);
        let configured = config.subscribe();
        let (ended_sender, ended) = watch::channel(None);
        let arguments = GuardianArguments {
            builder: Arc::clone(&builder),
            lock,
            config,
            view: view.clone(),
            span: tracing::Span::current(),
            ended: ended_sender,
        };
        let (guardian, _join) = Actor::spawn(None, Guardian::<B>(PhantomData), arguments)
            .await
            .map_err(|error| RootError::Supervisor { supervisor: "root", reason: error.to_string() })?;
        let control = control_of(&guardian, viewed);

        let mut grower = Grower {
            ports,
            builder,
            guardian: guardian.clone(),
            control: control.clone(),
            config: configured.clone(),
            view,
            parts: Parts::default(),
            listeners: Listeners::new(Vec::new()),
            started: Vec::new(),
        };
        let grown = grower.grow(make_listeners).await;
        let Grower { parts, listeners, started, .. } = grower;
        // A guardian that is gone already shows in `ended`, so every cast below may fail unheard.
        let handles = grown.as_ref().ok().map(|(handles, _)| handles.clone());
        let _gone = guardian.cast(RootMessage::Started { parts, handles, listeners });
        match grown {
            Ok((handles, live)) => {
                let mut viewed = control.view.clone();
                let _gone = viewed.wait_for(|view| view.phase != Phase::Starting).await;
                Ok(RootHandle { control, handles, live, config: configured, started, ended })
            }
            Err(error) => {
                control.shutdown();
                let mut ended = ended;
                let _ended = ended.wait_for(Option::is_some).await;
                Err(error)
            }
        }
    }
}

fn control_of<B: TreeBuilder>(guardian: &ActorRef<RootMessage<B>>, view: watch::Receiver<RootView>) -> RootControl {
    let guardian = guardian.clone();
    // A request that a guardian no longer hears drops its reply, which answers `Stopping`.
    RootControl { send: Arc::new(move |request| drop(guardian.cast(RootMessage::Request(request)))), view }
}

/// Starts the parts of a root one after the other, and keeps what has started if one can't.
struct Grower<B: TreeBuilder> {
    ports: Ports,
    builder: Arc<B>,
    guardian: ActorRef<RootMessage<B>>,
    control: RootControl,
    config: watch::Receiver<B::Config>,
    view: watch::Sender<RootView>,
    parts: Parts,
    listeners: Listeners<B::Config>,
    started: Vec<SurfaceReport>,
}

impl<B: TreeBuilder> Grower<B> {
    async fn grow(&mut self, make_listeners: MakeListeners<B>) -> Result<(B::Handles, Live), RootError> {
        let cell = self.guardian.get_cell();
        let live = Live::start(&self.ports, FIRST_GENERATION, &cell)
            .await
            .map_err(|error| supervisor_error("live", &error))?;
        self.parts.live = Some(live.clone());
        let built = self.builder.build(&BuildContext {
            ports: self.ports.clone(),
            config: self.config.clone(),
            control: self.control.clone(),
            live: live.clone(),
        });
        let Built { log, tree, live: live_fixed, handles } = built;
        let observed: Arc<[Observed]> =
            [&log, &tree, &live_fixed].into_iter().flatten().flatten().map(|child| child.observed()).collect();
        self.view.send_modify(|view| view.surfaces = observed);

        self.parts.log = Some(self.supervise("log", log).await?);
        self.parts.tree = Some(self.supervise("tree", tree).await?);
        self.parts.live_fixed = Some(self.supervise("live", live_fixed).await?);

        self.listeners = Listeners::new(make_listeners(Grown {
            handles: &handles,
            live: &live,
            control: &self.control,
            ports: &self.ports,
        }));
        let config = self.config.borrow().clone();
        self.listeners.prepare(&config).await.map_err(|(name, error)| RootError::Listener { name, error })?;
        self.listeners.commit().await;
        Ok((handles, live))
    }

    async fn supervise(&mut self, name: &'static str, stages: Vec<Stage>) -> Result<Supervisor, RootError> {
        let spec = SupervisorSpec { name, strategy: Strategy::OneForOne, intensity: Intensity::default(), stages };
        let (supervisor, outcomes) = Supervisor::start(spec, FIRST_GENERATION, Some(self.guardian.get_cell()))
            .await
            .map_err(|error| supervisor_error(name, &error))?;
        self.started.extend(outcomes.into_iter().map(SurfaceReport::of_child));
        Ok(supervisor)
    }
}

fn supervisor_error(supervisor: &'static str, error: &ActorProcessingErr) -> RootError {
    RootError::Supervisor { supervisor, reason: error.to_string() }
}
