//! Environment variables and the `.env` file of the current directory.
//!
//! Every flag has a variable `PLIMSOLL_…`. The names that older load scripts use are
//! understood too, with bare numbers. A flag wins over `PLIMSOLL_…`, that over an alias,
//! that over the `.env` file. The process's own environment is never changed.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_protocols::foreign::{Alias, Form, Web};
use plimsoll_protocols::registry::{self, ENTRIES};

use crate::failure::Failure;

/// What every command's help says about variables.
pub(crate) const HELP: &str = "\
Environment: the variable shown with a flag sets it, also from a file .env in the current
directory. These variables work as well, with bare numbers:
  DF_HOST, DF_PORT             the target's (serve: the listening) host and port
  N_RPS                        --rate, in calls a second
  T_DURATION_SEC, T_WARMUP_SEC --duration, --warmup, in seconds
  TLS_CA, TLS_CERT, TLS_KEY    --ca, --cert, --key (serve: --tls-client-ca, --tls-cert, --tls-key)
  SSLKEYLOGFILE                --key-log
  DELAY_MS                     serve: --delay, in milliseconds
  TOKEN_DELAY_MS, LLM_RESPONSE_TEXT, SESSION_TTL_SECONDS
                               serve llm: --token-delay, --text, --session-ttl
  REDIS_URL, PUBSUB_POOL_SIZE  --redis, --subscribers
  HOST, PORT                   relay gateway: where it listens
  WS_PING_INTERVAL_SECS, WS_PING_TIMEOUT_SECS
                               relay gateway: --ping-interval, --ping-timeout, in seconds
  FASTAPI_HOST, FASTAPI_PORT, FASTAPI_WORKERS
                               serve llm: where it listens, --workers
  FASTAPI_URL, WSPROXY_URL     session: URL, --socket
  CLIENTS, QUERIES_PER_CLIENT, OUTPUT_DIR
                               session, stack run: --clients, --queries, --output-dir
  WS_MAX_RECONNECT_ATTEMPTS, WS_INITIAL_BACKOFF_SECONDS, WS_MAX_BACKOFF_SECONDS
                               session, stack run: --reconnects, --reconnect-pause,
                               --reconnect-pause-most, in seconds
  JWT_SECRET, JWT_ALGORITHM    serve llm, relay gateway: the tokens' secret; HS256
A flag wins over PLIMSOLL_…, that over these names, that over .env, that over .env.loadtest.

Exit codes: 0 done, 1 error or not one call succeeded, 2 wrong usage or plan, 90 the run
proves nothing (with objectives), 99 an objective was missed, 130 interrupted.";

/// The names of old that several commands have; protocols have theirs in the registry.
const ALIASES: [Alias; 19] = [
    Alias::new("N_RPS", "PLIMSOLL_RATE", "/s"),
    Alias::new("T_DURATION_SEC", "PLIMSOLL_DURATION", "s"),
    Alias::new("T_WARMUP_SEC", "PLIMSOLL_WARMUP", "s"),
    Alias::new("TLS_CA", "PLIMSOLL_CA", ""),
    Alias::new("TLS_CERT", "PLIMSOLL_CERT", ""),
    Alias::new("TLS_KEY", "PLIMSOLL_KEY", ""),
    Alias::new("TLS_CA", "PLIMSOLL_TLS_CLIENT_CA", ""),
    Alias::new("TLS_CERT", "PLIMSOLL_TLS_CERT", ""),
    Alias::new("TLS_KEY", "PLIMSOLL_TLS_KEY", ""),
    Alias::new("SSLKEYLOGFILE", "PLIMSOLL_KEY_LOG", ""),
    Alias::new("DELAY_MS", "PLIMSOLL_DELAY", "ms"),
    Alias::new("TOKEN_DELAY_MS", "PLIMSOLL_TOKEN_DELAY", "ms"),
    Alias::new("LLM_RESPONSE_TEXT", "PLIMSOLL_TEXT", ""),
    Alias::new("SESSION_TTL_SECONDS", "PLIMSOLL_SESSION_TTL", "s"),
    Alias::new("PUBSUB_POOL_SIZE", "PLIMSOLL_SUBSCRIBERS", ""),
    Alias::new("WS_PING_INTERVAL_SECS", "PLIMSOLL_PING_INTERVAL", "s"),
    Alias::new("WS_PING_TIMEOUT_SECS", "PLIMSOLL_PING_TIMEOUT", "s"),
    Alias::new("REDIS_URL", "PLIMSOLL_REDIS", ""),
    Alias::of(
        &["serve llm"],
        "FASTAPI_WORKERS",
        "PLIMSOLL_WORKERS",
        Form::Plain { unit: "" },
    ),
];

