//! Permission requests: what is asked, and what a policy says when nobody is asked.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::update::wire_names;
use crate::error::{ErrorKind, WireError};
use crate::raw;

wire_names! {
    /// What a permission option does.
    OptionKind {
        /// Allows this call.
        AllowOnce = "allow_once",
        /// Allows this and, for as long as the agent remembers, calls like it.
        AllowAlways = "allow_always",
        /// Refuses this call.
        RejectOnce = "reject_once",
        /// Refuses this and calls like it.
        RejectAlways = "reject_always",
    }
}

wire_names! {
    /// What a tool does.
    ToolKind {
        /// Reads files or data.
        Read = "read",
        /// Changes files.
        Edit = "edit",
        /// Removes files.
        Delete = "delete",
        /// Moves files.
        Move = "move",
        /// Looks for something.
        Search = "search",
        /// Runs a command.
        Execute = "execute",
        /// Reasons.
        Think = "think",
        /// Gets data from elsewhere.
        Fetch = "fetch",
        /// Changes the session's mode.
        SwitchMode = "switch_mode",
    }
}

impl ToolKind<'_> {
    /// Says whether such a tool only looks at local things. `fetch` does not count: it can carry data out.
    pub fn only_reads(&self) -> bool {
        matches!(self, Self::Read | Self::Search | Self::Think)
    }
}

/// One way to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionOption<'a> {
    /// Opaque, the agent's.
    pub option_id: Cow<'a, str>,
    /// What it does.
    pub kind: OptionKind<'a>,
    /// For people.
    pub name: Cow<'a, str>,
}

/// The params of `session/request_permission`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionRequest<'a> {
    /// The session, as the agent calls it.
    pub session_id: Cow<'a, str>,
    /// The tool call it is about.
    pub tool_call_id: Option<Cow<'a, str>>,
    /// What the tool does; `None` if the request does not repeat it.
    pub tool_kind: Option<ToolKind<'a>>,
    /// The tool call's title.
    pub title: Option<Cow<'a, str>>,
    /// Paths the call says it touches.
    pub paths: Vec<Cow<'a, str>>,
    /// In the agent's order.
    pub options: Vec<PermissionOption<'a>>,
    /// JSON text of the tool call.
    pub tool_call: &'a str,
}

/// Reads the params of `session/request_permission`. Options without an id are left out: nobody could choose them.
///
/// # Errors
/// [`ErrorKind::InvalidParams`] without `sessionId` or `options`.
pub fn parse_permission_request(params: Option<&RawValue>) -> Result<PermissionRequest<'_>, WireError> {
    let missing = |path: &str| WireError::new(ErrorKind::InvalidParams, format!("`{path}` is missing")).at_path(path);
    let text = params.map_or("{}", RawValue::get);
    let [session_id, tool_call, options] = raw::pick(text, ["sessionId", "toolCall", "options"]);
    let session_id = session_id.and_then(raw::string).ok_or_else(|| missing("sessionId"))?;
    let options = options.and_then(raw::elements).ok_or_else(|| missing("options"))?;
    let tool_call = tool_call.unwrap_or("{}");
    let [tool_call_id, kind, title, locations] = raw::pick(tool_call, ["toolCallId", "kind", "title", "locations"]);
    let paths = locations.and_then(raw::elements).into_iter().flatten();
    Ok(PermissionRequest {
        session_id,
        tool_call_id: tool_call_id.and_then(raw::string),
        tool_kind: kind.and_then(raw::string).map(ToolKind::from_name),
        title: title.and_then(raw::string),
        paths: paths.filter_map(|place| raw::pick(place.value, ["path"])[0].and_then(raw::string)).collect(),
        options: options.filter_map(|option| parse_option(option.value)).collect(),
        tool_call,
    })
}

fn parse_option(option: &str) -> Option<PermissionOption<'_>> {
    let [option_id, kind, name] = raw::pick(option, ["optionId", "kind", "name"]).map(|raw| raw.and_then(raw::string));
    let option_id = option_id?;
    Some(PermissionOption {
        kind: OptionKind::from_name(kind.unwrap_or_default()),
        name: name.unwrap_or_else(|| option_id.clone()),
        option_id,
    })
}

/// What to do with an agent's permission requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionPolicy {
    /// Ask whoever is attached.
    #[default]
    Ask,
    /// Allow what only reads, ask for the rest.
    AllowReads,
    /// Allow all.
    AllowAll,
    /// Refuse all.
    DenyAll,
}

/// What a policy, a grant or a person decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Answer with this option.
    Select(String),
    /// Answer `cancelled`. Some agents end the whole turn on it, so it is no way to say no.
    Cancelled,
    /// Ask.
    Ask,
}

