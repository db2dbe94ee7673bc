//! Who asks.

use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::methods::rpc::PeerInfo;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::channel::FrameSender;
use crate::process::{Lineage, LineageError};

/// Who is at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// How they came in, and what the system or a token says of them.
    pub origin: Origin,
    /// Whose child the calling process is, over the unix socket; see [`crate::leases::LeasesHandle::requester`].
    pub lineage: Option<Arc<Result<Lineage, LineageError>>>,
    /// What they call themselves. Not to be trusted.
    pub client: Option<PeerInfo>,
}

/// How a caller came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Over the unix socket; the kernel vouches for both.
    Socket {
        /// The user.
        uid: u32,
        /// The process, where the system tells it. It may have ended, and its number may be another's by now.
        pid: Option<u32>,
    },
    /// Over HTTP.
    Http {
        /// Where from.
        peer: SocketAddr,
        /// The paired device whose token was shown, if one was.
        device_id: Option<String>,
    },
}

/// What a handler knows of the request besides its params.
#[derive(Debug, Clone)]
pub struct Call {
    /// Who asks.
    pub caller: Arc<Caller>,
    /// The way back for notifications. A handler that keeps it keeps the connection from counting as idle.
    pub outgoing: FrameSender,
    /// The bound on subscriptions; see [`Call::subscribe`].
    pub subscriptions: Arc<Semaphore>,
}

impl Call {
    /// Takes one of the connection's subscriptions; it is free again when the permit is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when all are in use.
    pub fn subscribe(&self) -> Result<OwnedSemaphorePermit, WireError> {
        Arc::clone(&self.subscriptions).try_acquire_owned().map_err(|_none_left| {
            WireError::new(ErrorKind::Busy, "the connection has as many subscriptions as it may have")
                .with_remedy("end one, or open another connection")
        })
    }
}
