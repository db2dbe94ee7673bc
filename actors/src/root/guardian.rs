//! The root actor. Its handlers only decide; what takes time runs in tasks that report back, so that it always hears a
//! second wish to stop.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use holdfast_stores::instance_lock::InstanceLock;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::{oneshot, watch};
use tracing::Instrument;

use crate::root::builder::{Live, TreeBuilder};
use crate::root::control::{Phase, Request, RootView};
use crate::root::listener::Listeners;
use crate::root::reload::{self, Reload};
use crate::root::report::{ReloadError, ReloadReport, RootFailed};
use crate::supervisor::Supervisor;

type ReloadReply = oneshot::Sender<Result<ReloadReport, ReloadError>>;

/// What a root has started so far. Ends in [`Parts::stop`].
#[derive(Clone, Default)]
pub(super) struct Parts {
    pub(super) log: Option<Supervisor>,
    pub(super) tree: Option<Supervisor>,
    pub(super) live: Option<Live>,
    pub(super) live_fixed: Option<Supervisor>,
}

impl Parts {
    /// Ends everything that has started, in the reverse order; `last_work` is done between Live and Tree. `hurry` turning
    /// true ends the wait for what is in flight.
    async fn stop(self, mut hurry: watch::Receiver<bool>, last_work: impl Future<Output = ()>) {
        let settle = async {
            // The fixed actors of Live know the turns in flight, so they settle them and start no more.
            if let Some(fixed) = &self.live_fixed {
                fixed.stop().await;
            }
            if let Some(live) = &self.live {
                live.stop().await;
            }
            last_work.await;
        };
        tokio::select! {
            () = settle => {}
            // An error would mean that the guardian is gone; nobody waits then either.
            _hurried = hurry.wait_for(|hurry| *hurry) => {
                tracing::warn!("told to stop twice; no longer waiting for what is in flight");
            }
        }
        for supervisor in [&self.tree, &self.log].into_iter().flatten() {
            supervisor.stop().await;
        }
    }
}

pub(super) enum RootMessage<B: TreeBuilder> {
    /// All parts have started, or as many as could be.
    Started {
        parts: Parts,
        /// None when the surfaces were never declared.
        handles: Option<B::Handles>,
        listeners: Listeners<B::Config>,
    },
    Request(Request),
    ReloadDone {
        outcome: Result<ReloadReport, ReloadError>,
        /// Gone when the reload panicked.
        listeners: Option<Listeners<B::Config>>,
    },
    ShutdownDone,
}

/// What a guardian is given.
pub(super) struct GuardianArguments<B: TreeBuilder> {
    pub(super) builder: Arc<B>,
    pub(super) lock: InstanceLock,
    pub(super) config: watch::Sender<B::Config>,
    pub(super) view: watch::Sender<RootView>,
    /// What the tasks of the root run in; it says whose their events are.
    pub(super) span: tracing::Span,
    pub(super) ended: watch::Sender<Option<Result<(), RootFailed>>>,
}

pub(super) struct Guardian<B>(pub(super) std::marker::PhantomData<fn() -> B>);

pub(super) struct GuardianState<B: TreeBuilder> {
    builder: Arc<B>,
    config: watch::Sender<B::Config>,
    view: watch::Sender<RootView>,
    span: tracing::Span,
    parts: Option<Parts>,
    handles: Option<B::Handles>,
    /// Here unless a reload or the end is using them.
    listeners: Option<Listeners<B::Config>>,
    /// Who waits for the reload that runs.
    reloading: Option<Vec<ReloadReply>>,
    /// Who waits for the one after it.
    reload_next: Vec<ReloadReply>,
    stop_wanted: bool,
    stopping: bool,
    hurry: watch::Sender<bool>,
    failure: Option<RootFailed>,
    /// Released last of all, before the end is told.
    lock: Option<InstanceLock>,
    ended: Ended,
}

/// Tells whoever waits how the root ended, also when the guardian itself fails.
struct Ended(watch::Sender<Option<Result<(), RootFailed>>>);

impl Ended {
    fn tell(&self, outcome: Result<(), RootFailed>) {
        self.0.send_if_modified(|told| {
            let first = told.is_none();
            if first {
                *told = Some(outcome);
            }
            first
        });
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.tell(Err(RootFailed { reason: "the root actor failed".to_owned() }));
    }
}

impl<B: TreeBuilder> Actor for Guardian<B> {
    type Msg = RootMessage<B>;
    type State = GuardianState<B>;
    type Arguments = GuardianArguments<B>;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(GuardianState {
            builder: arguments.builder,
            config: arguments.config,
            view: arguments.view,
            span: arguments.span,
            parts: None,
            handles: None,
            listeners: None,
            reloading: None,
            reload_next: Vec::new(),
            stop_wanted: false,
            stopping: false,
            hurry: watch::Sender::new(false),
            failure: None,
            lock: Some(arguments.lock),
            ended: Ended(arguments.ended),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RootMessage::Started { parts, handles, listeners } => state.started(parts, handles, listeners),
            RootMessage::Request(Request::Reload { reply }) => state.reload_wanted(reply),
            RootMessage::Request(Request::Shutdown) => state.shutdown_wanted(),
            RootMessage::ReloadDone { outcome, listeners } => state.reload_done(outcome, listeners),
            RootMessage::ShutdownDone => {
                state.shutdown_done();
                myself.stop(None);
                return Ok(());
            }
        }
        state.advance(&myself);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(_, error) => state.supervisor_ended(error.to_string()),
            SupervisionEvent::ActorTerminated(..) if state.stopping => {}
            SupervisionEvent::ActorTerminated(_, _, reason) => {
                state.supervisor_ended(reason.unwrap_or_else(|| "it ended by itself".to_owned()));
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        state.advance(&myself);
        Ok(())
    }
}

impl<B: TreeBuilder> GuardianState<B> {
    fn started(&mut self, parts: Parts, handles: Option<B::Handles>, listeners: Listeners<B::Config>) {
        self.parts = Some(parts);
        self.handles = handles;
        let statuses = listeners.statuses();
        self.listeners = Some(listeners);
        self.view.send_modify(|view| {
            view.phase = Phase::Running;
            view.listeners = statuses;
        });
    }

