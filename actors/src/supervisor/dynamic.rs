//! Children that come and go: client connections, adapters, sessions in flight.

use std::collections::HashMap;

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};

use crate::address::{Address, CallError, Down};
use crate::ports::Ports;
use crate::supervisor::child::{Child, Limits, Slot};
use crate::surface::{Fault, Surface, fault_of};

/// How a dynamic child ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// By itself, or with its supervisor.
    Normally,
    /// By a panic or a fault; the text says which.
    Crashed(String),
}

type OnEnd = Box<dyn FnOnce(Ended) + Send>;

/// Supervises children that are never restarted: a failure of one ends only that one, and whoever asked for it is told.
#[derive(Clone)]
pub struct DynamicSupervisor {
    actor: ActorRef<DynamicMessage>,
    ports: Ports,
    generation: u64,
}

enum DynamicMessage {
    Spawn { child: Box<dyn Child>, generation: u64, on_end: OnEnd, reply: RpcReplyPort<Result<(), Down>> },
    Stop { reply: RpcReplyPort<()> },
}

impl DynamicSupervisor {
    /// Starts one without children.
    ///
    /// # Errors
    /// Only if the supervisor itself cannot run.
    pub async fn start(ports: &Ports, generation: u64, parent: Option<ActorCell>) -> Result<Self, ActorProcessingErr> {
        let (actor, _join) = match parent {
            Some(parent) => Actor::spawn_linked(None, DynamicActor, (), parent).await?,
            None => Actor::spawn(None, DynamicActor, ()).await?,
        };
        Ok(Self { actor, ports: ports.clone(), generation })
    }

    /// Starts a child and returns its address; `on_end` is told when it has ended.
    ///
    /// # Errors
    /// [`CallError::Down`] when it cannot start, [`CallError::Stopped`] when the supervisor has ended.
    pub async fn spawn<S: Surface>(
        &self,
        name: &'static str,
        limits: Limits,
        surface: S,
        on_end: impl FnOnce(Ended) + Send + 'static,
    ) -> Result<Address<S::Message>, CallError> {
        let slot = Slot::new(name, limits);
        let address = slot.address();
        self.spawn_in(slot, surface, on_end).await?;
        Ok(address)
    }

    /// Like [`Self::spawn`], for a place whose address is already known to others.
    ///
    /// # Errors
    /// As [`Self::spawn`].
    pub async fn spawn_in<S: Surface>(
        &self,
        slot: Slot<S::Message>,
        surface: S,
        on_end: impl FnOnce(Ended) + Send + 'static,
    ) -> Result<(), CallError> {
        let child: Box<dyn Child> = Box::new(slot.fill(&self.ports, surface));
        let generation = self.generation;
        let on_end: OnEnd = Box::new(on_end);
        let spawn = |reply| DynamicMessage::Spawn { child, generation, on_end, reply };
        match self.actor.call(spawn, None).await {
            Ok(ractor::rpc::CallResult::Success(outcome)) => outcome.map_err(CallError::Down),
            Ok(_) | Err(_) => Err(CallError::Stopped),
        }
    }

    /// Ends all children, all at once and each within its limits, then the supervisor.
    pub async fn stop(&self) {
        // If it is gone already, so are its children.
        let _ended = self.actor.call(|reply| DynamicMessage::Stop { reply }, None).await;
    }
}

struct DynamicActor;

type DynamicState = HashMap<ActorId, (Box<dyn Child>, OnEnd)>;

impl Actor for DynamicActor {
    type Msg = DynamicMessage;
    type State = DynamicState;
    type Arguments = ();

    async fn pre_start(&self, _myself: ActorRef<Self::Msg>, (): ()) -> Result<Self::State, ActorProcessingErr> {
        Ok(HashMap::new())
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            DynamicMessage::Spawn { mut child, generation, on_end, reply } => {
                let outcome = child.start(myself.get_cell(), generation).await;
                if let (Ok(()), Some(id)) = (&outcome, child.incarnation()) {
                    state.insert(id, (child, on_end));
                }
                let _unheard = reply.send(outcome);
            }
            DynamicMessage::Stop { reply } => {
                end_all(state).await;
                let _unheard = reply.send(());
                myself.stop(None);
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let (id, ended) = match event {
            SupervisionEvent::ActorFailed(cell, error) => {
                let reason = match fault_of(&error) {
                    Fault::Restart(reason) => reason,
                    Fault::Down(down) => down.reason,
                };
                (cell.get_id(), Ended::Crashed(reason))
            }
            SupervisionEvent::ActorTerminated(cell, last_state, _reason) => {
                drop(last_state);
                (cell.get_id(), Ended::Normally)
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => return Ok(()),
        };
        if let Some((mut child, on_end)) = state.remove(&id) {
            if let Ended::Crashed(reason) = &ended {
                tracing::error!(child = child.observed().name, %reason, "child crashed");
            }
            child.end(true).await;
            on_end(ended);
        }
        Ok(())
    }

    async fn post_stop(&self, _myself: ActorRef<Self::Msg>, state: &mut Self::State) -> Result<(), ActorProcessingErr> {
        end_all(state).await;
        Ok(())
    }
}

async fn end_all(state: &mut DynamicState) {
    let children: Vec<(Box<dyn Child>, OnEnd)> = state.drain().map(|(_, entry)| entry).collect();
    let endings = children.into_iter().map(|(mut child, on_end)| async move {
        child.end(true).await;
        on_end(Ended::Normally);
    });
    futures_util::future::join_all(endings).await;
}

impl std::fmt::Debug for DynamicSupervisor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("DynamicSupervisor").finish_non_exhaustive()
    }
}
