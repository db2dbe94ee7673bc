//! The doors of the daemon: the socket, and the admin HTTP beside it.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use holdfast_actors::control_plane::ControlPlaneHandle;
use holdfast_actors::methods::{DaemonFacts, MethodContext, router};
use holdfast_actors::root::{Grown, Listener, ListenerStatus, RootControl};
use holdfast_actors::supervisor::DynamicSupervisor;
use holdfast_actors::tree::HoldfastTree;
use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_protocol::ids::InstanceId;
use holdfast_stores::config::ConfigSnapshot;
use holdfast_stores::install_root::InstallRoot;
use tokio::sync::watch;
use uuid::Uuid;

use super::attach::AcpClients;
use crate::http::{HttpLimits, HttpListener, RouterDispatch};
use crate::socket::{BindError, BoundSocket, Identity, SocketLimits, SocketServer, SocketService, bind};

/// Makes the listeners of a daemon.
pub(super) fn listeners(
    grown: &Grown<'_, HoldfastTree>,
    root: &InstallRoot,
    version: &'static str,
    executable: PathBuf,
) -> Vec<Box<dyn Listener<ConfigSnapshot>>> {
    let server = watch::Sender::new(None::<SocketServer>);
    let served = server.subscribe();
    let router = Arc::new(router(&MethodContext {
        handles: grown.handles.clone(),
        control: grown.control.clone(),
        clock: Arc::clone(&grown.ports.clock),
        facts: DaemonFacts { version, root: root.path().to_owned(), socket: root.socket() },
        connections: Arc::new(move || served.borrow().as_ref().map_or(0, |server| server.connections() as u64)),
        executable,
    }));
    let instance_id = watch::Sender::new(InstanceId(Uuid::nil()));
    let identity = {
        let (control, instance_id): (RootControl, _) = (grown.control.clone(), instance_id.subscribe());
        Arc::new(move || Identity {
            version: version.to_owned(),
            instance_id: *instance_id.borrow(),
            generation: control.generation(),
        })
    };
    let socket = SocketListener {
        path: root.socket(),
        service: SocketService {
            router: Arc::clone(&router),
            acp: Arc::new(AcpClients::new(grown.handles.clone(), grown.live.connections.clone())),
            identity,
            limits: SocketLimits::default(),
        },
        connections: grown.live.connections.clone(),
        control_plane: grown.handles.control_plane.clone(),
        instance_id,
        prepared: None,
        server,
        failed: None,
    };
    let http = HttpListener::new(
        Arc::new(RouterDispatch::new(router)),
        grown.handles.probe.clone(),
        &root.data_dir().join("http.token"),
        grown.ports.ids.random_key(),
        HttpLimits::default(),
    );
    vec![Box::new(socket), Box::new(http)]
}

/// The socket as a listener of the root. Its place never changes, so a reload leaves it alone.
struct SocketListener {
    path: PathBuf,
    service: SocketService,
    connections: DynamicSupervisor,
    control_plane: ControlPlaneHandle,
    instance_id: watch::Sender<InstanceId>,
    prepared: Option<BoundSocket>,
    server: watch::Sender<Option<SocketServer>>,
    failed: Option<String>,
}

impl SocketListener {
    /// Learns who this install is, once ControlPlane can say.
    async fn learn_instance(&self) {
        if let Ok(instance) = self.control_plane.instance().await {
            self.instance_id.send_replace(instance.instance_id);
        }
    }
}

impl Listener<ConfigSnapshot> for SocketListener {
    fn name(&self) -> &'static str {
        "socket"
    }

    fn prepare<'a>(&'a mut self, _config: &'a ConfigSnapshot) -> BoxFuture<'a, Result<(), WireError>> {
        Box::pin(async move {
            if self.server.borrow().is_none() {
                self.prepared = Some(bind(&self.path).map_err(|error| bind_error(&error))?);
            }
            Ok(())
        })
    }

    fn commit(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.learn_instance().await;
            let Some(bound) = self.prepared.take() else { return };
            match SocketServer::start(bound, self.service.clone(), &self.connections).await {
                Ok(server) => {
                    self.server.send_replace(Some(server));
                    self.failed = None;
                }
                Err(error) => {
                    tracing::error!(%error, "the socket does not listen");
                    self.failed = Some(error.to_string());
                }
            }
        })
    }

    fn abort(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.prepared = None })
    }

    fn stop(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let server = self.server.borrow().clone();
            if let Some(server) = server {
                server.stop_accepting().await;
            }
        })
    }

    fn status(&self) -> ListenerStatus {
        let listens = self.server.borrow().is_some();
        ListenerStatus {
            name: "socket",
            address: listens.then(|| self.path.display().to_string()),
            failed: self.failed.clone(),
        }
    }
}

fn bind_error(error: &BindError) -> WireError {
    let kind = match error {
        BindError::InUse { .. } | BindError::Occupied { .. } => ErrorKind::Conflict,
        BindError::Io { .. } => ErrorKind::Internal,
    };
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        message.push_str(&format!(": {source}"));
    }
    WireError::new(kind, message).with_remedy("look at what is there; the daemon removes only stale sockets of its own")
}
