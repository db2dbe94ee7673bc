//! The paths and what they answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use futures_util::StreamExt;
use holdfast_actors::health::{HealthProbe, metrics};
use holdfast_protocol::error::{ErrorKind, ErrorObject, WireError};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::access::{Connection, Grant, Refusal, Rules, decide};
use super::serve::HttpLimits;
use super::throttle::Throttle;
use super::token::HttpToken;
use super::{Dispatch, HttpCaller};

/// What the routes need; the same for all connections.
pub(super) struct Services {
    pub(super) dispatcher: Arc<dyn Dispatch>,
    pub(super) health: HealthProbe,
    pub(super) token: Option<HttpToken>,
    pub(super) limits: HttpLimits,
    /// `gateway.allow_remote_admin` as it is in force.
    pub(super) allow_remote_admin: AtomicBool,
    pub(super) throttle: Throttle,
    pub(super) bodies: Semaphore,
    pub(super) own_uid: u32,
    pub(super) since: Instant,
}

type Door = Arc<Services>;

pub(super) fn router(services: Arc<Services>) -> Router {
    let guarded = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/api/rpc", post(rpc))
        .route("/api/status", get(|door, caller| call(door, caller, "daemon/status", json!({}))))
        .route("/api/health", get(health_report))
        .route("/api/sessions", get(sessions))
        .route("/admin/reload", post(|door, caller| call(door, caller, "daemon/reload", json!({}))))
        .route("/admin/shutdown", post(|door, caller| call(door, caller, "daemon/shutdown", json!({}))))
        .fallback(async || Refused(StatusCode::NOT_FOUND, WireError::new(ErrorKind::NotFound, "there is no such path")))
        .method_not_allowed_fallback(async || {
            let error = WireError::new(ErrorKind::MethodNotFound, "this path does not take that method");
            Refused(StatusCode::METHOD_NOT_ALLOWED, error)
        })
        .layer(from_fn_with_state(Arc::clone(&services), guard));
    Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .merge(guarded)
        .layer(axum::middleware::map_response(harden))
        .with_state(services)
}

/// An error as JSON: `{ "error": { code, message, data } }`, its `data` as on the socket.
struct Refused(StatusCode, WireError);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(status, error) = self;
        let mut response = (status, axum::Json(json!({ "error": error.to_object() }))).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<WireError> for Refused {
    fn from(error: WireError) -> Self {
        Self(status_of(error.kind), error)
    }
}

fn status_of(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::ParseError
        | ErrorKind::InvalidRequest
        | ErrorKind::InvalidParams
        | ErrorKind::ConfigInvalid
        | ErrorKind::NotInitialized => StatusCode::BAD_REQUEST,
        ErrorKind::MethodNotFound | ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::Denied | ErrorKind::AuthRequired => StatusCode::FORBIDDEN,
        ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::StorageFull => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::Busy
        | ErrorKind::Interrupted
        | ErrorKind::Down
        | ErrorKind::Damaged
        | ErrorKind::NewerSchema
        | ErrorKind::ReadOnly
        | ErrorKind::Locked
        | ErrorKind::Cancelled
        | ErrorKind::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Internal | ErrorKind::AgentFailed => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Lets a request through or refuses it, before its body is read.
async fn guard(
    State(services): State<Door>,
    Extension(connection): Extension<Connection>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let now_seconds = services.since.elapsed().as_secs();
    let ip = connection.peer.ip();
    let rules = Rules {
        own_uid: services.own_uid,
        token: services.token.as_ref(),
        allow_remote_admin: services.allow_remote_admin.load(Ordering::Relaxed),
    };
    let tries_token = request.headers().contains_key(header::AUTHORIZATION);
    let decision = if tries_token && !services.throttle.allows(ip, now_seconds) {
        Err(Refusal::Throttled)
    } else {
        decide(&rules, &connection, request.uri(), request.headers())
    };
    match decision {
        Ok(grant) => {
            request.extensions_mut().insert(HttpCaller { peer: connection.peer, grant });
            Ok(next.run(request).await)
        }
        Err(refusal) => {
            if refusal == Refusal::WrongToken {
                services.throttle.failed(ip, now_seconds);
            }
            tracing::warn!(peer = %ip, path = request.uri().path(), reason = %refusal, "HTTP request refused");
            let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::FORBIDDEN);
            Err(Refused(status, refusal.into()))
        }
    }
}

