//! Who may use the admin HTTP. A pure function of what is known of the request.
//!
//! A browser on this machine is the danger: any page may make it send requests to loopback addresses, and a page whose
//! name was re-bound to 127.0.0.1 may even read the answers. So without a token the kernel must say that the connection
//! comes from our own user, **and** the request must name us as host and must not come from another site's page. Pages
//! cannot set `Host`, `Origin`, `Sec-Fetch-Site` or, across sites, `Authorization` (Fetch standard, forbidden request
//! headers; RFC 6454; Fetch Metadata).

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, Uri, header};
use holdfast_protocol::error::{ErrorKind, WireError};

use super::token::HttpToken;

/// By what right a request was let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// The connection comes from our own user on this machine.
    SameUser,
    /// The request carries the token.
    Token,
}

/// What is known of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Connection {
    /// The other end.
    pub peer: SocketAddr,
    /// Our end.
    pub local: SocketAddr,
    /// Whose socket the other end is, when it is on this machine and the system says.
    pub peer_uid: Option<u32>,
}

/// The rules in force.
pub struct Rules<'a> {
    /// Our own user.
    pub own_uid: u32,
    /// The token, if one could be made.
    pub token: Option<&'a HttpToken>,
    /// Whether other machines may use it.
    pub allow_remote_admin: bool,
}

/// Why a request is refused. The texts say what to do, not what a right token would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// From another machine, and that is not allowed.
    #[error("requests from other machines are not allowed")]
    Remote,
    /// The token is wrong.
    #[error("the token is wrong")]
    WrongToken,
    /// No token, and none of the ways without one.
    #[error("a token is needed: the connection is not known to come from the daemon's own user")]
    TokenNeeded,
    /// `Host` is not ours.
    #[error("the Host header does not name this daemon")]
    ForeignHost,
    /// Sent by a page of another site.
    #[error("requests from pages of other sites are refused")]
    CrossSite,
    /// Too many wrong tokens from there.
    #[error("too many wrong tokens; wait a minute")]
    Throttled,
}

impl Refusal {
    /// Returns the HTTP status.
    pub fn status(self) -> u16 {
        match self {
            Self::Remote | Self::ForeignHost | Self::CrossSite => 403,
            Self::WrongToken | Self::TokenNeeded => 401,
            Self::Throttled => 429,
        }
    }
}

impl From<Refusal> for WireError {
    fn from(refusal: Refusal) -> Self {
        let remedy = match refusal {
            Refusal::Remote => "set `gateway.allow_remote_admin = true`, or use it from the same machine",
            Refusal::WrongToken | Refusal::TokenNeeded => {
                "send `Authorization: Bearer` with the content of `data/http-token` in the install root"
            }
            Refusal::ForeignHost => {
                "use http://127.0.0.1 or http://localhost with the daemon's port, or send the token"
            }
            Refusal::CrossSite => "open the daemon's own address, or send the token from a program",
            Refusal::Throttled => "wait a minute, then use the content of `data/http-token`",
        };
        WireError::new(ErrorKind::Denied, refusal.to_string()).with_remedy(remedy)
    }
}

/// Decides about a request.
///
/// # Errors
/// [`Refusal`].
pub fn decide(rules: &Rules<'_>, connection: &Connection, uri: &Uri, headers: &HeaderMap) -> Result<Grant, Refusal> {
    if !is_loopback(connection.peer.ip()) && !rules.allow_remote_admin {
        return Err(Refusal::Remote);
    }
    if headers.contains_key(header::AUTHORIZATION) {
        // Whoever knows the token may come from anywhere; no page of another site can make a browser send it.
        let given = one(headers, header::AUTHORIZATION).and_then(bearer);
        let right = given.zip(rules.token).is_some_and(|(given, token)| token.matches(given));
        return if right { Ok(Grant::Token) } else { Err(Refusal::WrongToken) };
    }
    let port = connection.local.port();
    let host = one(headers, header::HOST).ok_or(Refusal::ForeignHost)?;
    if !is_our_host(host, port) || uri.authority().is_some_and(|authority| !is_our_host(authority.as_str(), port)) {
        return Err(Refusal::ForeignHost);
    }
    if headers.contains_key(header::ORIGIN) {
        let origin = one(headers, header::ORIGIN).and_then(|origin| origin.strip_prefix("http://"));
        if !origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host)) {
            return Err(Refusal::CrossSite);
        }
    }
    if headers.contains_key("sec-fetch-site") {
        let site = one(headers, "sec-fetch-site");
        if !site.is_some_and(|site| site == "same-origin" || site == "none") {
            return Err(Refusal::CrossSite);
        }
    }
    match connection.peer_uid {
        Some(uid) if uid == rules.own_uid && is_loopback(connection.peer.ip()) => Ok(Grant::SameUser),
        _ => Err(Refusal::TokenNeeded),
    }
}

