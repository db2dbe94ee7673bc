//! Identifiers. All are UUIDs (version 7 where we make them) behind newtypes, so that two kinds are never swapped.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A text that is not an identifier of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {kind}: {reason}")]
pub struct InvalidId {
    /// What was expected, as a noun ("session id").
    pub kind: &'static str,
    /// The text as given.
    pub text: String,
    /// What is wrong with it.
    pub reason: String,
}

macro_rules! uuid_id {
    ($(#[$meta:meta])* $name:ident, $kind:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(#[schemars(with = "String", extend("format" = "uuid"))] pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(formatter)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Uuid::try_parse(text).map(Self).map_err(|error| InvalidId {
                    kind: $kind,
                    text: text.to_owned(),
                    reason: error.to_string(),
                })
            }
        }
    };
}

uuid_id!(
    /// A chat or ACP session, as clients know it. An agent's own session id is another thing and may change.
    SessionId, "session id"
);
uuid_id!(
    /// One turn: a prompt and all that follows until the agent stops.
    TurnId, "turn id"
);
uuid_id!(
    /// One process lease: the right to run, and the duty to end, one adapter tree.
    LeaseId, "lease id"
);
uuid_id!(
    /// This install, made at its first start. Not a secret.
    InstanceId, "instance id"
);
uuid_id!(
    /// One transcript event. Stable for ever, unlike its position.
    EventId, "event id"
);

/// The name of an agent in `config.toml`: 1 to 64 characters of `a-z`, `0-9`, `_`, `-`.
///
/// It is also a directory name under `agents/`, which is why nothing else is allowed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct AgentAlias(#[schemars(regex(pattern = r"^[a-z0-9_-]{1,64}$"))] String);

impl AgentAlias {
    /// Returns the alias as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for AgentAlias {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
        if text.is_empty() || text.len() > 64 || !text.bytes().all(legal) {
            return Err(InvalidId {
                kind: "agent alias",
                text: text.to_owned(),
                reason: "use 1 to 64 characters of a-z, 0-9, `_` and `-`".to_owned(),
            });
        }
        Ok(Self(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for AgentAlias {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for AgentAlias {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_is_a_safe_directory_name() {
        for good in ["a", "claude", "my-agent_2", &"x".repeat(64)] {
            assert_eq!(good.parse::<AgentAlias>().unwrap().as_str(), good);
        }
        for bad in ["", "..", "a/b", "A", "é", "a b", &"x".repeat(65)] {
            assert!(bad.parse::<AgentAlias>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn ids_are_plain_strings_on_the_wire() {
        let id: SessionId = "0199a3c2-0000-7000-8000-000000000001".parse().unwrap();
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, "\"0199a3c2-0000-7000-8000-000000000001\"");
        assert_eq!(serde_json::from_str::<SessionId>(&json).unwrap(), id);
        assert!("nonsense".parse::<SessionId>().is_err());
    }
}
