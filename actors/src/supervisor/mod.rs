//! Our own supervisor: ordered awaited start, ordered end that never kills in mid-write, planned reloads that do not
//! count as crashes, no global names. `docs/decisions/0001-own-supervisor.md` says why it is ours.

mod child;
mod dynamic;
mod intensity;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};

pub use child::{Child, Limits, Observed, Slot, SurfaceChild, child};
pub use dynamic::{DynamicSupervisor, Ended};
pub use intensity::Intensity;

use crate::address::Down;
use crate::surface::{Fault, fault_of};
use child::gave_up;
use intensity::{CrashWindow, Verdict};

/// Which children are started again when one crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Only the one that crashed.
    OneForOne,
    /// The one that crashed and those started after it.
    RestForOne,
    /// All.
    OneForAll,
}

/// What a supervisor is made of. Children start in this order and end in the reverse.
pub struct SupervisorSpec {
    /// For people and logs.
    pub name: &'static str,
    /// Who is restarted with whom.
    pub strategy: Strategy,
    /// How often.
    pub intensity: Intensity,
    /// The children.
    pub children: Vec<Box<dyn Child>>,
}

/// How one child came out of a start or a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildOutcome {
    /// Its name.
    pub name: &'static str,
    /// The generation it now runs.
    pub generation: u64,
    /// How long it took, from the beginning of its end to the end of its start.
    pub took: Duration,
    /// Why it is down, if it is.
    pub down: Option<Down>,
}

/// A running supervisor. Dropping the handle does not end it.
#[derive(Clone)]
pub struct Supervisor {
    actor: ActorRef<SupervisorMessage>,
    observed: Vec<Observed>,
}

enum SupervisorMessage {
    Reload { generation: u64, reply: RpcReplyPort<Vec<ChildOutcome>> },
    Stop { reply: RpcReplyPort<()> },
    RestartDue { index: usize, epoch: u64 },
}

impl Supervisor {
    /// Starts the children in order, each awaited, and returns when the last has started or is known to be down.
    ///
    /// # Errors
    /// Only if the supervisor itself cannot run; a child that cannot start is `Down`, not an error.
    pub async fn start(
        spec: SupervisorSpec,
        generation: u64,
        parent: Option<ActorCell>,
    ) -> Result<(Self, Vec<ChildOutcome>), ActorProcessingErr> {
        let observed = spec.children.iter().map(|child| child.observed()).collect();
        let (outcomes_sender, outcomes) = tokio::sync::oneshot::channel();
        let arguments = (spec, generation, outcomes_sender);
        let (actor, _join) = match parent {
            Some(parent) => Actor::spawn_linked(None, SupervisorActor, arguments, parent).await?,
            None => Actor::spawn(None, SupervisorActor, arguments).await?,
        };
        Ok((Self { actor, observed }, outcomes.await?))
    }

    /// Restarts every child: all end in reverse order, then all start in order. Nothing of it counts as a crash.
    ///
    /// # Errors
    /// When the supervisor has ended.
    pub async fn reload(&self, generation: u64) -> Result<Vec<ChildOutcome>, SupervisorGone> {
        match self.actor.call(|reply| SupervisorMessage::Reload { generation, reply }, None).await {
            Ok(ractor::rpc::CallResult::Success(outcomes)) => Ok(outcomes),
            Ok(_) | Err(_) => Err(SupervisorGone),
        }
    }

    /// Ends all children in reverse order, then the supervisor.
    pub async fn stop(&self) {
        // If it is gone already, so are its children.
        let _ended = self.actor.call(|reply| SupervisorMessage::Stop { reply }, None).await;
        let _gone = self.actor.get_cell().wait(Some(Duration::from_secs(5))).await;
    }

    /// Returns what health sees of the children, in order.
    pub fn observed(&self) -> &[Observed] {
        &self.observed
    }
}

/// The supervisor has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the supervisor has ended")]
pub struct SupervisorGone;

struct SupervisorActor;

struct Supervised {
    child: Box<dyn Child>,
    crashes: CrashWindow,
    /// Counts planned and unplanned changes, so that a restart that was due before one of them is forgotten.
    epoch: u64,
}

struct SupervisorState {
    name: &'static str,
    strategy: Strategy,
    intensity: Intensity,
    children: Vec<Supervised>,
    generation: u64,
    since: Instant,
}