/// Answers are for their caller only: no cache keeps them and no browser guesses at them.
async fn harden(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Answers in any case: whoever asks wants to know whether the process lives. The word says how.
async fn health(State(services): State<Door>) -> String {
    format!("{}\n", services.health.status().name())
}

async fn ready(State(services): State<Door>) -> (StatusCode, &'static str) {
    match services.health.ready() {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    }
}

async fn metrics_page(State(services): State<Door>) -> impl IntoResponse {
    let health = &services.health;
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::render(&health.report(), health.version()))
}

async fn health_report(State(services): State<Door>) -> impl IntoResponse {
    axum::Json(services.health.report())
}

async fn rpc(
    State(services): State<Door>,
    Extension(caller): Extension<HttpCaller>,
    request: Request,
) -> Result<Response, Refused> {
    // A page of another site can make old browsers send forms and plain text without an Origin, never JSON.
    if caller.grant == Grant::SameUser && !is_json(&request) {
        let error = WireError::new(ErrorKind::InvalidRequest, "the body is not declared to be JSON")
            .with_remedy("send `Content-Type: application/json`");
        return Err(Refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, error));
    }
    let Ok(_permit) = services.bodies.try_acquire() else {
        let error = WireError::new(ErrorKind::Busy, "too many requests are in flight").with_remedy("try again shortly");
        return Err(error.into());
    };
    let frame = read_body(request.into_body(), &services.limits).await?;
    let answer = services.dispatcher.dispatch(frame, caller).await;
    if answer.is_empty() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(([(header::CONTENT_TYPE, "application/json")], answer).into_response())
}

fn is_json(request: &Request) -> bool {
    let declared = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = declared.and_then(|declared| declared.split(';').next()).unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

async fn read_body(body: Body, limits: &HttpLimits) -> Result<Vec<u8>, Refused> {
    let too_large = || {
        let message = format!("the body is longer than {} bytes", limits.body_bytes_max);
        Refused::from(WireError::new(ErrorKind::TooLarge, message))
    };
    // What is declared too long is refused before any of it is read.
    if axum::body::HttpBody::size_hint(&body).lower() > limits.body_bytes_max as u64 {
        return Err(too_large());
    }
    let mut chunks = body.into_data_stream();
    let read = async {
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| {
                WireError::new(ErrorKind::InvalidRequest, format!("the body could not be read: {error}"))
            })?;
            if bytes.len() + chunk.len() > limits.body_bytes_max {
                return Err(too_large());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    tokio::time::timeout(limits.body_time, read).await.unwrap_or_else(|_elapsed| {
        let error = WireError::new(ErrorKind::Timeout, "the body did not arrive in time");
        Err(Refused(StatusCode::REQUEST_TIMEOUT, error))
    })
}

async fn sessions(
    door: State<Door>,
    caller: Extension<HttpCaller>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Result<Response, Refused> {
    let mut params = serde_json::Map::new();
    for (name, text) in query {
        let value = match name.as_str() {
            "limit" => Value::from(text.parse::<u32>().map_err(|_not_a_number| {
                WireError::new(ErrorKind::InvalidParams, "`limit` is not a number").at_path("limit")
            })?),
            _ => Value::from(text),
        };
        params.insert(name, value);
    }
    call(door, caller, "session/list", Value::Object(params)).await
}

/// Calls one method and answers its bare result, or its error with the fitting status.
async fn call(
    State(services): State<Door>,
    Extension(caller): Extension<HttpCaller>,
    method: &'static str,
    params: Value,
) -> Result<Response, Refused> {
    #[derive(Deserialize)]
    struct Answer {
        result: Option<Box<RawValue>>,
        error: Option<ErrorObject>,
    }
    let frame = json!({ "jsonrpc": "2.0", "id": 0, "method": method, "params": params }).to_string();
    let answer = services.dispatcher.dispatch(frame.into_bytes(), caller).await;
    match serde_json::from_slice(&answer) {
        Ok(Answer { result: Some(result), error: None }) => {
            Ok(([(header::CONTENT_TYPE, "application/json")], String::from(Box::<str>::from(result))).into_response())
        }
        Ok(Answer { error: Some(error), .. }) => Err(WireError::from_object(&error).into()),
        Ok(Answer { result: None, error: None }) | Err(_) => {
            Err(WireError::new(ErrorKind::Internal, format!("`{method}` gave no answer")).into())
        }
    }
}
