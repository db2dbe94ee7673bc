//! Session ids on the way through: north they are ours, south they are the agent's. Nothing else changes.

use serde_json::value::RawValue;

use super::edit::{EditError, Splices, set_member};
use super::{META_KEY, method};
use crate::raw;

/// Where session ids stand in the params or the result of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// `sessionId` at the top level: nearly all methods, and extensions, whose insides are not ours to read.
    TopLevel,
    /// Also in the update: a child session's `sessionId`, a session message's `senderSessionId`, `recipientSessionId`.
    Update,
    /// Also `sessions[].sessionId`.
    Sessions,
}

impl Places {
    /// Returns the places of a method's params and result.
    pub fn of_method(name: &str) -> Self {
        match name {
            method::SESSION_UPDATE => Self::Update,
            method::SESSION_LIST => Self::Sessions,
            _ => Self::TopLevel,
        }
    }
}

const TOP_LEVEL: [&str; 1] = ["sessionId"];
const IN_UPDATE: [&str; 3] = ["sessionId", "senderSessionId", "recipientSessionId"];

/// Replaces session ids in raw params or a raw result. `map` gets each id and returns the new one, or `None` to leave
/// it. Returns `None` if nothing was replaced, so that the original can be sent on.
///
/// Members that are no strings stay as they are; text that is no object has no ids.
///
/// # Errors
/// [`EditError::NotJson`] if the replaced text is no JSON any more, which would be a fault of ours.
pub fn rewrite_session_ids(
    message: &RawValue,
    places: Places,
    mut map: impl FnMut(&str) -> Option<String>,
) -> Result<Option<Box<RawValue>>, EditError> {
    let text = message.get();
    let mut splices = Splices::default();
    for member in raw::members(text).into_iter().flatten() {
        let range = member.value_range();
        if TOP_LEVEL.iter().any(|name| member.is(name)) {
            replace(member.value, range.start, &mut map, &mut splices);
        } else if places == Places::Update && member.is("update") {
            replace_in_object(member.value, range.start, &IN_UPDATE, &mut map, &mut splices);
        } else if places == Places::Sessions && member.is("sessions") {
            for element in raw::elements(member.value).into_iter().flatten() {
                replace_in_object(element.value, range.start + element.start, &TOP_LEVEL, &mut map, &mut splices);
            }
        }
    }
    if splices.is_empty() { Ok(None) } else { splices.apply(text).map(Some) }
}

/// Puts the agent's own session id into `_meta.holdfast.agentSessionId`, for clients that want to name it.
///
/// # Errors
/// [`EditError::NotAnObject`] if `message` is no object.
pub fn with_agent_session_id(message: &RawValue, agent_session_id: &str) -> Result<Box<RawValue>, EditError> {
    set_member(message, &["_meta", META_KEY, "agentSessionId"], &raw::quote(agent_session_id))
}

fn replace_in_object(
    object: &str,
    offset: usize,
    names: &[&str],
    map: &mut impl FnMut(&str) -> Option<String>,
    splices: &mut Splices,
) {
    for member in raw::members(object).into_iter().flatten() {
        if names.iter().any(|name| member.is(name)) {
            replace(member.value, offset + member.value_range().start, map, splices);
        }
    }
}