/// Applies a policy to a request.
///
/// Allowing prefers an `allow_once` option over `allow_always`: it is the policy that remembers, not the agent. If a
/// request offers neither, a person has to look at it, whatever the policy allows.
pub fn decide(
    policy: PermissionPolicy,
    tool_kind: Option<&ToolKind<'_>>,
    options: &[PermissionOption<'_>],
) -> Decision {
    match policy {
        PermissionPolicy::Ask => Decision::Ask,
        PermissionPolicy::AllowReads if tool_kind.is_some_and(ToolKind::only_reads) => allow(options),
        PermissionPolicy::AllowReads => Decision::Ask,
        PermissionPolicy::AllowAll => allow(options),
        PermissionPolicy::DenyAll => deny(options),
    }
}

/// Allows a call: the first `allow_once` option, else the first `allow_always`, else [`Decision::Ask`].
pub fn allow(options: &[PermissionOption<'_>]) -> Decision {
    first_of(options, &OptionKind::AllowOnce)
        .or_else(|| first_of(options, &OptionKind::AllowAlways))
        .unwrap_or(Decision::Ask)
}

/// Refuses a call: the first `reject_once` option, and only without one [`Decision::Cancelled`].
pub fn deny(options: &[PermissionOption<'_>]) -> Decision {
    first_of(options, &OptionKind::RejectOnce).unwrap_or(Decision::Cancelled)
}

fn first_of(options: &[PermissionOption<'_>], kind: &OptionKind<'_>) -> Option<Decision> {
    options
        .iter()
        .find(|option| option.kind == *kind)
        .map(|option| Decision::Select(option.option_id.clone().into_owned()))
}

/// Makes the result of `session/request_permission` that selects an option.
///
/// # Errors
/// If the result cannot be JSON, which would be a fault of ours.
pub fn selected_result(option_id: &str) -> Result<Box<RawValue>, serde_json::Error> {
    RawValue::from_string(format!(
        "{{\"outcome\":{{\"outcome\":\"selected\",\"optionId\":{}}}}}",
        raw::quote(option_id)
    ))
}

/// Makes the result of `session/request_permission` for a turn that is being cancelled.
///
/// # Errors
/// If the result cannot be JSON, which would be a fault of ours.
pub fn cancelled_result() -> Result<Box<RawValue>, serde_json::Error> {
    RawValue::from_string("{\"outcome\":{\"outcome\":\"cancelled\"}}".to_owned())
}

/// Returns the option that a client's answer selects; `None` if it cancels or is no proper answer.
pub fn selected_option(result: &RawValue) -> Option<Cow<'_, str>> {
    let [outcome, option_id] = raw::pick(raw::at(result.get(), &["outcome"])?, ["outcome", "optionId"]);
    (outcome.and_then(raw::string)? == "selected").then(|| option_id.and_then(raw::string)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    fn options(kinds: &[&'static str]) -> Vec<PermissionOption<'static>> {
        kinds
            .iter()
            .map(|kind| PermissionOption {
                option_id: format!("id-{kind}").into(),
                kind: OptionKind::from_name((*kind).into()),
                name: (*kind).into(),
            })
            .collect()
    }

    fn select(kind: &str) -> Decision {
        Decision::Select(format!("id-{kind}"))
    }

    #[test]
    fn policies_decide_by_tool_kind_and_offered_options() {
        use PermissionPolicy::{AllowAll, AllowReads, Ask, DenyAll};
        let all = options(&["reject_always", "reject_once", "allow_always", "allow_once"]);
        let only_always = options(&["allow_always", "reject_always"]);
        let strange = options(&["maybe"]);
        let (read, search) = (ToolKind::Read, ToolKind::Search);
        let (fetch, new) = (ToolKind::Fetch, ToolKind::Other("new".into()));
        for (policy, kind, offered, expected) in [
            (Ask, Some(&read), &all, Decision::Ask),
            (AllowReads, Some(&read), &all, select("allow_once")),
            (AllowReads, Some(&search), &only_always, select("allow_always")),
            (AllowReads, Some(&fetch), &all, Decision::Ask),
            (AllowReads, Some(&new), &all, Decision::Ask),
            (AllowReads, None, &all, Decision::Ask),
            (AllowAll, None, &all, select("allow_once")),
            (AllowAll, Some(&new), &strange, Decision::Ask),
            (DenyAll, Some(&read), &all, select("reject_once")),
            (DenyAll, Some(&read), &only_always, Decision::Cancelled),
            (DenyAll, None, &Vec::new(), Decision::Cancelled),
        ] {
            assert_eq!(decide(policy, kind, offered), expected, "{policy:?} {kind:?}");
        }
    }

    #[test]
    fn requests_are_read_and_answers_written() {
        let params = raw(
            r#"{"sessionId":"s","toolCall":{"toolCallId":"t","kind":"edit","title":"Edit","locations":[{"path":"/a"},{"line":1}]},"options":[{"optionId":"y","name":"Yes","kind":"allow_once"},{"name":"?"},{"optionId":"n"}]}"#,
        );
        let request = parse_permission_request(Some(&params)).unwrap();
        assert_eq!((request.tool_kind, request.paths), (Some(ToolKind::Edit), vec![Cow::Borrowed("/a")]));
        assert_eq!(request.options.len(), 2);
        assert_eq!((&*request.options[1].name, request.options[1].kind.name()), ("n", ""));
        assert!(parse_permission_request(Some(&raw(r#"{"sessionId":"s"}"#))).is_err());

        let answer = selected_result("a\"b").unwrap();
        assert_eq!(answer.get(), r#"{"outcome":{"outcome":"selected","optionId":"a\"b"}}"#);
        assert_eq!(selected_option(&answer).as_deref(), Some("a\"b"));
        assert_eq!(selected_option(&cancelled_result().unwrap()), None);
        assert_eq!(selected_option(&raw("null")), None);
    }
}
