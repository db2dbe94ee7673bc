//! One frame in, one answer out: for transports that carry a frame a request, as HTTP does.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_protocol::jsonrpc::{Frame as Parsed, Message, parse_frame, write_batch, write_error};

use tokio::sync::Semaphore;

use crate::channel::channel;
use crate::router::{Call, Caller, Responder, Router};

/// Bytes of notifications that may wait; nobody takes them, since such a transport has no way back for them.
const NOTIFICATION_BYTES_MAX: usize = 64 * 1024;

impl Router {
    /// Answers all messages of one frame and returns the line to send back, with its newline; `None` when nothing in it
    /// wants an answer. Methods that change the connection itself are unknown here.
    pub async fn answer_frame(&self, caller: &Arc<Caller>, frame: &[u8]) -> Option<Vec<u8>> {
        let (outgoing, mut answers) = channel(NOTIFICATION_BYTES_MAX);
        // No subscriptions: there is no way back for what they would say.
        let call = Call { caller: Arc::clone(caller), outgoing, subscriptions: Arc::new(Semaphore::new(0)) };
        let (messages, is_batch) = match parse_frame(frame) {
            Parsed::Single(message) => (vec![message], false),
            Parsed::Batch(messages) => (messages, true),
            Parsed::Invalid(error) => {
                let mut line = Vec::new();
                write_error(&mut line, None::<u64>, &error);
                return Some(line);
            }
        };
        let mut waiting = 0;
        let mut lines: HashMap<u64, Vec<u8>> = HashMap::new();
        for (ticket, message) in (0..).zip(&messages) {
            let (id, method, params) = match message {
                Message::Request { id, method, params } => (Some((*id).to_owned()), method, *params),
                Message::Notification { method, params } => (None, method, *params),
                // Nobody here asks anything of the peer.
                Message::Response { .. } => continue,
                Message::Invalid { id, error } => {
                    let mut line = Vec::new();
                    write_error(&mut line, *id, error);
                    lines.insert(ticket, line);
                    continue;
                }
            };
            waiting += 1;
            // The work goes on if the peer goes away, as on the socket.
            let _cancel = self.dispatch(&call, method, params, Responder::new(id, ticket, call.outgoing.clone()));
        }
        while waiting > 0 {
            let (answer, _budget) = answers.recv().await?.into_parts();
            if let Some(ticket) = answer.ticket {
                waiting -= 1;
                lines.insert(ticket, answer.data);
            }
        }
        let ordered = (0..).zip(&messages).filter_map(|(ticket, _)| lines.get(&ticket)).filter(|line| !line.is_empty());
        let mut answer = Vec::new();
        if is_batch {
            write_batch(&mut answer, ordered.map(Vec::as_slice));
        } else {
            ordered.for_each(|line| answer.extend_from_slice(line));
        }
        (!answer.is_empty()).then_some(answer)
    }
}