    fn reload_wanted(&mut self, reply: ReloadReply) {
        match self.stop_wanted {
            // Whoever no longer waits needs no answer.
            true => drop(reply.send(Err(ReloadError::Stopping))),
            false => self.reload_next.push(reply),
        }
    }

    fn shutdown_wanted(&mut self) {
        if self.stop_wanted {
            self.hurry.send_replace(true);
        }
        self.stop_wanted = true;
        for reply in self.reload_next.drain(..) {
            drop(reply.send(Err(ReloadError::Stopping)));
        }
    }

    fn supervisor_ended(&mut self, reason: String) {
        tracing::error!(%reason, "a supervisor ended unexpectedly; the daemon stops");
        self.failed(format!("a supervisor ended: {reason}"));
    }

    fn failed(&mut self, reason: String) {
        self.failure.get_or_insert(RootFailed { reason });
        if !self.stop_wanted {
            self.shutdown_wanted();
        }
    }

    fn reload_done(&mut self, outcome: Result<ReloadReport, ReloadError>, listeners: Option<Listeners<B::Config>>) {
        match &outcome {
            Ok(report) => {
                tracing::info!(generation = report.generation, took = ?report.took, "reloaded");
            }
            Err(ReloadError::Failed(reason)) => self.failed(format!("a reload failed: {reason}")),
            Err(error) => tracing::warn!(%error, "reload refused; what ran goes on"),
        }
        self.listeners = listeners;
        self.view.send_modify(|view| {
            view.phase = Phase::Running;
            if let Ok(report) = &outcome {
                view.generation = report.generation;
                view.config_revision.clone_from(&report.config_revision);
            }
            if let Some(listeners) = &self.listeners {
                view.listeners = listeners.statuses();
            }
        });
        for reply in self.reloading.take().unwrap_or_default() {
            drop(reply.send(outcome.clone()));
        }
    }

    fn shutdown_done(&mut self) {
        self.lock = None;
        self.view.send_modify(|view| view.phase = Phase::Stopped);
        self.ended.tell(self.failure.take().map_or(Ok(()), Err));
    }

    /// Begins what is due, if nothing else runs.
    fn advance(&mut self, myself: &ActorRef<RootMessage<B>>) {
        if self.reloading.is_some() || self.stopping {
            return;
        }
        let Some(parts) = self.parts.clone() else { return };
        if self.stop_wanted {
            self.begin_shutdown(myself, parts);
        } else if !self.reload_next.is_empty()
            && let (Some(tree), Some(handles), Some(listeners)) =
                (parts.tree.clone(), self.handles.clone(), self.listeners.take())
        {
            self.begin_reload(myself, &parts, tree, handles, listeners);
        }
    }

    fn begin_reload(
        &mut self,
        myself: &ActorRef<RootMessage<B>>,
        parts: &Parts,
        tree: Supervisor,
        handles: B::Handles,
        listeners: Listeners<B::Config>,
    ) {
        self.reloading = Some(std::mem::take(&mut self.reload_next));
        self.view.send_modify(|view| view.phase = Phase::Reloading);
        let reload = Reload {
            builder: Arc::clone(&self.builder),
            config: self.config.clone(),
            generation: self.view.borrow().generation + 1,
            tree,
            handles,
            unchanged: [&parts.log, &parts.live_fixed]
                .into_iter()
                .flatten()
                .flat_map(|supervisor| supervisor.observed().iter().cloned())
                .collect(),
        };
        let myself = myself.clone();
        let work = async move {
            let run = AssertUnwindSafe(reload::run(reload, listeners)).catch_unwind().await;
            let message = match run {
                Ok((outcome, listeners)) => RootMessage::ReloadDone { outcome, listeners: Some(listeners) },
                Err(_panic) => RootMessage::ReloadDone {
                    outcome: Err(ReloadError::Failed("it panicked".to_owned())),
                    listeners: None,
                },
            };
            // A guardian that is gone has told so itself.
            let _gone = myself.cast(message);
        };
        tokio::spawn(work.instrument(self.span.clone()));
    }

    fn begin_shutdown(&mut self, myself: &ActorRef<RootMessage<B>>, parts: Parts) {
        self.stopping = true;
        tracing::info!(parent: &self.span, "stopping");
        self.view.send_modify(|view| view.phase = Phase::Stopping);
        let listeners = self.listeners.take();
        let hurry = self.hurry.subscribe();
        let (builder, handles) = (Arc::clone(&self.builder), self.handles.clone());
        let myself = myself.clone();
        let work = async move {
            let stop = async {
                if let Some(mut listeners) = listeners {
                    listeners.stop().await;
                }
                let last_work = async {
                    if let Some(handles) = &handles {
                        builder.settle(handles).await;
                    }
                };
                parts.stop(hurry, last_work).await;
            };
            if AssertUnwindSafe(stop).catch_unwind().await.is_err() {
                tracing::error!("the shutdown panicked; what was left is ended at once");
            }
            let _gone = myself.cast(RootMessage::ShutdownDone);
        };
        tokio::spawn(work.instrument(self.span.clone()));
    }
}
