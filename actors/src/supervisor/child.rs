//! One supervised surface: its address, its incarnations, its end.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_protocol::error::ErrorKind;
use ractor::{Actor, ActorCell, ActorId, ActorRef, SpawnErr};
use tokio::sync::watch;

use crate::address::{Address, Down, Envelope, Lifecycle};
use crate::ports::Ports;
use crate::stats::SurfaceStats;
use crate::surface::{Fault, Runner, Surface, fault_of, unexpected_down};

/// The bounds of one surface.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Messages in flight at most; past it callers get `Busy`.
    pub in_flight_max: usize,
    /// How long a start may take before the surface is down.
    pub start: Duration,
    /// How long what is queued may take to finish when the surface ends.
    pub drain: Duration,
    /// How long the message being handled may take after that, before the surface is killed.
    pub stop: Duration,
}

impl Default for Limits {
    /// 4 096 messages in flight; 30 s to start, 10 s to drain, 5 s to stop.
    fn default() -> Self {
        Self {
            in_flight_max: 4_096,
            start: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            stop: Duration::from_secs(5),
        }
    }
}

/// What health sees of one surface, without asking it.
#[derive(Clone)]
pub struct Observed {
    /// Its name.
    pub name: &'static str,
    /// Its counters.
    pub stats: Arc<SurfaceStats>,
    /// Its bound on messages in flight.
    pub in_flight_max: usize,
    look: Arc<dyn Fn() -> (&'static str, Option<Down>, usize) + Send + Sync>,
}

impl Observed {
    /// Returns the state (`starting`, `up`, `down`, `stopped`), why it is down, and the messages in flight.
    pub fn now(&self) -> (&'static str, Option<Down>, usize) {
        (self.look)()
    }
}

/// A child of a supervisor, its message type hidden.
pub trait Child: Send + 'static {
    /// Returns what health sees.
    fn observed(&self) -> Observed;
    /// Returns the id of the running incarnation.
    fn incarnation(&self) -> Option<ActorId>;
    /// Starts an incarnation under `supervisor`; an error has been published as `Down`.
    fn start(&mut self, supervisor: ActorCell, generation: u64) -> BoxFuture<'_, Result<(), Down>>;
    /// Ends the incarnation: drain, wait, stop, wait, kill. Callers wait for the next one, or learn that the tree has
    /// ended when `for_good`.
    fn end(&mut self, for_good: bool) -> BoxFuture<'_, ()>;
    /// Forgets an incarnation that has died by itself; callers wait for the next one.
    fn died(&mut self);
    /// Publishes that the child cannot serve.
    fn mark_down(&mut self, down: Down);
}

/// A surface as a child.
pub struct SurfaceChild<S: Surface> {
    name: &'static str,
    surface: Arc<S>,
    limits: Limits,
    ports: Ports,
    stats: Arc<SurfaceStats>,
    cell: watch::Sender<Lifecycle<S::Message>>,
    address: Address<S::Message>,
    declared_in: tracing::Span,
    actor: Option<ActorRef<Envelope<S::Message>>>,
}

/// Declares the surface `name` as a child; the address can be handed out before it has started.
pub fn child<S: Surface>(
    name: &'static str,
    limits: Limits,
    ports: &Ports,
    surface: S,
) -> (SurfaceChild<S>, Address<S::Message>) {
    let slot = Slot::new(name, limits);
    let address = slot.address();
    (slot.fill(ports, surface), address)
}

/// A named place for a surface that is made later, so that surfaces can be given each other's addresses.
pub struct Slot<M> {
    name: &'static str,
    limits: Limits,
    cell: watch::Sender<Lifecycle<M>>,
    address: Address<M>,
}

impl<M: Send + 'static> Slot<M> {
    /// Makes an empty place.
    pub fn new(name: &'static str, limits: Limits) -> Self {
        let (cell, receiver) = watch::channel(Lifecycle::Starting);
        Self { name, limits, cell, address: Address::new(name, receiver, limits.in_flight_max) }
    }

    /// Returns the address of whatever will live here.
    pub fn address(&self) -> Address<M> {
        self.address.clone()
    }

    /// Puts the surface in its place. Events of its own, as when it stops, are said inside the current span.
    pub fn fill<S: Surface<Message = M>>(self, ports: &Ports, surface: S) -> SurfaceChild<S> {
        SurfaceChild {
            name: self.name,
            surface: Arc::new(surface),
            limits: self.limits,
            ports: ports.clone(),
            stats: Arc::new(SurfaceStats::default()),
            cell: self.cell,
            address: self.address,
            declared_in: tracing::Span::current(),
            actor: None,
        }
    }
}

