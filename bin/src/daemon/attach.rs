//! `acp/attach`: a connection becomes an ACP client of the daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::BoxFuture;
use holdfast_actors::acp::directory::DirectoryHandle;
use holdfast_actors::acp::environment::Environment;
use holdfast_actors::acp::north::{Client, ClientMessage};
use holdfast_actors::acp::session::ClientId;
use holdfast_actors::router::Caller;
use holdfast_actors::supervisor::{DynamicSupervisor, Limits};
use holdfast_actors::tree::Handles;
use holdfast_actors::visibility::Eyes;
use holdfast_protocol::error::WireError;
use holdfast_protocol::methods::acp::AttachParams;

use crate::socket::{AcpAttach, AcpStart, RawChannel};

/// Makes an ACP client of each connection that attaches.
pub(super) struct AcpClients {
    handles: Handles,
    connections: DynamicSupervisor,
    // Only makes ids that differ within this process.
    next: AtomicU64,
}

impl AcpClients {
    pub(super) fn new(handles: Handles, connections: DynamicSupervisor) -> Self {
        Self { handles, connections, next: AtomicU64::new(1) }
    }
}

impl AcpAttach for AcpClients {
    fn attach(&self, caller: &Caller, params: AttachParams) -> BoxFuture<'static, Result<AcpStart, WireError>> {
        let client = ClientId(self.next.fetch_add(1, Ordering::Relaxed));
        let (handles, caller) = (self.handles.clone(), caller.clone());
        let connections = self.connections.clone();
        Box::pin(async move {
            let environment = Arc::clone(&handles.acp);
            environment.catalog.settings(&params.agent).await?;
            let directory = handles.acp_directory.seen_by(Eyes::of(&caller, &handles).await);
            let start: AcpStart = Box::new(move |channel| {
                tokio::spawn(serve(client, params, environment, directory, connections, channel));
            });
            Ok(start)
        })
    }
}

/// Hands the client's lines to its actor until the client has gone.
async fn serve(
    client: ClientId,
    params: AttachParams,
    environment: Arc<Environment>,
    directory: DirectoryHandle,
    connections: DynamicSupervisor,
    channel: RawChannel,
) {
    let RawChannel { mut incoming, outgoing } = channel;
    let actor = Client::new(client, params.agent, environment, directory, outgoing);
    let address = match connections.spawn("acp-client", Limits::default(), actor, |_ended| ()).await {
        Ok(address) => address,
        Err(error) => {
            tracing::warn!(%error, "a client could not be served and is cut");
            return;
        }
    };
    while let Some(line) = incoming.recv().await {
        // The line's share of the budget is held until the actor has taken it.
        let (line, share) = line.into_parts();
        if address.tell(ClientMessage::Line(line)).await.is_err() {
            return;
        }
        drop(share);
    }
    // An actor that has ended knows already.
    let _ended = address.tell(ClientMessage::Gone).await;
}
