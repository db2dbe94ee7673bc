//! The two handshakes: ours to the agent, and the agent's, with what we add, to our clients.

use serde::Serialize;
use serde_json::value::RawValue;

use super::capabilities::is_offered;
use super::edit::{EditError, remove_member, set_member};
use super::{META_KEY, PROTOCOL_VERSION};
use crate::raw;

/// What we tell an agent that we can do beyond taking every update. All off is safe: every adapter works without.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SouthOffer {
    /// Answer `fs/read_text_file`.
    pub read_text_file: bool,
    /// Answer `fs/write_text_file`.
    pub write_text_file: bool,
    /// Answer `terminal/*`.
    pub terminal: bool,
    /// Answer `elicitation/create`, both forms.
    pub elicitation: bool,
}

/// Makes the params of our `initialize` to an agent. `version` is our program's version.
///
/// Updates that need a capability are all asked for: we record them, and filter for each client.
///
/// # Errors
/// If the params cannot be JSON, which would be a fault of ours.
pub fn south_params(version: &str, offer: SouthOffer) -> Result<Box<RawValue>, serde_json::Error> {
    #[derive(Serialize)]
    struct Empty {}
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        protocol_version: u16,
        client_capabilities: Capabilities,
        client_info: Info<'a>,
    }
    #[derive(Serialize)]
    struct Info<'a> {
        name: &'a str,
        title: &'a str,
        version: &'a str,
    }
    #[derive(Serialize)]
    struct Capabilities {
        fs: Files,
        terminal: bool,
        session: Session,
        plan: Empty,
        subagents: Empty,
        #[serde(skip_serializing_if = "Option::is_none")]
        elicitation: Option<Elicitation>,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Files {
        read_text_file: bool,
        write_text_file: bool,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Session {
        notices: Empty,
        compaction: Empty,
        config_options: ConfigOptions,
    }
    #[derive(Serialize)]
    struct ConfigOptions {
        boolean: Empty,
    }
    #[derive(Serialize)]
    struct Elicitation {
        form: Empty,
        url: Empty,
    }
    serde_json::value::to_raw_value(&Params {
        protocol_version: PROTOCOL_VERSION,
        client_capabilities: Capabilities {
            fs: Files { read_text_file: offer.read_text_file, write_text_file: offer.write_text_file },
            terminal: offer.terminal,
            session: Session {
                notices: Empty {},
                compaction: Empty {},
                config_options: ConfigOptions { boolean: Empty {} },
            },
            plan: Empty {},
            subagents: Empty {},
            elicitation: offer.elicitation.then_some(Elicitation { form: Empty {}, url: Empty {} }),
        },
        client_info: Info { name: "holdfast", title: "Holdfast", version },
    })
}

/// Returns the version that the agent chose; `None` if it named none. Anything but [`PROTOCOL_VERSION`] can't be spoken.
pub fn negotiated_version(result: &RawValue) -> Option<i64> {
    raw::pick(result.get(), ["protocolVersion"])[0].and_then(raw::integer)
}

/// Session capabilities that we add where the agent lacks them: our own store serves them.
const SERVED_BY_US: [&str; 3] = ["list", "resume", "close"];

/// Session capabilities of agents that we can't carry: they would act on the agent's list while clients see ours.
const NOT_CARRIED: [&str; 3] = ["delete", "archive", "status"];

/// Makes our answer to a client's `initialize` from the agent's: all it says, plus what our store serves whatever the
/// agent can do, minus what we don't carry. `extensions` names our own methods, `version` is our program's version.
///
/// # Errors
/// [`EditError::NotAnObject`] if the agent's result is no object.
pub fn north_result(agent_result: &RawValue, version: &str, extensions: &[&str]) -> Result<Box<RawValue>, EditError> {
    #[derive(Serialize)]
    struct Meta<'a> {
        version: &'a str,
        extensions: &'a [&'a str],
    }
    const CAPABILITIES: &str = "agentCapabilities";
    const SESSION: &str = "sessionCapabilities";
    let mut result = set_member(agent_result, &["protocolVersion"], &PROTOCOL_VERSION.to_string())?;
    result = set_member(&result, &[CAPABILITIES, "loadSession"], "true")?;
    for name in SERVED_BY_US {
        if !is_offered(raw::at(result.get(), &[CAPABILITIES, SESSION, name])) {
            result = set_member(&result, &[CAPABILITIES, SESSION, name], "{}")?;
        }
    }
    for name in NOT_CARRIED {
        result = remove_member(&result, &[CAPABILITIES, SESSION, name])?;
    }
    let meta = serde_json::to_string(&Meta { version, extensions })?;
    set_member(&result, &["_meta", META_KEY], &meta)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::capabilities::{AgentCapabilities, ClientCapabilities};

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn we_ask_for_exactly_version_one_and_take_every_update() {
        let params = south_params("0.1.0", SouthOffer::default()).unwrap();
        assert_eq!(
            params.get(),
            r#"{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":false,"writeTextFile":false},"terminal":false,"session":{"notices":{},"compaction":{},"configOptions":{"boolean":{}}},"plan":{},"subagents":{}},"clientInfo":{"name":"holdfast","title":"Holdfast","version":"0.1.0"}}"#
        );
        let params = south_params("0.1.0", SouthOffer { elicitation: true, ..Default::default() }).unwrap();
        let seen = ClientCapabilities::from_initialize_params(Some(&params));
        assert!(seen.elicitation_form && seen.elicitation_url && seen.notices && seen.plan && !seen.terminal);
    }

    #[test]
    fn a_client_sees_the_agent_plus_our_store() {
        let agent = raw(
            r#"{"protocolVersion":1,"authMethods":[{"id":"x"}],"agentCapabilities":{"promptCapabilities":{"image":true},"sessionCapabilities":{"fork":{},"delete":{},"list":{"new":9007199254740993},"x_new":{}},"_vendor":1.50}}"#,
        );
        let north = north_result(&agent, "0.1.0", &["_holdfast/session/watch"]).unwrap();
        assert_eq!(
            north.get(),
            r#"{"_meta":{"holdfast":{"version":"0.1.0","extensions":["_holdfast/session/watch"]}},"protocolVersion":1,"authMethods":[{"id":"x"}],"agentCapabilities":{"loadSession":true,"promptCapabilities":{"image":true},"sessionCapabilities":{"close":{},"resume":{},"fork":{},"list":{"new":9007199254740993},"x_new":{}},"_vendor":1.50}}"#
        );
        let seen = AgentCapabilities::from_initialize_result(&north);
        let expected =
            AgentCapabilities { load: true, resume: true, list: true, close: true, delete: false, fork: true };
        assert_eq!(seen, expected);
        let bare = north_result(&raw(r#"{"agentCapabilities":null}"#), "0.1.0", &[]).unwrap();
        let seen = AgentCapabilities::from_initialize_result(&bare);
        assert_eq!(seen, AgentCapabilities { fork: false, ..expected });
        assert_eq!(negotiated_version(&bare), Some(1));
        assert!(north_result(&raw("null"), "0.1.0", &[]).is_err());
    }
}
