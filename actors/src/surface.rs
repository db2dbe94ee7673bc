//! The one way to declare an actor: implement [`Surface`].

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use holdfast_protocol::error::ErrorKind;
use ractor::{Actor, ActorProcessingErr, ActorRef, MessagingErr};
use tracing::Instrument;

use crate::address::{Address, Down, Envelope};
use crate::ports::Ports;
use crate::stats::SurfaceStats;

/// An actor that owns one store (or one piece of process-local state).
///
/// `Self` holds what never changes over restarts (paths, addresses); `State` is what one incarnation owns.
pub trait Surface: Send + Sync + 'static {
    /// What it can be asked or told: an enum whose requests carry a [`crate::reply::Reply`].
    type Message: Send + 'static;
    /// What one incarnation owns.
    type State: Send + 'static;

    /// Opens what the actor owns. It serves once this returns.
    ///
    /// # Errors
    /// [`Down`] leaves the surface down and the rest running, until the next reload.
    fn start(&self, context: &Context<Self::Message>) -> impl Future<Output = Result<Self::State, Down>> + Send;

    /// Handles one message. Domain errors travel in the reply, not here.
    ///
    /// # Errors
    /// [`Fault`] ends this incarnation.
    fn handle(
        &self,
        context: &Context<Self::Message>,
        message: Self::Message,
        state: &mut Self::State,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Finishes what is pending and closes what the actor owns. Not called after a crash.
    fn stop(&self, context: &Context<Self::Message>, state: Self::State) -> impl Future<Output = ()> + Send;
}

/// Why an incarnation ends itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Start me again: what I hold in memory may be wrong.
    #[error("{0}")]
    Restart(String),
    /// Starting again would not help.
    #[error("{0}")]
    Down(Down),
}

/// What an actor knows about itself while it runs.
pub struct Context<M> {
    /// The generation of the tree.
    pub generation: u64,
    /// Time, ids and randomness.
    pub ports: Ports,
    /// Where commits and sizes are recorded.
    pub stats: Arc<SurfaceStats>,
    address: Address<M>,
    myself: ActorRef<Envelope<M>>,
}

impl<M: Send + 'static> Context<M> {
    /// Sends a message to this incarnation, behind all that is queued.
    ///
    /// # Errors
    /// Hands the message back while the actor is ending: do now what it would have done.
    pub fn cast_self(&self, message: M) -> Result<(), M> {
        self.reporter().report(message)
    }

    /// Returns what a task of this incarnation needs to report back to it.
    pub fn reporter(&self) -> Reporter<M> {
        Reporter { actor: self.myself.clone() }
    }

    /// Returns the actor's own address, to hand on to others.
    pub fn address(&self) -> &Address<M> {
        &self.address
    }

    /// Ends this actor after what is queued. For actors that come and go; a supervised surface is started again.
    pub fn stop_self(&self) {
        // Already ending is just as good.
        let _ending = self.myself.drain();
    }
}

/// Reports to one incarnation and to no later one: the way back for a task it spawned.
pub struct Reporter<M> {
    actor: ActorRef<Envelope<M>>,
}

impl<M> Clone for Reporter<M> {
    fn clone(&self) -> Self {
        Self { actor: self.actor.clone() }
    }
}

impl<M: Send + 'static> Reporter<M> {
    /// Reports.
    ///
    /// # Errors
    /// Hands the message back when that incarnation is ending or gone.
    pub fn report(&self, message: M) -> Result<(), M> {
        match self.actor.cast(Envelope { message, _permit: None }) {
            Ok(()) => Ok(()),
            Err(MessagingErr::SendErr(envelope)) => Err(envelope.message),
            // Not with a typed reference to a local actor; the message is gone either way.
            Err(MessagingErr::ChannelClosed | MessagingErr::InvalidActorType) => Ok(()),
        }
    }
}

/// Runs one incarnation of a surface as a ractor actor.
pub(crate) struct Runner<S: Surface> {
    pub(crate) name: &'static str,
    pub(crate) surface: Arc<S>,
    pub(crate) generation: u64,
    pub(crate) ports: Ports,
    pub(crate) stats: Arc<SurfaceStats>,
    pub(crate) address: Address<S::Message>,
    /// The span the surface was declared in: it says whose the events are when nobody's request is being handled.
    pub(crate) declared_in: tracing::Span,
}

impl<S: Surface> Runner<S> {
    fn span(&self) -> tracing::Span {
        match tracing::Span::current().is_none() {
            true => {
                tracing::info_span!(parent: &self.declared_in, "surface", surface = self.name, generation = self.generation)
            }
            false => tracing::info_span!("surface", surface = self.name, generation = self.generation),
        }
    }
}

/// The context and, until it stops, the state of an incarnation.
pub(crate) struct Running<S: Surface> {
    context: Context<S::Message>,
    state: Option<S::State>,
}

/// How a fault crosses ractor, which knows only boxed errors.
#[derive(Debug)]
pub(crate) struct FaultError(pub(crate) Fault);

impl fmt::Display for FaultError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl std::error::Error for FaultError {}

/// Reads what ended an incarnation or kept it from starting.
pub(crate) fn fault_of(error: &ActorProcessingErr) -> Fault {
    match error.downcast_ref::<FaultError>() {
        Some(FaultError(fault)) => fault.clone(),
        None => Fault::Restart(error.to_string()),
    }
}

/// The `Down` of a start that panicked or failed in a way it did not foresee.
pub(crate) fn unexpected_down(reason: String) -> Down {
    Down {
        kind: ErrorKind::Down,
        reason,
        remedy: "see `holdfast status` and the log; then `holdfast reload`".to_owned(),
    }
}

impl<S: Surface> Actor for Runner<S> {
    type Msg = Envelope<S::Message>;
    type State = Running<S>;
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<Self::Msg>, (): ()) -> Result<Self::State, ActorProcessingErr> {
        let context = Context {
            generation: self.generation,
            ports: self.ports.clone(),
            stats: Arc::clone(&self.stats),
            address: self.address.clone(),
            myself,
        };
        self.stats.started(self.generation);
        let span = self.span();
        match self.surface.start(&context).instrument(span).await {
            Ok(state) => Ok(Running { context, state: Some(state) }),
            Err(down) => Err(Box::new(FaultError(Fault::Down(down)))),
        }
    }

    async fn handle(
        &self,
        _myself: ActorRef<Self::Msg>,
        envelope: Self::Msg,
        running: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let Some(state) = running.state.as_mut() else { return Ok(()) };
        let span = self.span();
        let outcome = self.surface.handle(&running.context, envelope.message, state).instrument(span).await;
        self.stats.message_handled();
        outcome.map_err(|fault| Box::new(FaultError(fault)) as ActorProcessingErr)
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<Self::Msg>,
        running: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        if let Some(state) = running.state.take() {
            let span = self.span();
            self.surface.stop(&running.context, state).instrument(span).await;
        }
        Ok(())
    }
}
