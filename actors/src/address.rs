//! Addresses, not references: an [`Address`] names an actor of one tree and outlives its incarnations.
//!
//! A call made while the actor restarts waits, bounded by the caller's limit. A message that an incarnation refused
//! because it was ending comes back untouched and goes to the next one. A message that was accepted by an
//! incarnation that then died is [`CallError::Interrupted`]: its outcome is unknown.

use std::sync::Arc;
use std::time::Duration;

use holdfast_protocol::error::{ErrorKind, WireError};
use ractor::{ActorId, ActorRef, MessagingErr};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};

use crate::reply::Reply;

/// How long a message of the hot path may wait for the next incarnation before it is answered `Timeout`.
const POST_LIMIT: Duration = Duration::from_secs(30);

/// Why a surface cannot serve, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Down {
    /// The stable kind (`damaged`, `newer_schema`, `down`, …).
    pub kind: ErrorKind,
    /// What is wrong, with the path where there is one.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

/// Why a call brought no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Too many messages are in flight; nothing was done.
    #[error("too many requests are in flight")]
    Busy,
    /// The actor died with the message in hand; the outcome is unknown.
    #[error("the request was interrupted by a restart; its outcome is unknown")]
    Interrupted,
    /// No answer in time; the outcome is unknown.
    #[error("no answer in time; the outcome is unknown")]
    Timeout,
    /// The surface cannot serve.
    #[error("{0}")]
    Down(Down),
    /// The tree has ended.
    #[error("the daemon is stopping")]
    Stopped,
}

impl From<CallError> for WireError {
    fn from(error: CallError) -> Self {
        let message = error.to_string();
        match error {
            CallError::Busy => WireError::new(ErrorKind::Busy, message).with_remedy("try again shortly"),
            CallError::Interrupted => {
                WireError::new(ErrorKind::Interrupted, message).with_remedy("repeat it with the same idempotency key")
            }
            CallError::Timeout => {
                WireError::new(ErrorKind::Timeout, message).with_remedy("repeat it with the same idempotency key")
            }
            CallError::Down(down) => WireError::new(down.kind, down.reason).with_remedy(down.remedy),
            CallError::Stopped => WireError::new(ErrorKind::Stopping, message),
        }
    }
}

/// What travels to an actor: the message and, for facts, its permit (a request's permit sits in its reply).
pub(crate) struct Envelope<M> {
    pub(crate) message: M,
    pub(crate) _permit: Option<OwnedSemaphorePermit>,
}

/// Where an actor stands, as its addresses see it.
pub(crate) enum Lifecycle<M> {
    /// Not there yet, or between two incarnations.
    Starting,
    /// This incarnation serves.
    Up(ActorRef<Envelope<M>>),
    /// It cannot serve until the next reload.
    Down(Down),
    /// Its tree has ended.
    Stopped,
}

/// The name of an actor of one tree. Cheap to clone.
pub struct Address<M> {
    name: &'static str,
    cell: watch::Receiver<Lifecycle<M>>,
    permits: Arc<Semaphore>,
}

impl<M> Clone for Address<M> {
    fn clone(&self) -> Self {
        Self { name: self.name, cell: self.cell.clone(), permits: Arc::clone(&self.permits) }
    }
}

impl<M> std::fmt::Debug for Address<M> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Address").field(&self.name).finish()
    }
}

/// What stopped a delivery that was not accepted.
enum Refused {
    /// Wait until another incarnation than this one is published.
    NotYet(Option<ActorId>),
    Never(CallError),
}

