//! What fuzzers do with the bytes they make up. The targets under `fuzz/` call these with bytes that grow towards new
//! paths, the ordinary tests with random ones, so that a broken target is noticed without a fuzzer.

use holdfast_protocol::acp::rewrite::{Places, rewrite_session_ids, with_agent_session_id};
use holdfast_protocol::acp::{capabilities, edit, envelope, initialize, permission, prompt, update};
use holdfast_protocol::framing::LineBuffer;
use holdfast_protocol::jsonrpc::{
    Frame, Message, OwnedId, parse_frame, write_error, write_raw_request, write_raw_result,
};
use serde_json::value::RawValue;

/// Cuts a stream into lines, in pieces and with a limit that the first two bytes choose, and compares with a plain
/// split.
///
/// # Panics
/// If a line is lost, made up or changed, or the buffer outgrows its limit.
pub fn framing(data: &[u8]) {
    let [limit, piece, stream @ ..] = data else { return };
    let (limit_bytes, piece_bytes) = (usize::from(*limit), usize::from(*piece).max(1));
    let mut buffer = LineBuffer::new(limit_bytes);
    let mut lines: Vec<Option<Vec<u8>>> = Vec::new();
    for part in stream.chunks(piece_bytes) {
        buffer.feed(part);
        while let Some(line) = buffer.next_line() {
            lines.push(line.ok().map(<[u8]>::to_vec));
        }
        assert!(buffer.pending_bytes() <= limit_bytes + 1, "a line over the limit is kept");
    }
    if let Some(rest) = buffer.finish() {
        lines.push(rest.ok().map(<[u8]>::to_vec));
    }
    let expected: Vec<Option<Vec<u8>>> = stream
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| !line.is_empty())
        .map(|line| (line.len() <= limit_bytes).then(|| line.to_vec()))
        .collect();
    assert_eq!(lines, expected);
}

/// Reads bytes as one frame and writes back whatever was understood.
///
/// # Panics
/// If an id or raw value comes back changed, or an answer is not one line.
pub fn jsonrpc_frame(data: &[u8]) {
    match parse_frame(data) {
        Frame::Single(message) => check_message(message),
        Frame::Batch(messages) => {
            assert!(!messages.is_empty());
            messages.into_iter().for_each(check_message);
        }
        Frame::Invalid(error) => {
            let mut answer = Vec::new();
            write_error(&mut answer, None::<OwnedId>, &error);
            check_one_line(&answer);
        }
    }
}

fn check_message(message: Message<'_>) {
    let mut line = Vec::new();
    match message {
        Message::Request { id, method, params } => {
            write_raw_request(&mut line, id.to_owned(), &method, params);
            match parse_frame(check_one_line(&line)) {
                Frame::Single(Message::Request { id: id_back, method: method_back, params: params_back }) => {
                    assert_eq!((id_back, method_back), (id, method));
                    assert_eq!(params_back.map(RawValue::get), params.map(on_one_line).as_deref());
                }
                other => panic!("a request came back as {other:?}"),
            }
        }
        Message::Response { id, outcome: Ok(result) } => {
            write_raw_result(&mut line, id, result);
            match parse_frame(check_one_line(&line)) {
                Frame::Single(Message::Response { id: id_back, outcome: Ok(result_back) }) => {
                    assert_eq!((id_back, result_back.get()), (id, on_one_line(result).as_str()));
                }
                other => panic!("a response came back as {other:?}"),
            }
        }
        Message::Invalid { id, error } => {
            write_error(&mut line, id, &error);
            check_one_line(&line);
        }
        Message::Response { outcome: Err(_), .. } | Message::Notification { .. } => {}
    }
}

/// Line breaks between tokens become spaces when a frame is written.
fn on_one_line(raw: &RawValue) -> String {
    raw.get().replace(['\n', '\r'], " ")
}

fn check_one_line(line: &[u8]) -> &[u8] {
    let Some((b'\n', content)) = line.split_last() else { panic!("a line has no end") };
    assert!(!content.contains(&b'\n'), "a frame has two lines");
    content
}

/// Reads bytes as raw params or a raw result, looks at them in every way, rewrites the session ids and back.
///
/// # Panics
/// If the text there and back means something else, or an edit breaks it.
pub fn acp_rewrite(data: &[u8]) {
    let Ok(message) = serde_json::from_slice::<Box<RawValue>>(data) else { return };
    look_at(&message);
    for places in [Places::TopLevel, Places::Update, Places::Sessions] {
        let north = |id: &str| Some(format!("north:{id}"));
        let south = |id: &str| id.strip_prefix("north:").map(str::to_owned);
        let Ok(there) = rewrite_session_ids(&message, places, north) else { panic!("an edit broke the text") };
        let Some(there) = there else { continue };
        let Ok(Some(back)) = rewrite_session_ids(&there, places, south) else { panic!("the way back is lost") };
        // Not the bytes: an id may have been escaped in another way before.
        let meaning = |raw: &RawValue| serde_json::from_str::<serde_json::Value>(raw.get()).ok();
        assert_eq!(meaning(&back), meaning(&message));
    }
    if let Ok(edited) = with_agent_session_id(&message, "id") {
        assert_eq!(holdfast_protocol::raw::at(edited.get(), &["_meta", "holdfast", "agentSessionId"]), Some("\"id\""));
    }
    for path in [&["a"][..], &["_meta", "a"]] {
        if let Ok(removed) = edit::remove_member(&message, path) {
            assert_eq!(holdfast_protocol::raw::at(removed.get(), path), None);
        }
    }
}

fn look_at(message: &RawValue) {
    let _ = (envelope::session_setup(Some(message)), envelope::listed_sessions(message));
    let _ = (envelope::session_id(message), envelope::cancelled_request_id(Some(message)));
    if let Ok(update) = update::parse_update(Some(message)) {
        let _ = (update.text(), update.title(), update.usage());
    }
    if let Ok(request) = permission::parse_permission_request(Some(message)) {
        let policy = permission::PermissionPolicy::AllowAll;
        let _ = permission::decide(policy, request.tool_kind.as_ref(), &request.options);
    }
    let _ = (permission::selected_option(message), prompt::parse_prompt_result(message), prompt::prompt_text(message));
    let _ = capabilities::ClientCapabilities::from_initialize_params(Some(message));
    if let Ok(result) = initialize::north_result(message, "1", &[]) {
        assert!(capabilities::AgentCapabilities::from_initialize_result(&result).load);
    }
}
