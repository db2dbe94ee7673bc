//! Health: what is observed now, never stored. Owns nothing.
//!
//! Looking asks no other actor: surfaces count for themselves ([`crate::stats`]) and the operating system says the rest, so
//! a report is there even while everything else is stuck. The actor serves those who ask by message; listeners that
//! must answer while it restarts hold the [`HealthProbe`] itself.

pub mod metrics;
mod observe;
mod process;
#[cfg(test)]
mod tests;
mod warnings;

pub use observe::{HealthProbe, Observations, ServingPhase};
pub use process::process_facts;
pub use warnings::standing_warnings;

use holdfast_protocol::health::HealthReport;

use crate::address::Down;
use crate::reply::Reply;
use crate::surface::{Context, Fault, Surface};

/// What Health can be asked.
pub enum HealthMessage {
    /// Looks at everything now.
    Report {
        /// What was seen.
        reply: Reply<HealthReport>,
    },
    /// Looks at everything now, as Prometheus text.
    Metrics {
        /// The text; see [`metrics::render`].
        reply: Reply<String>,
    },
}

/// The Health actor.
pub struct HealthSurface {
    probe: HealthProbe,
}

impl HealthSurface {
    /// Declares it.
    pub fn new(probe: HealthProbe) -> Self {
        Self { probe }
    }
}

impl Surface for HealthSurface {
    type Message = HealthMessage;
    type State = ();

    async fn start(&self, _: &Context<HealthMessage>) -> Result<(), Down> {
        Ok(())
    }

    async fn handle(&self, _: &Context<HealthMessage>, message: HealthMessage, (): &mut ()) -> Result<(), Fault> {
        match message {
            HealthMessage::Report { reply } => reply.send(self.probe.report()),
            HealthMessage::Metrics { reply } => reply.send(metrics::render(&self.probe.report(), self.probe.version())),
        }
        Ok(())
    }

    async fn stop(&self, _: &Context<HealthMessage>, (): ()) {}
}