impl<M: Send + 'static> Address<M> {
    pub(crate) fn new(name: &'static str, cell: watch::Receiver<Lifecycle<M>>, in_flight_max: usize) -> Self {
        Self { name, cell, permits: Arc::new(Semaphore::new(in_flight_max)) }
    }

    /// Returns the name of the actor, for people.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns how many more messages may be in flight now.
    pub fn permits_available(&self) -> usize {
        self.permits.available_permits()
    }

    /// Says why the actor cannot serve, if it cannot.
    pub fn down(&self) -> Option<Down> {
        match &*self.cell.borrow() {
            Lifecycle::Down(down) => Some(down.clone()),
            Lifecycle::Starting | Lifecycle::Up(_) | Lifecycle::Stopped => None,
        }
    }

    /// Returns the state as people read it: `starting`, `up`, `down` or `stopped`.
    pub fn state_name(&self) -> &'static str {
        match &*self.cell.borrow() {
            Lifecycle::Starting => "starting",
            Lifecycle::Up(_) => "up",
            Lifecycle::Down(_) => "down",
            Lifecycle::Stopped => "stopped",
        }
    }

    /// Asks and waits for the answer, `limit` at most.
    ///
    /// # Errors
    /// [`CallError::Busy`] at once when the bound on messages in flight is reached; the others as their docs say.
    pub async fn call<T>(&self, limit: Duration, build: impl FnOnce(Reply<T>) -> M) -> Result<T, CallError> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|error| match error {
            TryAcquireError::NoPermits => CallError::Busy,
            TryAcquireError::Closed => CallError::Stopped,
        })?;
        within(limit, self.ask(permit, build)).await
    }

    /// Like [`Self::call`], but waits for a permit instead of answering `Busy`: for streams inside the daemon, which
    /// must not lose anything.
    ///
    /// # Errors
    /// As [`Self::call`], but never [`CallError::Busy`].
    pub async fn call_waiting<T>(&self, limit: Duration, build: impl FnOnce(Reply<T>) -> M) -> Result<T, CallError> {
        within(limit, async {
            let permit = self.permit().await?;
            self.ask(permit, build).await
        })
        .await
    }

    /// Sends a request whose answer goes through `reply`, whatever happens. Never blocks and never fails by itself.
    pub fn post<T: Send + 'static>(&self, mut reply: Reply<T>, build: impl FnOnce(Reply<T>) -> M) {
        match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => reply.hold(permit),
            Err(TryAcquireError::NoPermits) => return reply.fail(CallError::Busy),
            Err(TryAcquireError::Closed) => return reply.fail(CallError::Stopped),
        }
        if let Some(error) = self.refusal() {
            return reply.fail(error);
        }
        let envelope = Envelope { message: build(reply), _permit: None };
        if let Err((envelope, Refused::NotYet(_))) = self.try_deliver(envelope) {
            let address = self.clone();
            // The slow path, between two incarnations. A message that never gets through drops its reply, which
            // answers `Interrupted`.
            tokio::spawn(async move { within(POST_LIMIT, address.deliver(envelope)).await });
        }
    }

    /// Sends a request whose answer goes through `reply`; returns once the message is accepted, so that messages of
    /// one sender keep their order across restarts. Waits for a permit instead of answering `Busy`.
    ///
    /// # Errors
    /// [`CallError::Down`] and [`CallError::Stopped`] when nobody will ever accept it.
    pub async fn post_in_order<T>(
        &self,
        mut reply: Reply<T>,
        build: impl FnOnce(Reply<T>) -> M,
    ) -> Result<(), CallError> {
        reply.hold(self.permit().await?);
        self.deliver(Envelope { message: build(reply), _permit: None }).await
    }

    /// Tells a fact: nobody answers. Waits until it is accepted, so that facts of one sender keep their order.
    ///
    /// # Errors
    /// [`CallError::Down`] and [`CallError::Stopped`] when nobody will ever accept it.
    pub async fn tell(&self, message: M) -> Result<(), CallError> {
        let permit = self.permit().await?;
        self.deliver(Envelope { message, _permit: Some(permit) }).await
    }

    /// Tells a fact at once or not at all: for actors that come and go, where nobody waits for the next incarnation.
    ///
    /// # Errors
    /// [`CallError::Busy`] when the bound is reached, [`CallError::Down`] or [`CallError::Stopped`] when it is not there.
    pub fn tell_now(&self, message: M) -> Result<(), CallError> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|error| match error {
            TryAcquireError::NoPermits => CallError::Busy,
            TryAcquireError::Closed => CallError::Stopped,
        })?;
        match self.try_deliver(Envelope { message, _permit: Some(permit) }) {
            Ok(()) => Ok(()),
            Err((_, Refused::Never(error))) => Err(error),
            Err((_, Refused::NotYet(_))) => Err(CallError::Stopped),
        }
    }

    /// Waits until the actor serves or is known not to.
    ///
    /// # Errors
    /// [`CallError::Down`] or [`CallError::Stopped`].
    pub async fn ready(&self) -> Result<(), CallError> {
        let mut cell = self.cell.clone();
        let settled = cell.wait_for(|state| !matches!(state, Lifecycle::Starting)).await;
        match settled.as_deref() {
            Ok(Lifecycle::Up(_) | Lifecycle::Starting) => Ok(()),
            Ok(Lifecycle::Down(down)) => Err(CallError::Down(down.clone())),
            Ok(Lifecycle::Stopped) | Err(_) => Err(CallError::Stopped),
        }
    }

    /// Waits until the actor is known not to serve, and returns why.
    pub async fn refused(&self) -> CallError {
        let mut cell = self.cell.clone();
        let refused = cell.wait_for(|state| matches!(state, Lifecycle::Down(_) | Lifecycle::Stopped)).await;
        match refused.as_deref() {
            Ok(Lifecycle::Down(down)) => CallError::Down(down.clone()),
            Ok(Lifecycle::Stopped | Lifecycle::Starting | Lifecycle::Up(_)) | Err(_) => CallError::Stopped,
        }
    }

    /// Waits until the actor has ended for good.
    pub async fn stopped(&self) {
        let mut cell = self.cell.clone();
        // An error means that the slot itself is gone, which is the same thing.
        let _gone = cell.wait_for(|state| matches!(state, Lifecycle::Stopped)).await;
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit, CallError> {
        Arc::clone(&self.permits).acquire_owned().await.map_err(|_closed| CallError::Stopped)
    }

    async fn ask<T>(&self, permit: OwnedSemaphorePermit, build: impl FnOnce(Reply<T>) -> M) -> Result<T, CallError> {
        let (mut reply, answer) = Reply::oneshot();
        reply.hold(permit);
        self.deliver(Envelope { message: build(reply), _permit: None }).await?;
        answer.await.map_err(|_dropped| CallError::Interrupted)
    }

    fn refusal(&self) -> Option<CallError> {
        match &*self.cell.borrow() {
            Lifecycle::Up(_) | Lifecycle::Starting => None,
            Lifecycle::Down(down) => Some(CallError::Down(down.clone())),
            Lifecycle::Stopped => Some(CallError::Stopped),
        }
    }

    fn try_deliver(&self, envelope: Envelope<M>) -> Result<(), (Envelope<M>, Refused)> {
        match &*self.cell.borrow() {
            Lifecycle::Up(actor) => match actor.cast(envelope) {
                Ok(()) => Ok(()),
                Err(MessagingErr::SendErr(envelope)) => Err((envelope, Refused::NotYet(Some(actor.get_id())))),
                // The other two cannot happen with a typed, live reference; if they did, the message is gone and its
                // dropped reply answers `Interrupted`.
                Err(MessagingErr::ChannelClosed | MessagingErr::InvalidActorType) => Ok(()),
            },
            Lifecycle::Starting => Err((envelope, Refused::NotYet(None))),
            Lifecycle::Down(down) => Err((envelope, Refused::Never(CallError::Down(down.clone())))),
            Lifecycle::Stopped => Err((envelope, Refused::Never(CallError::Stopped))),
        }
    }

    async fn deliver(&self, mut envelope: Envelope<M>) -> Result<(), CallError> {
        let mut cell = self.cell.clone();
        loop {
            match self.try_deliver(envelope) {
                Ok(()) => return Ok(()),
                Err((_, Refused::Never(error))) => return Err(error),
                Err((back, Refused::NotYet(incarnation))) => {
                    envelope = back;
                    let changed = cell.wait_for(|state| match state {
                        Lifecycle::Up(actor) => Some(actor.get_id()) != incarnation,
                        Lifecycle::Down(_) | Lifecycle::Stopped => true,
                        Lifecycle::Starting => false,
                    });
                    if changed.await.is_err() {
                        return Err(CallError::Stopped);
                    }
                }
            }
        }
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
    tokio::time::timeout(limit, work).await.unwrap_or(Err(CallError::Timeout))
}