impl<S: Surface> SurfaceChild<S> {
    /// Returns the address.
    pub fn address(&self) -> Address<S::Message> {
        self.address.clone()
    }

    async fn spawn(&mut self, supervisor: ActorCell, generation: u64) -> Result<(), Down> {
        let runner = Runner {
            name: self.name,
            surface: Arc::clone(&self.surface),
            generation,
            ports: self.ports.clone(),
            stats: Arc::clone(&self.stats),
            address: self.address.clone(),
            declared_in: self.declared_in.clone(),
        };
        let spawned = tokio::time::timeout(self.limits.start, Actor::spawn_linked(None, runner, (), supervisor)).await;
        match spawned {
            Ok(Ok((actor, _join))) => {
                self.actor = Some(actor.clone());
                self.cell.send_replace(Lifecycle::Up(actor));
                Ok(())
            }
            Ok(Err(SpawnErr::StartupFailed(error))) => Err(match fault_of(&error) {
                Fault::Down(down) => down,
                Fault::Restart(reason) => unexpected_down(format!("it failed to start: {reason}")),
            }),
            Ok(Err(error)) => Err(unexpected_down(format!("it failed to start: {error}"))),
            Err(_elapsed) => Err(unexpected_down(format!("it did not start within {} s", self.limits.start.as_secs()))),
        }
    }

    async fn end_incarnation(&mut self) {
        let Some(actor) = self.actor.take() else { return };
        let cell = actor.get_cell();
        // The supervisor ends it on purpose, so its end is no event. A second `stop_and_wait` would return at once
        // while the actor still runs, hence the separate waits.
        if let Some(supervisor) = cell.try_get_supervisor() {
            cell.unlink(supervisor);
        }
        let _already_ending = cell.drain();
        if cell.wait(Some(self.limits.drain)).await.is_ok() {
            return;
        }
        tracing::warn!(surface = self.name, "what was queued did not finish in time; the rest is interrupted");
        cell.stop(None);
        if cell.wait(Some(self.limits.stop)).await.is_ok() {
            return;
        }
        tracing::error!(surface = self.name, "the surface did not stop in time and is killed");
        cell.kill();
        // A kill ends at the next await; synchronous code can hold it longer, and nothing more can be done then.
        let _gone = cell.wait(Some(self.limits.stop)).await;
    }
}

impl<S: Surface> Child for SurfaceChild<S> {
    fn observed(&self) -> Observed {
        let address = self.address.clone();
        let in_flight_max = self.limits.in_flight_max;
        Observed {
            name: self.name,
            stats: Arc::clone(&self.stats),
            in_flight_max,
            look: Arc::new(move || {
                (address.state_name(), address.down(), in_flight_max.saturating_sub(address.permits_available()))
            }),
        }
    }

    fn incarnation(&self) -> Option<ActorId> {
        self.actor.as_ref().map(|actor| actor.get_id())
    }

    fn start(&mut self, supervisor: ActorCell, generation: u64) -> BoxFuture<'_, Result<(), Down>> {
        Box::pin(async move {
            let outcome = self.spawn(supervisor, generation).await;
            if let Err(down) = &outcome {
                tracing::error!(surface = self.name, reason = %down.reason, remedy = %down.remedy, "surface is down");
                self.mark_down(down.clone());
            }
            outcome
        })
    }

    fn end(&mut self, for_good: bool) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if !for_good {
                self.cell.send_replace(Lifecycle::Starting);
            }
            self.end_incarnation().await;
            if for_good {
                self.cell.send_replace(Lifecycle::Stopped);
            }
        })
    }

    fn died(&mut self) {
        self.actor = None;
        self.stats.crashed();
        self.cell.send_replace(Lifecycle::Starting);
    }

    fn mark_down(&mut self, down: Down) {
        self.actor = None;
        self.cell.send_replace(Lifecycle::Down(down));
    }
}

/// The `Down` of a surface that crashed too often.
pub(super) fn gave_up(restarts_max: usize, period: Duration, last: &str) -> Down {
    Down {
        kind: ErrorKind::Down,
        reason: format!("it crashed more than {restarts_max} times in {} s; last: {last}", period.as_secs()),
        remedy: "see the log for the cause, then `holdfast reload`".to_owned(),
    }
}
