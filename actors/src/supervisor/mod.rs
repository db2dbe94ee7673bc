//! Our own supervisor: ordered awaited start, ordered end that never kills in mid-write, planned reloads that do not
//! count as crashes, no global names. `docs/decisions/0001-own-supervisor.md` says why it is ours.

mod child;
mod dynamic;
mod intensity;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use futures_util::future::join_all;
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
    /// The one that crashed and those of later stages.
    RestForOne,
    /// All.
    OneForAll,
}

/// Children that do not need each other: they start at once, and end at once.
pub type Stage = Vec<Box<dyn Child>>;

/// What a supervisor is made of. Stages start in this order, each awaited, and end in the reverse.
pub struct SupervisorSpec {
    /// For people and logs.
    pub name: &'static str,
    /// Who is restarted with whom.
    pub strategy: Strategy,
    /// How often.
    pub intensity: Intensity,
    /// The children.
    pub stages: Vec<Stage>,
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
    /// Starts the stages in order, each awaited, and returns when the last has started or is known to be down.
    ///
    /// # Errors
    /// Only if the supervisor itself cannot run; a child that cannot start is `Down`, not an error.
    pub async fn start(
        spec: SupervisorSpec,
        generation: u64,
        parent: Option<ActorCell>,
    ) -> Result<(Self, Vec<ChildOutcome>), ActorProcessingErr> {
        let observed = spec.stages.iter().flatten().map(|child| child.observed()).collect();
        let (outcomes_sender, outcomes) = tokio::sync::oneshot::channel();
        let arguments = (spec, generation, outcomes_sender);
        let (actor, _join) = match parent {
            Some(parent) => Actor::spawn_linked(None, SupervisorActor, arguments, parent).await?,
            None => Actor::spawn(None, SupervisorActor, arguments).await?,
        };
        Ok((Self { actor, observed }, outcomes.await?))
    }

    /// Restarts every child: all stages end in reverse order, then all start in order. Nothing of it counts as a crash.
    ///
    /// # Errors
    /// When the supervisor has ended.
    pub async fn reload(&self, generation: u64) -> Result<Vec<ChildOutcome>, SupervisorGone> {
        match self.actor.call(|reply| SupervisorMessage::Reload { generation, reply }, None).await {
            Ok(ractor::rpc::CallResult::Success(outcomes)) => Ok(outcomes),
            Ok(_) | Err(_) => Err(SupervisorGone),
        }
    }

    /// Ends all stages in reverse order, then the supervisor.
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
    /// Its stage, counted from 0.
    stage: usize,
    /// When its last planned end began, if it has not started since.
    ending_since: Option<Instant>,
    crashes: CrashWindow,
    /// Counts planned and unplanned changes, so that a restart that was due before one of them is forgotten.
    epoch: u64,
}

struct SupervisorState {
    name: &'static str,
    strategy: Strategy,
    intensity: Intensity,
    children: Vec<Supervised>,
    stages: usize,
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
        let stages = spec.stages.len();
        let children = spec.stages.into_iter().enumerate().flat_map(|(stage, children)| {
            children.into_iter().map(move |child| Supervised {
                child,
                stage,
                ending_since: None,
                crashes: CrashWindow::default(),
                epoch: 0,
            })
        });
        let mut state = SupervisorState {
            name: spec.name,
            strategy: spec.strategy,
            intensity: spec.intensity,
            children: children.collect(),
            stages,
            generation,
            since: Instant::now(),
        };
        let started = state.start_these(&myself, |_| true).await;
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
                state.end_these(true, |_| true).await;
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
        state.end_these(true, |_| true).await;
        Ok(())
    }
}

impl SupervisorState {
    /// Starts those whose index is chosen, stage by stage, and tells how, in order.
    async fn start_these(
        &mut self,
        myself: &ActorRef<SupervisorMessage>,
        chosen: impl Fn(usize) -> bool,
    ) -> Vec<ChildOutcome> {
        let (generation, mut outcomes) = (self.generation, Vec::with_capacity(self.children.len()));
        for stage in 0..self.stages {
            let starting = in_stage(&mut self.children, stage, &chosen).map(|supervised| async move {
                supervised.epoch += 1;
                let began = supervised.ending_since.take().unwrap_or_else(Instant::now);
                let down = supervised.child.start(myself.get_cell(), generation).await.err();
                ChildOutcome { name: supervised.child.observed().name, generation, took: began.elapsed(), down }
            });
            outcomes.extend(join_all(starting).await);
        }
        outcomes
    }

    /// Ends those whose index is chosen, stage by stage in reverse.
    async fn end_these(&mut self, for_good: bool, chosen: impl Fn(usize) -> bool) {
        for stage in (0..self.stages).rev() {
            let ending = in_stage(&mut self.children, stage, &chosen).map(|supervised| {
                supervised.epoch += 1;
                supervised.ending_since = Some(Instant::now());
                supervised.child.end(for_good)
            });
            join_all(ending).await;
        }
    }

    async fn reload(&mut self, myself: &ActorRef<SupervisorMessage>, generation: u64) -> Vec<ChildOutcome> {
        self.generation = generation;
        for supervised in &mut self.children {
            supervised.crashes.forget();
        }
        self.end_these(false, |_| true).await;
        self.start_these(myself, |_| true).await
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
        let (strategy, crashed) = (self.strategy, self.children[index].stage);
        let later: Vec<bool> = self.children.iter().map(|supervised| supervised.stage > crashed).collect();
        let chosen = |other: usize| match strategy {
            Strategy::OneForOne => other == index,
            Strategy::RestForOne => other == index || later[other],
            Strategy::OneForAll => true,
        };
        self.end_these(false, chosen).await;
        self.start_these(myself, chosen).await;
    }
}

/// Returns the children of one stage whose index is chosen, in order.
fn in_stage<'a>(
    children: &'a mut [Supervised],
    stage: usize,
    chosen: &'a impl Fn(usize) -> bool,
) -> impl Iterator<Item = &'a mut Supervised> {
    let numbered = children.iter_mut().enumerate();
    numbered.filter(move |(index, supervised)| supervised.stage == stage && chosen(*index)).map(|(_, one)| one)
}