impl Actor for SupervisorActor {
    type Msg = SupervisorMessage;
    type State = SupervisorState;
    type Arguments = (SupervisorSpec, u64, tokio::sync::oneshot::Sender<Vec<ChildOutcome>>);

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        (spec, generation, outcomes): Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let supervised = |child| Supervised { child, crashes: CrashWindow::default(), epoch: 0 };
        let mut state = SupervisorState {
            name: spec.name,
            strategy: spec.strategy,
            intensity: spec.intensity,
            children: spec.children.into_iter().map(supervised).collect(),
            generation,
            since: Instant::now(),
        };
        let mut started = Vec::with_capacity(state.children.len());
        for index in 0..state.children.len() {
            started.push(state.start_child(&myself, index, Instant::now()).await);
        }
        // A starter that no longer waits has its reasons; the children run either way.
        let _unheard = outcomes.send(started);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SupervisorMessage::Reload { generation, reply } => {
                let outcomes = state.reload(&myself, generation).await;
                let _unheard = reply.send(outcomes);
            }
            SupervisorMessage::Stop { reply } => {
                state.end_from(0, true).await;
                let _unheard = reply.send(());
                myself.stop(None);
            }
            SupervisorMessage::RestartDue { index, epoch } => state.restart_due(&myself, index, epoch).await,
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(cell, error) => {
                state.child_ended(&myself, cell.get_id(), fault_of(&error)).await;
            }
            SupervisionEvent::ActorTerminated(cell, last_state, reason) => {
                // The dead child's state holds its files; let go of them before the next incarnation opens them.
                drop(last_state);
                let reason = reason.unwrap_or_else(|| "it ended by itself".to_owned());
                state.child_ended(&myself, cell.get_id(), Fault::Restart(reason)).await;
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }

    async fn post_stop(&self, _myself: ActorRef<Self::Msg>, state: &mut Self::State) -> Result<(), ActorProcessingErr> {
        // After an orderly stop nothing is left to end; after any other, children must not be killed in mid-write.
        state.end_from(0, true).await;
        Ok(())
    }
}

impl SupervisorState {
    async fn start_child(
        &mut self,
        myself: &ActorRef<SupervisorMessage>,
        index: usize,
        began: Instant,
    ) -> ChildOutcome {
        let generation = self.generation;
        let supervised = &mut self.children[index];
        supervised.epoch += 1;
        let down = supervised.child.start(myself.get_cell(), generation).await.err();
        ChildOutcome { name: supervised.child.observed().name, generation, took: began.elapsed(), down }
    }

    async fn end_from(&mut self, first: usize, for_good: bool) {
        for supervised in self.children[first..].iter_mut().rev() {
            supervised.epoch += 1;
            supervised.child.end(for_good).await;
        }
    }

    async fn reload(&mut self, myself: &ActorRef<SupervisorMessage>, generation: u64) -> Vec<ChildOutcome> {
        self.generation = generation;
        let mut began = vec![Instant::now(); self.children.len()];
        for (index, supervised) in self.children.iter_mut().enumerate().rev() {
            began[index] = Instant::now();
            supervised.epoch += 1;
            supervised.crashes.forget();
            supervised.child.end(false).await;
        }
        let mut outcomes = Vec::with_capacity(self.children.len());
        for (index, began) in began.into_iter().enumerate() {
            outcomes.push(self.start_child(myself, index, began).await);
        }
        outcomes
    }

    async fn child_ended(&mut self, myself: &ActorRef<SupervisorMessage>, id: ActorId, fault: Fault) {
        // Events of incarnations that were ended on purpose find nobody here.
        let Some(index) = self.children.iter().position(|one| one.child.incarnation() == Some(id)) else { return };
        let now = self.since.elapsed();
        let name = self.children[index].child.observed().name;
        let reason = match fault {
            Fault::Down(down) => {
                tracing::error!(supervisor = self.name, surface = name, reason = %down.reason, "surface went down");
                self.children[index].epoch += 1;
                self.children[index].child.mark_down(down);
                return;
            }
            Fault::Restart(reason) => reason,
        };
        self.children[index].child.died();
        match self.children[index].crashes.crashed(now, &self.intensity) {
            Verdict::GiveUp => {
                let down = gave_up(self.intensity.restarts_max, self.intensity.period, &reason);
                tracing::error!(supervisor = self.name, surface = name, %reason, "surface crashed too often and is down");
                self.children[index].epoch += 1;
                self.children[index].child.mark_down(down);
            }
            Verdict::RestartAfter(pause) => {
                tracing::error!(supervisor = self.name, surface = name, %reason, ?pause, "surface crashed; restarting");
                self.children[index].epoch += 1;
                let due = SupervisorMessage::RestartDue { index, epoch: self.children[index].epoch };
                if pause.is_zero() {
                    self.restart_due(myself, index, self.children[index].epoch).await;
                } else {
                    let myself = myself.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(pause).await;
                        // A supervisor that ended meanwhile restarts nobody.
                        let _ended = myself.cast(due);
                    });
                }
            }
        }
    }

    async fn restart_due(&mut self, myself: &ActorRef<SupervisorMessage>, index: usize, epoch: u64) {
        if self.children[index].epoch != epoch {
            return;
        }
        match self.strategy {
            Strategy::OneForOne => {
                self.start_child(myself, index, Instant::now()).await;
            }
            Strategy::RestForOne => self.restart_from(myself, index).await,
            Strategy::OneForAll => self.restart_from(myself, 0).await,
        }
    }

    async fn restart_from(&mut self, myself: &ActorRef<SupervisorMessage>, first: usize) {
        self.end_from(first, false).await;
        for index in first..self.children.len() {
            self.start_child(myself, index, Instant::now()).await;
        }
    }
}
