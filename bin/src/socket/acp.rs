//! The hand-over of a connection that turns into an ACP channel.

use futures_util::future::BoxFuture;
use holdfast_actors::channel::{FrameSender, FrameTooLong, Receiver};
use holdfast_actors::router::Caller;
use holdfast_protocol::error::WireError;
use holdfast_protocol::methods::acp::AttachParams;

/// Serves connections that speak ACP.
pub trait AcpAttach: Send + Sync + 'static {
    /// Decides whether `caller` may attach. The connection answers `acp/attach` accordingly, and hands itself over to
    /// what is returned once that answer is on its way. Requests of the connection wait meanwhile: decide soon.
    ///
    /// # Errors
    /// What `acp/attach` is answered with; the connection goes on as before.
    fn attach(&self, caller: &Caller, params: AttachParams) -> BoxFuture<'static, Result<AcpStart, WireError>>;
}

/// Takes the channel over. Runs on the connection's task: hand the channel on and return.
pub type AcpStart = Box<dyn FnOnce(RawChannel) + Send>;

/// A connection as a stream of raw frames in both directions.
///
/// The client has gone, or sends no more, when `incoming` ends. The connection closes once `outgoing` and all its clones
/// are dropped and what they sent is written.
#[derive(Debug)]
pub struct RawChannel {
    /// Lines of the client without their newline. While they are not taken, the client is not read.
    pub incoming: Receiver<Result<Vec<u8>, FrameTooLong>>,
    /// Lines to the client, each with its newline.
    pub outgoing: FrameSender,
}
