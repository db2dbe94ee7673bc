//! `[gateway]` in config.toml.

use std::net::{IpAddr, Ipv4Addr};

use holdfast_stores::config::{ConfigSection, SectionProblem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The port when none is set and it is free.
pub const DEFAULT_PORT: u16 = 7420;

/// The admin HTTP listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GatewayConfig {
    /// Whether there is one.
    pub enabled: bool,
    /// The address it listens on: an IP address or `localhost`.
    pub host: String,
    /// The port. Unset: 7420, or one that the system chooses when that is taken. Set and taken: the listener fails, the
    /// daemon runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Whether other machines may use it, with the token. Needs a `host` they can reach.
    pub allow_remote_admin: bool,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self { enabled: true, host: "127.0.0.1".to_owned(), port: None, allow_remote_admin: false }
    }
}

impl GatewayConfig {
    /// Returns the address to listen on.
    ///
    /// `localhost` is 127.0.0.1: what it resolves to is in a file of the system, and may be elsewhere.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.host.as_str() {
            "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            host => host.trim_start_matches('[').trim_end_matches(']').parse().ok(),
        }
    }
}

impl ConfigSection for GatewayConfig {
    const NAME: &'static str = "gateway";

    fn validate(&self) -> Vec<SectionProblem> {
        let mut problems = Vec::new();
        if self.ip().is_none() {
            problems.push(
                SectionProblem::new(["host"], format!("`{}` is not an IP address", self.host))
                    .with_hint("use `127.0.0.1`, `::1` or `localhost`"),
            );
        }
        if self.port == Some(0) {
            problems.push(
                SectionProblem::new(["port"], "0 is not a port").with_hint("leave it out to let the system choose one"),
            );
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses() {
        for (host, ip) in [("localhost", "127.0.0.1"), ("::1", "::1"), ("[::1]", "::1"), ("10.0.0.1", "10.0.0.1")] {
            let config = GatewayConfig { host: host.to_owned(), ..GatewayConfig::default() };
            assert_eq!(config.ip(), Some(ip.parse().unwrap()));
            assert_eq!(config.validate(), []);
        }
        let wrong =
            GatewayConfig { host: "example.org".to_owned(), port: Some(0), ..GatewayConfig::default() }.validate();
        assert_eq!(wrong.len(), 2);
    }
}
