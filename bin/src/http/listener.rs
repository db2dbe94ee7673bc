//! Where the admin HTTP listens, and how that changes without a moment in which nobody does.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::future::BoxFuture;
use holdfast_actors::health::HealthProbe;
use holdfast_actors::root::{Listener, ListenerStatus};
use holdfast_protocol::error::{ErrorKind, WireError};
use holdfast_stores::config::ConfigSnapshot;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use super::Dispatch;
use super::config::{DEFAULT_PORT, GatewayConfig};
use super::routes::{Services, router};
use super::serve::{HttpLimits, accept};
use super::throttle::Throttle;
use super::token::HttpToken;

/// How the listener stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpState {
    /// It listens here.
    Listening(SocketAddr),
    /// The configuration turned it off, or it has not started or has stopped.
    Off,
    /// It should listen and can't; the rest of the daemon runs.
    Failed(String),
}

impl HttpState {
    /// Returns where clients reach it.
    pub fn url(&self) -> Option<String> {
        match self {
            Self::Listening(address) => Some(format!("http://{address}")),
            Self::Off | Self::Failed(_) => None,
        }
    }
}

/// The admin HTTP of one root. Lives above the tree that reload restarts.
///
/// Both the first start and every reload are [`Self::prepare`], then [`Self::commit`] or [`Self::abort`].
pub struct HttpListener {
    services: Arc<Services>,
    config: Option<GatewayConfig>,
    state: HttpState,
    open: Option<Open>,
    prepared: Option<Prepared>,
}

/// An address that is being served.
struct Open {
    address: SocketAddr,
    closing: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

struct Prepared {
    config: GatewayConfig,
    change: Change,
}

enum Change {
    /// What listens goes on listening.
    Keep,
    Move(TcpListener, SocketAddr),
    Off,
    Fail(String),
}

impl HttpListener {
    /// Makes a listener that answers through `dispatcher` and `health`. Its token is in `token_file`, made of `random` when
    /// there is none; without one only our own user is let in, and a warning is logged.
    pub fn new(
        dispatcher: Arc<dyn Dispatch>,
        health: HealthProbe,
        token_file: &Path,
        random: [u8; 32],
        limits: HttpLimits,
    ) -> Self {
        let token = match HttpToken::load_or_make(token_file, random) {
            Ok(token) => Some(token),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the admin HTTP has no token");
                None
            }
        };
        let services = Services {
            dispatcher,
            health,
            token,
            limits,
            allow_remote_admin: AtomicBool::new(false),
            throttle: Throttle::default(),
            bodies: Semaphore::new(limits.bodies_max),
            own_uid: rustix::process::geteuid().as_raw(),
            since: Instant::now(),
        };
        Self { services: Arc::new(services), config: None, state: HttpState::Off, open: None, prepared: None }
    }

    /// Binds what `config` asks for and is not bound yet, beside what is.
    ///
    /// # Errors
    /// At a reload, when a changed address can't be bound. At the first start, and when nothing was changed, that makes the
    /// listener `Failed` instead: the daemon runs without it.
    pub async fn prepare(&mut self, config: &GatewayConfig) -> Result<(), WireError> {
        let change = match self.change(config).await {
            Ok(change) => change,
            Err(error) if self.config.as_ref().is_none_or(|before| before == config) => Change::Fail(error.message),
            Err(error) => return Err(error),
        };
        self.prepared = Some(Prepared { config: config.clone(), change });
        Ok(())
    }

    /// Serves what was prepared, then closes what it replaces: connections there finish what they are at.
    pub async fn commit(&mut self) {
        let Some(Prepared { config, change }) = self.prepared.take() else { return };
        match change {
            Change::Keep => {}
            Change::Move(listener, address) => {
                let opened = self.serve(listener, address);
                let replaced = self.open.take();
                self.listen(opened);
                close(replaced).await;
            }
            Change::Off => {
                close(self.open.take()).await;
                self.state = HttpState::Off;
            }
            Change::Fail(reason) => {
                tracing::error!(%reason, "the admin HTTP does not listen");
                close(self.open.take()).await;
                self.state = HttpState::Failed(reason);
            }
        }
        self.services.allow_remote_admin.store(config.allow_remote_admin, Ordering::Relaxed);
        self.config = Some(config);
    }

