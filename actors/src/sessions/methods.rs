//! The methods of the socket that the Sessions answer.

use holdfast_protocol::error::WireError;
use holdfast_protocol::methods::session::{Append, Close, Events, List, New, Show};

use super::error::SessionsError;
use super::message::SessionsMessage;
use crate::address::Address;
use crate::reply::Reply;
use crate::router::RouterBuilder;

/// Registers the methods for chat sessions. All go straight to the actor: no task a request.
pub fn register(router: &mut RouterBuilder, sessions: &Address<SessionsMessage>) {
    let address = sessions.clone();
    router.on::<New>(move |_, params, reply| {
        address.post(typed(reply), |reply| SessionsMessage::New { params, reply });
    });
    let address = sessions.clone();
    router.on::<Append>(move |_, params, reply| {
        address.post(typed(reply), |reply| SessionsMessage::Append { params, reply });
    });
    let address = sessions.clone();
    router.on::<Close>(move |_, params, reply| {
        address.post(typed(reply), |reply| SessionsMessage::Close { params, reply });
    });
    let address = sessions.clone();
    router.on::<Events>(move |_, params, reply| {
        address.post(typed(reply), |reply| SessionsMessage::Events { params, reply });
    });
    let address = sessions.clone();
    router.on::<List>(move |_, params, reply| {
        address.post(typed(reply), |reply| SessionsMessage::List { params, reply });
    });
    let address = sessions.clone();
    router.on::<Show>(move |_, params, reply| {
        address.post(typed(reply), |reply| SessionsMessage::Show { session_id: params.session_id, reply });
    });
}

fn typed<T: Send + 'static>(reply: Reply<Result<T, WireError>>) -> Reply<Result<T, SessionsError>> {
    reply.map(|answer: Result<T, SessionsError>| answer.map_err(WireError::from))
}
