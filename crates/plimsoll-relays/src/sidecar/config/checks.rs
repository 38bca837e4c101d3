//! Semantic checks of a config file that parsed.

use plimsoll_model::plan::ServerTrust;
use plimsoll_protocols::interface::relayed::{RelayMode, RelayProtocol};
use plimsoll_protocols::registry::{RELAYED_PROTOCOLS, RelayCodec};

use super::{MAX_FRAME_LIMIT_BYTES, MAX_WORKERS, MIN_LOOKUP_INTERVAL, RouteConfig, SidecarConfig};
use crate::sidecar::upstream_names::Upstream;

/// Result of a check; `Err` holds the invalid key and the correction.
pub(super) type CheckResult = Result<(), (String, String)>;

fn invalid_key(key: &str, problem: impl Into<String>) -> CheckResult {
    Err((key.to_owned(), problem.into()))
}

fn ensure(is_fine: bool, key: &str, problem: &str) -> CheckResult {
    if is_fine {
        Ok(())
    } else {
        invalid_key(key, problem)
    }
}

/// Lists the protocols whose relay mode meets a condition, for messages.
fn list_protocols(is_so: impl Fn(&RelayMode<RelayCodec>) -> bool) -> String {
    let named = RELAYED_PROTOCOLS
        .iter()
        .filter(|protocol| is_so(&protocol.mode));
    let mut names: Vec<String> = named
        .map(|protocol| format!("{:?}", protocol.name))
        .collect();
    let last = names.pop().unwrap_or_default();
    if names.is_empty() {
        last
    } else {
        format!("{} and {last}", names.join(", "))
    }
}

fn requires_codec_file(mode: &RelayMode<RelayCodec>) -> bool {
    matches!(mode, RelayMode::Frames { has_file: true, .. })
}

impl SidecarConfig {
    /// Checks the keys that belong to no route.
    pub(super) fn check_global_keys(&self) -> CheckResult {
        let has_routes = !self.route.is_empty();
        ensure(has_routes, "route", "none: write at least one [[route]]")?;
        let are_few = (1..=MAX_WORKERS).contains(&self.workers());
        ensure(are_few, "workers", "out of range: use 1 to 64")?;
        let is_near = self.admin.is_none_or(|admin| admin.ip().is_loopback());
        let right = "not a loopback address: metrics are for this machine, use 127.0.0.1:PORT";
        ensure(is_near, "admin", right)?;
        let is_seldom = self.lookup() >= MIN_LOOKUP_INTERVAL;
        ensure(is_seldom, "lookup", "too often: use 100ms or more")
    }

    /// Checks a route against the others: its name, its address and loops.
    pub(super) fn check_against_other_routes(&self, i: usize) -> CheckResult {
        let route = &self.route[i];
        let is_known = self.route[..i].iter().any(|other| other.name == route.name);
        ensure(!is_known, "name", "used twice: give each route its own")?;
        let listen_tls = route.listen_tls.as_ref();
        if listen_tls.is_some_and(|tls| tls.server_name.is_some()) {
            return invalid_key(
                "listen_tls.server_name",
                "not used here: the names of clients are not checked; leave it out (in \
                 upstream_tls it is the name that the upstream's certificate must have)",
            );
        }
        if let Some(other) = self.find_listen_conflict(i) {
            let listen = &route.listen;
            let problem = format!("{listen} is already used by {other}: give each its own");
            return invalid_key("listen", problem);
        }
        if let Some(way) = self.find_route_loop(i) {
            let problem =
                format!("leads back into the route itself ({way}): name the service's address");
            return invalid_key("upstream", problem);
        }
        if route.proxy_protocol.as_ref().is_some_and(Vec::is_empty) {
            return invalid_key(
                "proxy_protocol",
                "empty: name the addresses that send PROXY headers, such as \"127.0.0.1\", or leave it out",
            );
        }
        let right = "empty: name at least one address, such as \"127.0.0.1:12200\"";
        ensure(!route.upstream.is_empty(), "upstream", right)
    }
}

impl RouteConfig {
    pub(super) fn check(&self) -> CheckResult {
        self.check_tls()?;
        self.check_protocol()?;
        self.check_limits()
    }