fn replace(value: &str, start: usize, map: &mut impl FnMut(&str) -> Option<String>, splices: &mut Splices) {
    let Some(id) = raw::string(value) else { return };
    if let Some(new) = map(&id) {
        splices.push(start..start + value.len(), raw::quote(&new));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rewritten(text: &str, places: Places, from: &str, to: &str) -> String {
        let message = RawValue::from_string(text.to_owned()).unwrap();
        let map = |id: &str| (id == from).then(|| to.to_owned());
        match rewrite_session_ids(&message, places, map).unwrap() {
            Some(changed) => changed.get().to_owned(),
            None => text.to_owned(),
        }
    }

    #[test]
    fn ids_change_where_the_protocol_has_them_and_nowhere_else() {
        let text = r#"{"sessionId" : "a", "big":9007199254740993,"update":{"x":{"sessionId":"a"},"senderSessionId":"a","recipientSessionId":"b","sessionId":"a"},"sessions":[{"sessionId":"a"}],"other":"a","\u0073essionId":"a"}"#;
        assert_eq!(
            rewritten(text, Places::Update, "a", "N\"1"),
            r#"{"sessionId" : "N\"1", "big":9007199254740993,"update":{"x":{"sessionId":"a"},"senderSessionId":"N\"1","recipientSessionId":"b","sessionId":"N\"1"},"sessions":[{"sessionId":"a"}],"other":"a","\u0073essionId":"N\"1"}"#
        );
        let text = r#"{"sessions":[{"cwd":"/","sessionId":"a"},{"sessionId":"b","_meta":{"sessionId":"a"}},7],"nextCursor":"a"}"#;
        assert_eq!(
            rewritten(text, Places::of_method("session/list"), "a", "z"),
            r#"{"sessions":[{"cwd":"/","sessionId":"z"},{"sessionId":"b","_meta":{"sessionId":"a"}},7],"nextCursor":"a"}"#
        );
        let text = r#"{"update":{"sessionId":"a"},"sessionId":"a"}"#;
        assert_eq!(
            rewritten(text, Places::of_method("_vendor/update"), "a", "z"),
            r#"{"update":{"sessionId":"a"},"sessionId":"z"}"#
        );
        for odd in ["null", "[1]", r#"{"sessionId":5}"#, r#"{"update":[],"sessions":{}}"#] {
            assert_eq!(rewritten(odd, Places::Update, "a", "z"), odd);
        }
    }

    #[test]
    fn the_agents_id_goes_into_our_meta_beside_others() {
        let message = RawValue::from_string(r#"{"_meta":{"traceparent":"00"},"sessionId":"n"}"#.to_owned()).unwrap();
        assert_eq!(
            with_agent_session_id(&message, "ses_1").unwrap().get(),
            r#"{"_meta":{"holdfast":{"agentSessionId":"ses_1"},"traceparent":"00"},"sessionId":"n"}"#
        );
    }

    fn any_value() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("9007199254740993".to_owned()),
            Just("1.50e+3".to_owned()),
            Just(r#"{"b":1,"a":[ ],"sessionId":"agent"}"#.to_owned()),
            Just(r#""\ud800 \u00e9""#.to_owned()),
            any::<String>().prop_map(|text| raw::quote(&text)),
        ]
    }

    proptest! {
        #[test]
        fn there_and_back_gives_the_same_bytes(
            agent_id in any::<String>(),
            before in prop::collection::vec((any::<String>(), any_value()), 0..4),
            in_update in prop::collection::vec((any::<String>(), any_value()), 0..4),
            space in "[ \t]{0,2}",
        ) {
            let our_id = "0199a3c2-0000-7000-8000-000000000001";
            prop_assume!(agent_id != our_id);
            let object = |members: &[(String, String)]| -> String {
                let members: Vec<String> =
                    members.iter().map(|(key, value)| format!("{}{space}:{space}{value}", raw::quote(key))).collect();
                format!("{{{space}{}{space}}}", members.join(","))
            };
            let mut update = in_update;
            update.push(("sessionId".to_owned(), raw::quote(&agent_id)));
            let mut top = before;
            top.push(("sessionId".to_owned(), raw::quote(&agent_id)));
            top.push(("update".to_owned(), object(&update)));
            let text = object(&top);
            let north = rewritten(&text, Places::Update, &agent_id, our_id);
            prop_assert_eq!(raw::string(raw::pick(&north, ["sessionId"])[0].unwrap()).unwrap(), our_id);
            prop_assert_eq!(rewritten(&north, Places::Update, our_id, &agent_id), text);
        }
    }
}
