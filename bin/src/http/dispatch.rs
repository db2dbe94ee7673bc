//! The router of the socket, for HTTP.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use holdfast_actors::router::{Caller, Origin, Router};

use super::{Dispatch, HttpCaller};

/// Answers HTTP's frames with the handlers of the socket, so that there is one dispatcher.
pub struct RouterDispatch {
    router: Arc<Router>,
}

impl RouterDispatch {
    /// Makes one that answers with `router`.
    pub fn new(router: Arc<Router>) -> Self {
        Self { router }
    }
}

impl Dispatch for RouterDispatch {
    fn dispatch(&self, frame: Vec<u8>, caller: HttpCaller) -> BoxFuture<'static, Vec<u8>> {
        let router = Arc::clone(&self.router);
        let caller = Arc::new(Caller {
            origin: Origin::Http { peer: caller.peer, device_id: None },
            lineage: None,
            client: None,
        });
        Box::pin(async move { router.answer_frame(&caller, &frame).await.unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use holdfast_actors::router::RouterBuilder;
    use holdfast_protocol::methods::daemon::Ping;

    use super::super::access::Grant;
    use super::*;

    #[tokio::test]
    async fn handlers_of_the_socket_answer_and_learn_who_asks() {
        let mut builder = RouterBuilder::new();
        builder.on::<Ping>(|call, value, reply| {
            assert!(matches!(call.caller.origin, Origin::Http { peer, .. } if peer.port() == 50000));
            reply.send(Ok(value));
        });
        let dispatch = RouterDispatch::new(Arc::new(builder.build("1")));
        let caller = HttpCaller { peer: "127.0.0.1:50000".parse().unwrap(), grant: Grant::SameUser };
        let ask = |frame: &str| dispatch.dispatch(frame.as_bytes().to_vec(), caller);
        let answer = ask(r#"{"jsonrpc":"2.0","id":1,"method":"daemon/ping","params":{"value":3}}"#).await;
        assert_eq!(answer, b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"value\":3}}\n");
        assert!(ask(r#"{"jsonrpc":"2.0","method":"daemon/ping"}"#).await.is_empty());
    }
}