    fn check_tls(&self) -> CheckResult {
        let is_named = |versions: Option<&Vec<_>>| versions.is_none_or(|v| !v.is_empty());
        let right = "empty: name \"1.3\", \"1.2\" or both, or leave it out for both";
        let listen = self.listen_tls.as_ref();
        let listen = listen.and_then(|tls| tls.versions.as_ref());
        ensure(is_named(listen), "listen_tls.versions", right)?;
        let Some(tls) = &self.upstream_tls else {
            return Ok(());
        };
        let versions = tls.versions.as_ref();
        ensure(is_named(versions), "upstream_tls.versions", right)?;
        let trust = tls.server_trust()?;
        let is_named = tls.server_name.is_some()
            || !matches!(trust, ServerTrust::System | ServerTrust::Ca(_))
            || !self.upstream.iter().any(Upstream::is_unix_socket);
        match (&tls.cert, &tls.key) {
            (Some(_), None) => invalid_key(
                "upstream_tls.key",
                "missing: a certificate (cert) needs its private key",
            ),
            (None, Some(_)) => invalid_key(
                "upstream_tls.cert",
                "missing: a private key (key) needs its certificate",
            ),
            _ if is_named => Ok(()),
            _ => invalid_key(
                "upstream_tls.server_name",
                "missing: a Unix socket has no name to check the upstream's certificate against; \
                 give a name of the certificate, such as \"localhost\"",
            ),
        }
    }

    /// Rejects keys that the route's protocol does not have.
    fn check_protocol(&self) -> CheckResult {
        let RelayProtocol {
            name,
            mode: carriage,
        } = self.protocol;
        let of_calls = [
            ("connections", self.connections.is_some()),
            ("max_in_flight", self.max_in_flight.is_some()),
            ("max_frame", self.max_frame.is_some()),
            ("timeout", self.timeout.is_some()),
            ("heartbeat", self.heartbeat.is_some()),
            ("eject_after", self.eject_after.is_some()),
            ("eject_for", self.eject_for.is_some()),
        ];
        let of_streams = [
            ("max_streams", self.max_streams.is_some()),
            ("request_timeout", self.request_timeout.is_some()),
        ];
        let of_file = [("codec_timeout", self.codec_timeout.is_some())];
        let have_calls = |carriage: &_| !matches!(carriage, RelayMode::Bytes);
        let have_streams = |carriage: &_| matches!(carriage, RelayMode::Streams { .. });
        let known_calls = format!("{}: {name} has no calls", list_protocols(have_calls));
        for (keys, those, is_one) in [
            (&of_calls[..], known_calls, have_calls(carriage)),
            (
                &of_streams,
                list_protocols(have_streams),
                have_streams(carriage),
            ),
            (
                &of_file,
                list_protocols(requires_codec_file),
                requires_codec_file(carriage),
            ),
        ] {
            if let Some((key, _)) = keys.iter().find(|(_, given)| *given && !is_one) {
                return invalid_key(key, format!("only for {those}"));
            }
        }
        match (carriage, self.max_frame) {
            (RelayMode::Streams { title }, Some(_)) => {
                let those = list_protocols(|carriage| matches!(carriage, RelayMode::Frames { .. }));
                invalid_key(
                    "max_frame",
                    format!(
                        "only for {those}: {title}'s messages pass frame by frame, of any length"
                    ),
                )
            }
            _ => Ok(()),
        }
    }

    fn check_limits(&self) -> CheckResult {
        let at_least_1 = "out of range: use 1 or more";
        let range = 1024..=MAX_FRAME_LIMIT_BYTES;
        let fits = (self.max_frame.as_ref()).is_none_or(|size| range.contains(&size.0));
        ensure(fits, "max_frame", "out of range: use 1KiB to 1GiB")?;
        if let Some((name, problem)) = self.fault.and_then(|fault| fault.find_invalid_key()) {
            return invalid_key(name, problem);
        }
        ensure(self.max_streams() > 0, "max_streams", at_least_1)?;
        self.check_codec_file()?;
        let fits = (1..=1024).contains(&self.connections());
        ensure(fits, "connections", "out of range: use 1 to 1024")?;
        let fits = (1..1 << 20).contains(&self.max_in_flight());
        ensure(fits, "max_in_flight", "out of range: use 1 to 1048575")?;
        ensure(self.eject_after != Some(0), "eject_after", at_least_1)?;
        let mut times = [
            self.timeout(),
            self.heartbeat(),
            self.request_timeout(),
            self.codec_timeout(),
        ]
        .into_iter();
        ensure(
            times.all(|time| !time.is_zero()),
            "timeout, heartbeat, request_timeout, codec_timeout",
            "0 is not a valid time: use a duration such as \"15s\"",
        )
    }

    fn check_codec_file(&self) -> CheckResult {
        let RelayProtocol {
            name,
            mode: carriage,
        } = self.protocol;
        match (requires_codec_file(carriage), &self.file) {
            (true, None) => invalid_key(
                name,
                format!(
                    "missing: protocol = \"{name}\" needs the shared object that implements it, \
                     such as \"x_example.so\""
                ),
            ),
            (false, Some(_)) => {
                let those = list_protocols(requires_codec_file);
                invalid_key(
                    those.trim_matches('"'),
                    format!("only for protocol = {those}"),
                )
            }
            _ => Ok(()),
        }
    }
}
