//! Accepts connections and serves them, within limits.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::access::{Connection, is_loopback};
use super::peer::uid_of_peer;

/// The bounds of the admin HTTP.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Connections at once; further ones wait in the system's queue.
    pub connections_max: usize,
    /// A request's body, in bytes; the same as a frame of the socket.
    pub body_bytes_max: usize,
    /// Requests with a body at once; further ones are answered `busy`. Bounds the memory that bodies take.
    pub bodies_max: usize,
    /// A request's line and headers, in bytes.
    pub header_bytes_max: usize,
    /// Headers of a request.
    pub headers_max: usize,
    /// From the end of one request to the last header of the next.
    pub header_time: Duration,
    /// From the last header to the end of the body.
    pub body_time: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connections_max: 128,
            body_bytes_max: 16 * 1024 * 1024,
            bodies_max: 32,
            header_bytes_max: 32 * 1024,
            headers_max: 64,
            header_time: Duration::from_secs(15),
            body_time: Duration::from_secs(60),
        }
    }
}

/// Accepts on `listener` until `closing` turns true; connections then finish what they are at and close.
pub(super) async fn accept(listener: TcpListener, router: Router, limits: HttpLimits, closing: watch::Receiver<bool>) {
    let permits = Arc::new(Semaphore::new(limits.connections_max));
    let mut closed = closing.clone();
    loop {
        let next = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = told(&mut closed) => return,
            next = next => next,
        };
        match accepted {
            Ok((stream, _)) => {
                let (router, closing) = (router.clone(), closing.clone());
                tokio::spawn(async move {
                    let _permit = permit;
                    connection(stream, router, limits, closing).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept an HTTP connection");
                // Out of descriptors, most likely: the next attempt would fail at once, too.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, router: Router, limits: HttpLimits, mut closing: watch::Receiver<bool>) {
    let (Ok(peer), Ok(local)) = (stream.peer_addr(), stream.local_addr()) else {
        // Reset before it was accepted.
        return;
    };
    let peer_uid = if is_loopback(peer.ip()) {
        // A look-up that died says nothing, so the token is needed.
        tokio::task::spawn_blocking(move || uid_of_peer(peer, local)).await.ok().flatten()
    } else {
        None
    };
    let facts = Connection { peer, local, peer_uid };
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(facts);
        service.call(request)
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_headers(limits.headers_max)
        .max_buf_size(limits.header_bytes_max)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = told(&mut closing) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "an HTTP connection ended early");
    }
}

/// Waits until the listener closes.
async fn told(closing: &mut watch::Receiver<bool>) {
    // An error means that the listener is gone, which is the same thing.
    let _gone = closing.wait_for(|closing| *closing).await;
}
