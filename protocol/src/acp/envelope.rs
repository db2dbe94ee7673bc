//! What requests are routed by: session ids, directories, list pages. Everything else in them stays raw.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::error::{ErrorKind, WireError};
use crate::jsonrpc::Id;
use crate::raw;

/// Returns the top-level `sessionId` of raw params or a raw result.
pub fn session_id(message: &RawValue) -> Option<Cow<'_, str>> {
    raw::pick(message.get(), ["sessionId"])[0].and_then(raw::string)
}

/// Returns the session id of a method's params.
///
/// # Errors
/// [`ErrorKind::InvalidParams`] if there is none.
pub fn required_session_id(params: Option<&RawValue>) -> Result<Cow<'_, str>, WireError> {
    params
        .and_then(session_id)
        .ok_or_else(|| WireError::new(ErrorKind::InvalidParams, "`sessionId` is missing").at_path("sessionId"))
}

/// Returns the request that a `$/cancel_request` notification names, by the id that its sender gave it.
pub fn cancelled_request_id(params: Option<&RawValue>) -> Option<Id<'_>> {
    params.and_then(|params| raw::pick(params.get(), ["requestId"])[0]).and_then(Id::from_raw)
}

/// What `session/new`, `session/load`, `session/resume` and `session/fork` share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSetup<'a> {
    /// The session; absent in `session/new`.
    pub session_id: Option<Cow<'a, str>>,
    /// The working directory, absolute.
    pub cwd: Cow<'a, str>,
    /// JSON text of the array of MCP servers. Clients send it whole each time.
    pub mcp_servers: &'a str,
    /// JSON text of the further directories; absent means none.
    pub additional_directories: Option<&'a str>,
}

/// Reads the params of a method that sets a session up.
///
/// A missing `mcpServers` counts as `[]`, although the schema wants it: some clients leave it out.
///
/// # Errors
/// [`ErrorKind::InvalidParams`], with the path, when `cwd` is missing or relative or the lists are no arrays.
pub fn session_setup(params: Option<&RawValue>) -> Result<SessionSetup<'_>, WireError> {
    let invalid = |path: &str, message: String| WireError::new(ErrorKind::InvalidParams, message).at_path(path);
    let text = params.map_or("{}", RawValue::get);
    let [session_id, cwd, mcp_servers, additional_directories] =
        raw::pick(text, ["sessionId", "cwd", "mcpServers", "additionalDirectories"])
            .map(|raw| raw.and_then(raw::not_null));
    let cwd = cwd.and_then(raw::string).ok_or_else(|| invalid("cwd", "`cwd` is missing or no string".to_owned()))?;
    if !cwd.starts_with('/') {
        return Err(invalid("cwd", format!("`cwd` must be an absolute path, not `{cwd}`")));
    }
    for (name, value) in [("mcpServers", mcp_servers), ("additionalDirectories", additional_directories)] {
        if value.is_some_and(|value| raw::elements(value).is_none()) {
            return Err(invalid(name, format!("`{name}` must be an array")));
        }
    }
    Ok(SessionSetup {
        session_id: session_id.and_then(raw::string),
        cwd,
        mcp_servers: mcp_servers.unwrap_or("[]"),
        additional_directories,
    })
}

/// One session in an agent's own list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedSession<'a> {
    /// The agent's id.
    pub session_id: Cow<'a, str>,
    /// Its working directory, where the agent says so.
    pub cwd: Option<Cow<'a, str>>,
    /// Its title.
    pub title: Option<Cow<'a, str>>,
    /// When it changed last, as the agent writes it (RFC 3339).
    pub updated_at: Option<Cow<'a, str>>,
    /// The whole entry.
    pub raw: &'a str,
}

/// Reads a result of `session/list`: the sessions and the cursor of the next page. Entries without an id are left out.
pub fn listed_sessions(result: &RawValue) -> (Vec<ListedSession<'_>>, Option<Cow<'_, str>>) {
    let [sessions, next_cursor] = raw::pick(result.get(), ["sessions", "nextCursor"]);
    let sessions = sessions.and_then(raw::elements).into_iter().flatten().filter_map(|element| {
        let [session_id, cwd, title, updated_at] =
            raw::pick(element.value, ["sessionId", "cwd", "title", "updatedAt"]).map(|raw| raw.and_then(raw::string));
        Some(ListedSession { session_id: session_id?, cwd, title, updated_at, raw: element.value })
    });
    (sessions.collect(), next_cursor.and_then(raw::string))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn a_session_needs_an_absolute_directory() {
        let params = raw(r#"{"cwd":"/tmp/\u00e9","mcpServers":[{"x":1}],"sessionId":"s"}"#);
        let setup = session_setup(Some(&params)).unwrap();
        assert_eq!(
            (setup.cwd.as_ref(), setup.mcp_servers, setup.session_id.as_deref()),
            ("/tmp/é", r#"[{"x":1}]"#, Some("s"))
        );
        assert_eq!(session_setup(Some(&raw(r#"{"cwd":"/"}"#))).unwrap().mcp_servers, "[]");
        for (bad, path) in [
            ("{}", "cwd"),
            (r#"{"cwd":"x","mcpServers":[]}"#, "cwd"),
            (r#"{"cwd":null}"#, "cwd"),
            (r#"{"cwd":"/","mcpServers":{}}"#, "mcpServers"),
        ] {
            let params = raw(bad);
            assert_eq!(session_setup(Some(&params)).unwrap_err().path.as_deref(), Some(path), "{bad}");
        }
        assert!(session_setup(None).is_err());
    }

    #[test]
    fn ids_are_read_from_where_the_protocol_has_them() {
        assert_eq!(session_id(&raw(r#"{"x":{"sessionId":"no"},"sessionId":"yes"}"#)).as_deref(), Some("yes"));
        assert!(required_session_id(None).is_err());
        assert_eq!(cancelled_request_id(Some(&raw(r#"{"requestId":"7"}"#))).unwrap().as_raw(), "\"7\"");
        let list = raw(r#"{"sessions":[{"sessionId":"a","cwd":"/","title":null},{"cwd":"/"},5],"nextCursor":"c"}"#);
        let (sessions, cursor) = listed_sessions(&list);
        assert_eq!((sessions.len(), cursor.as_deref()), (1, Some("c")));
        assert_eq!((sessions[0].cwd.as_deref(), sessions[0].title.as_deref()), (Some("/"), None));
    }
}
