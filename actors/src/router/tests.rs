use std::sync::Arc;
use std::time::Duration;

use holdfast_protocol::methods::daemon::{Ping, PingValue, Reload, Shutdown, Status};
use holdfast_protocol::methods::{Empty, all, session};
use serde_json::json;

use super::*;
use crate::channel::{FrameReceiver, channel};
use crate::ports::Ports;
use crate::supervisor::{DynamicSupervisor, Ended, Limits};
use crate::surface::{Context, Fault, Surface};

fn caller() -> Arc<Caller> {
    Arc::new(Caller { origin: Origin::Socket { uid: 0, pid: None }, lineage: None, client: None })
}

async fn ask(router: &Router, frame: &str) -> Option<Value> {
    let line = router.answer_frame(&caller(), frame.as_bytes()).await?;
    assert!(line.ends_with(b"\n"));
    Some(serde_json::from_slice(&line).unwrap())
}

fn ping() -> Router {
    let mut builder = RouterBuilder::new();
    builder.on::<Ping>(|_call, value, reply| reply.send(Ok(value)));
    builder.build("1.2.3")
}

#[tokio::test]
async fn a_request_gets_the_answer_of_its_handler() {
    let answer = ask(&ping(), r#"{"jsonrpc":"2.0","id":"a","method":"daemon/ping","params":{"value":3}}"#).await;
    assert_eq!(answer, Some(json!({"jsonrpc": "2.0", "id": "a", "result": {"value": 3}})));
}

#[tokio::test]
async fn faults_of_the_caller_have_their_codes() {
    let router = ping();
    for (frame, code) in [
        (r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"daemon/ping","params":{"value":"x"}}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"daemon/ping","params":7}"#, -32602),
    ] {
        let answer = ask(&router, frame).await.unwrap();
        assert_eq!(answer["error"]["code"], code, "{frame}");
        assert_eq!(answer["id"], 1);
    }
    let answer =
        ask(&router, r#"{"jsonrpc":"2.0","id":1,"method":"daemon/ping","params":{"value":"x"}}"#).await.unwrap();
    assert_eq!(answer["error"]["data"]["path"], "value");
    assert_eq!(ask(&router, "{").await.unwrap()["error"]["code"], -32700);
}

#[tokio::test]
async fn a_batch_is_answered_in_order_and_its_notifications_are_not() {
    let mut builder = RouterBuilder::new();
    builder.on::<Ping>(|_call, value, reply| reply.send(Ok(value)));
    builder.on_async::<Shutdown, _, _>(|_call, _params| async {
        tokio::task::yield_now().await;
        Ok(Empty {})
    });
    let router = builder.build("1");
    let answer = ask(
        &router,
        r#"[{"jsonrpc":"2.0","id":1,"method":"daemon/shutdown"},{"jsonrpc":"2.0","method":"daemon/ping"},7,{"jsonrpc":"2.0","id":2,"method":"daemon/ping"}]"#,
    )
    .await
    .unwrap();
    let ids: Vec<&Value> = answer.as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, [&json!(1), &json!(null), &json!(2)]);
    assert_eq!(ask(&router, r#"[{"jsonrpc":"2.0","method":"no/such"}]"#).await, None);
    assert_eq!(ask(&router, r#"{"jsonrpc":"2.0","method":"no/such"}"#).await, None);
}

#[tokio::test]
async fn a_handler_that_panics_answers_and_so_does_one_that_forgets() {
    let mut builder = RouterBuilder::new();
    builder.on::<Ping>(|_call, _value, _reply| panic!("on purpose"));
    builder.on::<Status>(|_call, _params, reply| drop(reply));
    builder.on_async::<Shutdown, _, _>(|_call, _params| async { panic!("on purpose") });
    builder.on_async::<Reload, _, _>(|_call, _params| async {
        tokio::task::yield_now().await;
        panic!("on purpose")
    });
    let router = builder.build("1");
    for method in ["daemon/ping", "daemon/shutdown", "daemon/reload"] {
        let answer = ask(&router, &format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#)).await.unwrap();
        assert_eq!(answer["error"]["code"], -32603, "{method}: {answer}");
    }
    let answer = ask(&router, r#"{"jsonrpc":"2.0","id":1,"method":"daemon/status"}"#).await.unwrap();
    assert_eq!(answer["error"]["data"]["kind"], "interrupted", "{answer}");
}

struct Fragile;

impl Surface for Fragile {
    type Message = Reply<Result<PingValue, WireError>>;
    type State = ();

    async fn start(&self, _context: &Context<Self::Message>) -> Result<(), crate::address::Down> {
        Ok(())
    }

    async fn handle(&self, _context: &Context<Self::Message>, reply: Self::Message, (): &mut ()) -> Result<(), Fault> {
        let _held = reply;
        panic!("on purpose, with the reply in hand")
    }

    async fn stop(&self, _context: &Context<Self::Message>, (): ()) {}
}

#[tokio::test]
async fn an_actor_that_dies_with_the_reply_is_interrupted_and_not_internal() {
    let supervisor = DynamicSupervisor::start(&Ports::system(), 1, None).await.unwrap();
    let address = supervisor.spawn("fragile", Limits::default(), Fragile, |_: Ended| {}).await.unwrap();
    let mut builder = RouterBuilder::new();
    builder.on::<Ping>(move |_call, _value, reply| address.post(reply, |reply| reply));
    let router = builder.build("1");
    let asked = ask(&router, r#"{"jsonrpc":"2.0","id":1,"method":"daemon/ping"}"#);
    let answer = tokio::time::timeout(Duration::from_secs(10), asked).await.unwrap().unwrap();
    assert_eq!(answer["error"]["data"]["kind"], "interrupted", "{answer}");
    supervisor.stop().await;
}

#[tokio::test]
async fn a_cancelled_task_ends_and_subscriptions_are_bounded() {
    struct Ended(Option<tokio::sync::oneshot::Sender<()>>);
    impl Drop for Ended {
        fn drop(&mut self) {
            let _unheard = self.0.take().map(|sender| sender.send(()));
        }
    }
    let (sender, ended) = tokio::sync::oneshot::channel();
    let guard = std::sync::Mutex::new(Some(Ended(Some(sender))));
    let mut builder = RouterBuilder::new();
    builder.on_async::<Shutdown, _, _>(move |_call, _params| {
        let guard = guard.lock().unwrap().take();
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    });
    let router = builder.build("1");
    let (outgoing, _answers): (_, FrameReceiver) = channel(1024);
    let subscriptions = Arc::new(tokio::sync::Semaphore::new(1));
    let call = Call { caller: caller(), outgoing: outgoing.clone(), subscriptions };
    let cancel = router.dispatch(&call, "daemon/shutdown", None, Responder::new(None, 1, outgoing)).unwrap();
    let held = call.subscribe().unwrap();
    assert_eq!(call.subscribe().unwrap_err().kind, ErrorKind::Busy);
    drop(held);
    cancel.abort();
    tokio::time::timeout(Duration::from_secs(10), ended).await.unwrap().unwrap();
}

fn refuse<M: Method>(builder: &mut RouterBuilder) {
    builder.on::<M>(|_call, _params, reply| reply.send(Err(WireError::new(ErrorKind::Denied, "not here"))));
}

#[tokio::test]
async fn every_declared_method_can_be_registered_and_what_lacks_is_named() {
    assert!(ping().missing().contains(&"daemon/status"));
    assert!(!ping().missing().contains(&"rpc/discover"));
    let mut builder = RouterBuilder::new();
    refuse::<Status>(&mut builder);
    refuse::<Reload>(&mut builder);
    refuse::<Shutdown>(&mut builder);
    refuse::<Ping>(&mut builder);
    refuse::<session::New>(&mut builder);
    refuse::<session::Append>(&mut builder);
    refuse::<session::Events>(&mut builder);
    refuse::<session::List>(&mut builder);
    refuse::<session::Show>(&mut builder);
    refuse::<session::Close>(&mut builder);
    refuse::<methods::agent::List>(&mut builder);
    refuse::<methods::lease::List>(&mut builder);
    refuse::<methods::lease::Show>(&mut builder);
    refuse::<methods::lease::Verify>(&mut builder);
    refuse::<methods::lease::Reap>(&mut builder);
    refuse::<methods::log::Query>(&mut builder);
    let router = builder.build("1");
    assert_eq!(router.missing(), Vec::<&str>::new());
    let document = ask(&router, r#"{"jsonrpc":"2.0","id":1,"method":"rpc/discover"}"#).await.unwrap();
    assert_eq!(document["result"]["methods"].as_array().unwrap().len(), all().len());
    assert_eq!(&document["result"], router.discover());
}