/// Says whether an address is this machine's own, also when written as IPv6.
pub fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Returns the value of a header that is there exactly once: two are a disagreement that someone may want.
fn one(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    value.to_str().ok()
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

fn is_our_host(host: &str, port: u16) -> bool {
    let (name, given) = match host.rsplit_once(':') {
        Some((name, digits)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            (name, digits)
        }
        _ => (host, "80"),
    };
    given.parse() == Ok(port) && ["localhost", "127.0.0.1", "[::1]"].iter().any(|ours| name.eq_ignore_ascii_case(ours))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    const TOKEN: &str = "hdf_0000000000000000000000000000000000000000000000000000000000000001";

    struct Case {
        peer: &'static str,
        uid: Option<u32>,
        remote: bool,
        uri: &'static str,
        headers: Vec<(&'static str, &'static str)>,
    }

    impl Case {
        fn local(headers: &[(&'static str, &'static str)]) -> Self {
            Self { peer: "127.0.0.1:50000", uid: Some(1000), remote: false, uri: "/api/rpc", headers: headers.to_vec() }
        }

        fn decide(&self) -> Result<Grant, Refusal> {
            let token = HttpToken::from_text(TOKEN);
            let rules = Rules { own_uid: 1000, token: Some(&token), allow_remote_admin: self.remote };
            let connection = Connection {
                peer: self.peer.parse().unwrap(),
                local: "127.0.0.1:7420".parse().unwrap(),
                peer_uid: self.uid,
            };
            let mut headers = HeaderMap::new();
            for (name, value) in &self.headers {
                headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_static(value));
            }
            decide(&rules, &connection, &self.uri.parse().unwrap(), &headers)
        }
    }

    const HOST: (&str, &str) = ("host", "127.0.0.1:7420");

    #[test]
    fn our_own_user_needs_no_token() {
        for host in ["127.0.0.1:7420", "localhost:7420", "LOCALHOST:7420", "[::1]:7420"] {
            assert_eq!(Case::local(&[("host", host)]).decide(), Ok(Grant::SameUser), "{host}");
        }
        let dashboard = [HOST, ("origin", "http://127.0.0.1:7420"), ("sec-fetch-site", "same-origin")];
        assert_eq!(Case::local(&dashboard).decide(), Ok(Grant::SameUser));
        assert_eq!(Case::local(&[HOST, ("sec-fetch-site", "none")]).decide(), Ok(Grant::SameUser));
        let mapped = Case { peer: "[::ffff:127.0.0.1]:50000", ..Case::local(&[HOST]) };
        assert_eq!(mapped.decide(), Ok(Grant::SameUser));
    }

    #[test]
    fn rebound_and_missing_hosts_are_refused() {
        for host in [
            "evil.example:7420",
            "127.0.0.1:7421",
            "127.0.0.1",
            "localhost.evil.example:7420",
            "127.0.0.1.nip.io:7420",
            "localhost:7420@evil.example",
            "evil.example:7420:7420",
            "",
            "0.0.0.0:7420",
        ] {
            assert_eq!(Case::local(&[("host", host)]).decide(), Err(Refusal::ForeignHost), "{host}");
        }
        assert_eq!(Case::local(&[]).decide(), Err(Refusal::ForeignHost));
        assert_eq!(Case::local(&[HOST, HOST]).decide(), Err(Refusal::ForeignHost));
        let absolute = Case { uri: "http://evil.example/api/rpc", ..Case::local(&[HOST]) };
        assert_eq!(absolute.decide(), Err(Refusal::ForeignHost));
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        for origin in [
            "http://evil.example",
            "null",
            "https://127.0.0.1:7420",
            "http://127.0.0.1:7421",
            "http://127.0.0.1",
            "http://localhost:7420",
            "",
        ] {
            assert_eq!(Case::local(&[HOST, ("origin", origin)]).decide(), Err(Refusal::CrossSite), "{origin}");
        }
        for site in ["cross-site", "same-site", "", "x"] {
            assert_eq!(Case::local(&[HOST, ("sec-fetch-site", site)]).decide(), Err(Refusal::CrossSite), "{site}");
        }
    }

    #[test]
    fn other_users_need_the_token() {
        let stranger = |uid, headers: &[_]| Case { uid, ..Case::local(headers) }.decide();
        assert_eq!(stranger(Some(1001), &[HOST]), Err(Refusal::TokenNeeded));
        assert_eq!(stranger(Some(0), &[HOST]), Err(Refusal::TokenNeeded));
        assert_eq!(stranger(None, &[HOST]), Err(Refusal::TokenNeeded));
        let right = ("authorization", "Bearer hdf_0000000000000000000000000000000000000000000000000000000000000001");
        assert_eq!(stranger(Some(1001), &[HOST, right]), Ok(Grant::Token));
        assert_eq!(stranger(None, &[right]), Ok(Grant::Token));
        for wrong in ["Bearer x", "Bearer ", "Basic eDp5", "hdf_0", ""] {
            // Also from our own user: who sends a token means it.
            assert_eq!(stranger(Some(1000), &[HOST, ("authorization", wrong)]), Err(Refusal::WrongToken), "{wrong}");
        }
        assert_eq!(stranger(None, &[right, ("authorization", "Bearer x")]), Err(Refusal::WrongToken));
    }

    #[test]
    fn other_machines_need_permission_and_the_token() {
        let right = ("authorization", "Bearer hdf_0000000000000000000000000000000000000000000000000000000000000001");
        let remote =
            |remote, headers: &[_]| Case { peer: "10.0.0.9:50000", uid: Some(1000), remote, ..Case::local(headers) };
        assert_eq!(remote(false, &[HOST, right]).decide(), Err(Refusal::Remote));
        assert_eq!(remote(true, &[HOST]).decide(), Err(Refusal::TokenNeeded));
        assert_eq!(remote(true, &[right]).decide(), Ok(Grant::Token));
    }
}