/// A value and the variable it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) value: String,
    pub(crate) variable: String,
    /// From the `.env` file, not from the process's environment.
    pub(crate) from_file: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Environment {
    process: BTreeMap<String, String>,
    file: BTreeMap<String, String>,
}

impl Environment {
    /// The process's environment, `.env` and `.env.loadtest`, where there are any.
    ///
    /// # Errors
    /// When one of the files can't be read or understood.
    pub(crate) fn load() -> Result<Environment, Failure> {
        let process = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let mut file = BTreeMap::new();
        for name in [".env.loadtest", ".env"] {
            let path = Path::new(name);
            if !path.is_file() {
                continue;
            }
            let wrong = |e: dotenvy::Error| {
                Failure::usage(
                    format_args!("{name}: {e}"),
                    "each line is NAME=value; quote values with blanks",
                )
            };
            for item in dotenvy::from_path_iter(path).map_err(wrong)? {
                let (name, value) = item.map_err(wrong)?;
                file.insert(name, value);
            }
        }
        Ok(Environment { process, file })
    }

    /// The names of all variables that are set, each of them once or twice.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let all = self.process.keys().chain(self.file.keys());
        all.map(String::as_str)
    }

    #[cfg(test)]
    pub(crate) fn of(process: &[(&str, &str)]) -> Environment {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Environment {
            process: process.iter().map(pair).collect(),
            file: BTreeMap::new(),
        }
    }

    /// Its value alone.
    pub(crate) fn value(&self, name: &str) -> Option<String> {
        self.get(name).map(|found| found.value)
    }

    /// A variable's value; empty counts as not set.
    pub(crate) fn get(&self, name: &str) -> Option<Found> {
        let found = |from: &BTreeMap<String, String>, from_file| {
            let value = from.get(name).filter(|value| !value.is_empty())?;
            Some(Found {
                value: value.clone(),
                variable: name.to_owned(),
                from_file,
            })
        };
        found(&self.process, false).or_else(|| found(&self.file, true))
    }

    /// What `variable` (`PLIMSOLL_…`) is for `command`, where the process's environment does
    /// not set it itself.
    pub(crate) fn stand_in(&self, variable: &str, command: &str) -> Option<Found> {
        let own = self.get(variable);
        if own.as_ref().is_some_and(|found| !found.from_file) {
            return None;
        }
        let alias = self.alias(variable, command);
        match (alias, own) {
            (Some(alias), _) if !alias.from_file => Some(alias),
            (_, Some(own)) => Some(own),
            (alias, None) => alias,
        }
    }

    fn alias(&self, variable: &str, command: &str) -> Option<Found> {
        let of_protocols = ENTRIES.iter().flat_map(|entry| entry.aliases);
        let is_here = |alias: &&Alias| {
            alias.variable == variable
                && (alias.commands.is_empty() || alias.commands.contains(&command))
        };
        let mut known = ALIASES.iter().chain(of_protocols).filter(is_here);
        let named = known.find_map(|alias| match alias.form {
            Form::Plain { unit } => self.plain(alias.name, unit),
            Form::Url(schemes) => self.url(alias.name, schemes),
        });
        named.or_else(|| match (variable, command) {
            ("PLIMSOLL_TARGET", _) => self.address(true),
            // Names as common as these belong to one command alone.
            ("PLIMSOLL_LISTEN", "serve llm") => {
                let own = || self.listening("FASTAPI_HOST", "FASTAPI_PORT", ["127.0.0.1", "8000"]);
                self.address(false).or_else(own)
            }
            ("PLIMSOLL_LISTEN", "relay gateway") => {
                let own = || self.listening("HOST", "PORT", ["127.0.0.1", "4040"]);
                self.address(false).or_else(own)
            }
            ("PLIMSOLL_LISTEN", _) => self.address(false),
            _ => None,
        })
    }

    fn plain(&self, name: &str, unit: &str) -> Option<Found> {
        let mut found = self.get(name)?;
        let bare = found.value.trim().ends_with(|c: char| c.is_ascii_digit());
        if bare && !unit.is_empty() {
            found.value = format!("{}{unit}", found.value.trim());
        }
        Some(found)
    }

    /// `DF_HOST` and `DF_PORT` together; as a target, secured where there is a CA.
    fn address(&self, target: bool) -> Option<Found> {
        let mut found = self.listening("DF_HOST", "DF_PORT", ["localhost", "50051"])?;
        let secured = self
            .get("PLIMSOLL_CA")
            .or_else(|| self.get("TLS_CA"))
            .is_some();
        let schemes = registry::default_schemes();
        let scheme = schemes.secured.filter(|_| secured);
        if target {
            found.value = format!("{}://{}", scheme.unwrap_or(schemes.plain), found.value);
        }
        Some(found)
    }

    /// The URL of a variable, with our scheme in place of the web's, and its port written out.
    fn url(&self, name: &str, schemes: [Web; 2]) -> Option<Found> {
        let mut found = self.get(name)?;
        let typed = found.value.trim().trim_end_matches('/');
        let known = schemes.into_iter().find_map(|(web, ours, port)| {
            let rest = typed.strip_prefix(web).or(typed.strip_prefix(ours))?;
            Some((rest, ours, port))
        });
        let bare = (typed, schemes[0].1, schemes[0].2);
        let (rest, ours, port) = match known {
            Some(known) => known,
            None if typed.contains("://") => return Some(found),
            None => bare,
        };
        let has_port = rest
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
        found.value = match has_port || rest.contains('/') {
            true => format!("{ours}{rest}"),
            false => format!("{ours}{rest}:{port}"),
        };
        Some(found)
    }

    /// The host and the port of two variables, or of one and what the other is by default.
    fn listening(&self, host_name: &str, port_name: &str, or: [&str; 2]) -> Option<Found> {
        let host = self.get(host_name);
        let port = self.get(port_name);
        if host.is_none() && port.is_none() {
            return None;
        }
        let from_file = [&host, &port]
            .into_iter()
            .flatten()
            .all(|found| found.from_file);
        let host = host.map_or(or[0].into(), |found| found.value);
        let host = if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]")
        } else {
            host
        };
        let port = port.map_or(or[1].into(), |found| found.value);
        Some(Found {
            value: format!("{host}:{port}"),
            variable: format!("{host_name} and {port_name}"),
            from_file,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(process: &[(&str, &str)], file: &[(&str, &str)]) -> Environment {
        let map = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        Environment {
            process: map(process),
            file: map(file),
        }
    }

    #[test]
    fn the_process_wins_over_aliases_and_they_over_the_file() {
        let value = |e: &Environment| {
            e.stand_in("PLIMSOLL_RATE", "grpc")
                .map(|f| (f.value, f.variable))
        };
        let alias = Some(("700/s".to_owned(), "N_RPS".to_owned()));
        assert_eq!(
            value(&environment(
                &[("N_RPS", "700")],
                &[("PLIMSOLL_RATE", "5/s")]
            )),
            alias
        );
        assert_eq!(
            value(&environment(
                &[("N_RPS", "700"), ("PLIMSOLL_RATE", "5/s")],
                &[]
            )),
            None
        );
        assert_eq!(
            value(&environment(
                &[],
                &[("N_RPS", "700"), ("PLIMSOLL_RATE", "5/s")]
            )),
            Some(("5/s".into(), "PLIMSOLL_RATE".into()))
        );
        assert_eq!(value(&environment(&[], &[("N_RPS", "700")])), alias);
        assert_eq!(value(&environment(&[("N_RPS", "")], &[])), None);
    }

    #[test]
    fn aliases_take_bare_numbers_and_units() {
        let e = environment(
            &[
                ("T_DURATION_SEC", "30"),
                ("T_WARMUP_SEC", "500ms"),
                ("DELAY_MS", "2.5"),
                ("TLS_CA", "ca1"),
            ],
            &[],
        );
        let value = |variable| e.stand_in(variable, "grpc").map(|f| f.value);
        assert_eq!(value("PLIMSOLL_DURATION").as_deref(), Some("30s"));
        assert_eq!(value("PLIMSOLL_WARMUP").as_deref(), Some("500ms"));
        assert_eq!(value("PLIMSOLL_DELAY").as_deref(), Some("2.5ms"));
        assert_eq!(value("PLIMSOLL_CA").as_deref(), Some("ca1"));
        assert_eq!(value("PLIMSOLL_TLS_CLIENT_CA").as_deref(), Some("ca1"));
    }

    #[test]
    fn host_and_port_make_a_target_secured_where_there_is_a_ca() {
        let target = |pairs: &[(&str, &str)]| {
            environment(pairs, &[])
                .stand_in("PLIMSOLL_TARGET", "grpc")
                .map(|f| f.value)
        };
        assert_eq!(
            target(&[("DF_HOST", "a"), ("DF_PORT", "1")]).as_deref(),
            Some("grpc://a:1")
        );
        assert_eq!(
            target(&[("DF_HOST", "::1"), ("DF_PORT", "1"), ("TLS_CA", "ca")]).as_deref(),
            Some("grpcs://[::1]:1")
        );
        assert_eq!(target(&[]), None);
        let listen = environment(&[("DF_PORT", "7")], &[]).stand_in("PLIMSOLL_LISTEN", "score");
        assert_eq!(listen.map(|f| f.value).as_deref(), Some("localhost:7"));
    }

    #[test]
    fn addresses_of_the_web_are_those_of_sessions() {
        let value = |name: &str, url: &str, variable: &str, command: &str| {
            environment(&[(name, url)], &[])
                .stand_in(variable, command)
                .map(|found| found.value)
        };
        for (url, target) in [
            ("http://localhost:8080", "session://localhost:8080"),
            ("http://localhost:8080/", "session://localhost:8080"),
            ("http://api", "session://api:80"),
            ("https://api", "sessions://api:443"),
            ("http://[::1]", "session://[::1]:80"),
            ("session://api:1", "session://api:1"),
            ("api:8080", "session://api:8080"),
            ("ftp://api", "ftp://api"),
        ] {
            let found = value("FASTAPI_URL", url, "PLIMSOLL_TARGET", "session");
            assert_eq!(found.as_deref(), Some(target), "{url}");
            assert_eq!(value("FASTAPI_URL", url, "PLIMSOLL_TARGET", "grpc"), None);
        }
        for (url, sockets) in [
            ("ws://localhost:8081", "ws://localhost:8081"),
            ("wss://sockets", "wss://sockets:443"),
            ("http://localhost:8081", "ws://localhost:8081"),
        ] {
            let found = value("WSPROXY_URL", url, "PLIMSOLL_SOCKET", "session");
            assert_eq!(found.as_deref(), Some(sockets), "{url}");
        }
    }

    #[test]
    fn common_names_mean_something_to_sessions_alone() {
        for (name, typed, variable, meant) in [
            ("CLIENTS", "5", "PLIMSOLL_CLIENTS", "5"),
            ("QUERIES_PER_CLIENT", "3", "PLIMSOLL_QUERIES", "3"),
            ("OUTPUT_DIR", "out", "PLIMSOLL_OUTPUT_DIR", "out"),
            ("WS_MAX_RECONNECT_ATTEMPTS", "7", "PLIMSOLL_RECONNECTS", "7"),
            (
                "WS_INITIAL_BACKOFF_SECONDS",
                "0.5",
                "PLIMSOLL_RECONNECT_PAUSE",
                "0.5s",
            ),
            (
                "WS_MAX_BACKOFF_SECONDS",
                "30",
                "PLIMSOLL_RECONNECT_PAUSE_MOST",
                "30s",
            ),
        ] {
            let value = |command| {
                let found = environment(&[], &[(name, typed)]).stand_in(variable, command);
                found.map(|found| found.value)
            };
            for command in ["session", "stack run"] {
                assert_eq!(
                    value(command).as_deref(),
                    Some(meant),
                    "{name} of {command}"
                );
            }
            for command in ["grpc", "run", "stack up", "bolt"] {
                assert_eq!(value(command), None, "{name} of {command}");
            }
        }
        let simulator = [
            ("FASTAPI_HOST", "0.0.0.0"),
            ("FASTAPI_PORT", "9000"),
            ("FASTAPI_WORKERS", "4"),
        ];
        let value = |variable, command| {
            let found = environment(&simulator, &[]).stand_in(variable, command);
            found.map(|found| found.value)
        };
        assert_eq!(
            value("PLIMSOLL_LISTEN", "serve llm").as_deref(),
            Some("0.0.0.0:9000")
        );
        assert_eq!(value("PLIMSOLL_WORKERS", "serve llm").as_deref(), Some("4"));
        assert_eq!(value("PLIMSOLL_WORKERS", "relay gateway"), None);
        assert_eq!(value("PLIMSOLL_LISTEN", "serve score"), None);
    }

    #[test]
    fn a_bare_host_and_port_are_the_gateways_alone() {
        let listen = |pairs: &[(&str, &str)], command| {
            let found = environment(pairs, &[]).stand_in("PLIMSOLL_LISTEN", command);
            found.map(|f| f.value)
        };
        let both = [("HOST", "0.0.0.0"), ("PORT", "5000")];
        assert_eq!(
            listen(&both, "relay gateway").as_deref(),
            Some("0.0.0.0:5000")
        );
        assert_eq!(
            listen(&both[..1], "relay gateway").as_deref(),
            Some("0.0.0.0:4040")
        );
        assert_eq!(
            listen(&both[1..], "relay gateway").as_deref(),
            Some("127.0.0.1:5000")
        );
        for command in ["serve llm", "serve score", "relay sidecar"] {
            assert_eq!(listen(&both, command), None);
        }
        let target = environment(&both, &[]).stand_in("PLIMSOLL_TARGET", "grpc");
        assert_eq!(target, None);
    }
}