    /// Lets go of what was prepared.
    pub async fn abort(&mut self) {
        self.prepared = None;
    }

    /// Stops accepting. Connections finish what they are at.
    pub async fn stop(&mut self) {
        self.prepared = None;
        close(self.open.take()).await;
        self.state = HttpState::Off;
    }

    /// Returns how it stands.
    pub fn state(&self) -> &HttpState {
        &self.state
    }

    async fn change(&self, config: &GatewayConfig) -> Result<Change, WireError> {
        if !config.enabled {
            return Ok(Change::Off);
        }
        let Some(ip) = config.ip() else {
            let message = format!("`gateway.host` is not an IP address: `{}`", config.host);
            return Err(WireError::new(ErrorKind::ConfigInvalid, message).at_path("gateway.host"));
        };
        if let Some(open) = &self.open {
            // An unset port is met by whatever port was found, so that a reload does not move the daemon.
            if open.address.ip() == ip && config.port.is_none_or(|port| port == open.address.port()) {
                return Ok(Change::Keep);
            }
        }
        let asked = SocketAddr::new(ip, config.port.unwrap_or(DEFAULT_PORT));
        let bound = match TcpListener::bind(asked).await {
            Err(error) if config.port.is_none() && error.kind() == io::ErrorKind::AddrInUse => {
                TcpListener::bind(SocketAddr::new(ip, 0)).await
            }
            bound => bound,
        };
        let bound = bound.and_then(|listener| listener.local_addr().map(|address| (listener, address)));
        match bound {
            Ok((listener, address)) => Ok(Change::Move(listener, address)),
            Err(error) => Err(bind_error(asked, &error)),
        }
    }

    fn listen(&mut self, open: Open) {
        tracing::info!(address = %open.address, "the admin HTTP listens");
        self.state = HttpState::Listening(open.address);
        self.open = Some(open);
    }

    fn serve(&self, listener: TcpListener, address: SocketAddr) -> Open {
        let (closing, closed) = watch::channel(false);
        let router = router(Arc::clone(&self.services));
        let accepting = tokio::spawn(accept(listener, router, self.services.limits, closed));
        Open { address, closing, accepting }
    }
}

impl Listener<ConfigSnapshot> for HttpListener {
    fn name(&self) -> &'static str {
        "http"
    }

    fn prepare<'a>(&'a mut self, config: &'a ConfigSnapshot) -> BoxFuture<'a, Result<(), WireError>> {
        Box::pin(async move {
            match config.section::<GatewayConfig>() {
                Ok(config) => self.prepare(&config).await,
                // Only at a start: a reload refuses such a file before it comes here. The daemon runs without.
                Err(error) => {
                    let (config, change) = (GatewayConfig::default(), Change::Fail(error.to_string()));
                    self.prepared = Some(Prepared { config, change });
                    Ok(())
                }
            }
        })
    }

    fn commit(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.commit())
    }

    fn abort(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.abort())
    }

    fn stop(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.stop())
    }

    fn status(&self) -> ListenerStatus {
        let failed = match &self.state {
            HttpState::Failed(reason) => Some(reason.clone()),
            HttpState::Listening(_) | HttpState::Off => None,
        };
        ListenerStatus { name: "http", address: self.state.url(), failed }
    }
}

/// Stops accepting; the address is free when this returns.
async fn close(open: Option<Open>) {
    if let Some(Open { closing, accepting, .. }) = open {
        closing.send_replace(true);
        // A panic in it has freed the address as well.
        let _ended = accepting.await;
    }
}

fn bind_error(address: SocketAddr, error: &io::Error) -> WireError {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => "set another `gateway.port`, or leave it out to let the system choose one",
        io::ErrorKind::AddrNotAvailable => "set `gateway.host` to an address of this machine",
        io::ErrorKind::PermissionDenied => "set a `gateway.port` above 1023",
        _ => "set another `gateway.host` or `gateway.port`",
    };
    WireError::new(ErrorKind::ConfigInvalid, format!("http://{address} can't be listened on: {error}"))
        .with_remedy(remedy)
        .at_path("gateway.port")
}
