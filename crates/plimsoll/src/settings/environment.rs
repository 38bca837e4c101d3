//! Reads environment variables and the `.env` files of the current directory.
//!
//! Every flag has a variable `PLIMSOLL_…`. Names from older load scripts are accepted as aliases; their
//! values are numbers without units. The order of precedence is: flag, `PLIMSOLL_…`, alias, `.env`. The process's
//! environment itself is never modified.

mod forbidden;

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_model::formats::input;
use plimsoll_protocols::interface::foreign::{AliasConversion, SchemeMapping, VariableAlias};
use plimsoll_protocols::registry::{self, COMMAND_ENTRIES};

use crate::failure::Failure;
use crate::settings::credentials::PlanCodePolicy;
use crate::settings::dotenv;
use crate::settings::load_limits::LoadLimits;

/// The text about environment variables in every command's help.
pub(crate) const VARIABLES_HELP: &str = "\
Environment: the variable shown with a flag sets it, also from a file .env in the current
directory. These variables work as well, with bare numbers:
  DF_HOST, DF_PORT             the target's (serve: the listening) host and port
  N_RPS                        --rate, in calls a second, of steady runs
  T_DURATION_SEC, T_WARMUP_SEC --duration and, of steady runs, --warmup, in seconds
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
Precedence: flag, PLIMSOLL_…, these names, .env, .env.loadtest.
No file can set variables that run commands, load code, say where files go, or lift limits.

Exit codes: 0 done, 1 error or not one call succeeded, 2 invalid usage or plan, 90 inconclusive
(with objectives), 99 an objective was missed, 130 interrupted.";

/// Aliases common to several commands. Aliases of one protocol are in the registry.
const COMMON_ALIASES: [VariableAlias; 19] = [
    VariableAlias::new("N_RPS", "PLIMSOLL_RATE", "/s"),
    VariableAlias::new("T_DURATION_SEC", "PLIMSOLL_DURATION", "s"),
    VariableAlias::new("T_WARMUP_SEC", "PLIMSOLL_WARMUP", "s"),
    VariableAlias::new("TLS_CA", "PLIMSOLL_CA", ""),
    VariableAlias::new("TLS_CERT", "PLIMSOLL_CERT", ""),
    VariableAlias::new("TLS_KEY", "PLIMSOLL_KEY", ""),
    VariableAlias::new("TLS_CA", "PLIMSOLL_TLS_CLIENT_CA", ""),
    VariableAlias::new("TLS_CERT", "PLIMSOLL_TLS_CERT", ""),
    VariableAlias::new("TLS_KEY", "PLIMSOLL_TLS_KEY", ""),
    VariableAlias::new("SSLKEYLOGFILE", "PLIMSOLL_KEY_LOG", ""),
    VariableAlias::new("DELAY_MS", "PLIMSOLL_DELAY", "ms"),
    VariableAlias::new("TOKEN_DELAY_MS", "PLIMSOLL_TOKEN_DELAY", "ms"),
    VariableAlias::new("LLM_RESPONSE_TEXT", "PLIMSOLL_TEXT", ""),
    VariableAlias::new("SESSION_TTL_SECONDS", "PLIMSOLL_SESSION_TTL", "s"),
    VariableAlias::new("PUBSUB_POOL_SIZE", "PLIMSOLL_SUBSCRIBERS", ""),
    VariableAlias::new("WS_PING_INTERVAL_SECS", "PLIMSOLL_PING_INTERVAL", "s"),
    VariableAlias::new("WS_PING_TIMEOUT_SECS", "PLIMSOLL_PING_TIMEOUT", "s"),
    VariableAlias::new("REDIS_URL", "PLIMSOLL_REDIS", ""),
    VariableAlias::for_commands(
        &["serve llm"],
        "FASTAPI_WORKERS",
        "PLIMSOLL_WORKERS",
        AliasConversion::Plain { unit: "" },
    ),
];

/// Aliases for rate and warm-up that apply only to steady runs, which have one fixed rate.
pub(crate) const STEADY_RUN_ALIASES: [&str; 2] = ["N_RPS", "T_WARMUP_SEC"];

/// Commands whose loads are never steady runs.
const NON_STEADY_COMMANDS: [&str; 3] = ["find", "ladder", "sweep"];

/// A value and the variable that set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VariableValue {
    pub(crate) value: String,
    pub(crate) variable: String,
    /// Whether the variable was set by an env file, not by the process's environment.
    pub(crate) from_file: bool,
}

/// Env files, in ascending order of precedence.
const ENV_FILES: [&str; 2] = [".env.loadtest", ".env"];

/// Maximum size of an env file, bytes.
const MAX_ENV_FILE_BYTES: u64 = 1 << 20;

/// A variable of an env file that was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RejectedVariable {
    /// The file, and the line number if the line is malformed.
    place: String,
    name: Option<String>,
    problem: String,
}

/// The environment variables of the process and of its env files.
#[derive(Clone, Default)]
pub(crate) struct Environment {
    process: BTreeMap<String, String>,
    file: BTreeMap<String, String>,
    rejected: Vec<RejectedVariable>,
    /// Whether commands and plugins named in plans are run.
    pub(crate) plan_code: PlanCodePolicy,
    /// Limits on the loads of this process; `None` if none are set.
    pub(crate) limits: Option<LoadLimits>,
}

impl Environment {
    /// Reads the process's environment, `.env` and `.env.loadtest`.
    pub(crate) fn load() -> Environment {
        let process = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let mut environment = Environment {
            process,
            ..Environment::default()
        };
        for name in ENV_FILES {
            let path = Path::new(name);
            if path.is_file() {
                match read_env_file(path) {
                    Ok(text) => environment.add_env_file(name, &text),
                    Err(problem) => environment.reject(name.to_owned(), None, problem),
                }
            }
        }
        environment
    }

    /// Adds the variables in `text`, which is the content of the env file `file`.
    fn add_env_file(&mut self, file: &str, text: &str) {
        let read = dotenv::read(text, |name| self.process.get(name).cloned());
        for line in read.unreadable {
            // Also drop the value from the file with lower precedence: the user meant to replace it.
            line.name
                .iter()
                .for_each(|name| drop(self.file.remove(name)));
            let place = format!("{file}, line {}", line.line);
            self.reject(place, line.name, line.problem.to_owned());
        }
        for (name, value) in read.values {
            match forbidden::find_reason(&name, &value) {
                Some(why) => {
                    let problem = format!(
                        "{why}, so a file can't set it: give the flag, or set the environment variable"
                    );
                    self.reject(file.to_owned(), Some(name), problem);
                }
                None => {
                    self.rejected
                        .retain(|refusal| refusal.name.as_ref() != Some(&name));
                    self.file.insert(name, value);
                }
            }
        }
    }

    fn reject(&mut self, place: String, name: Option<String>, problem: String) {
        self.rejected.push(RejectedVariable {
            place,
            name,
            problem,
        });
    }

    /// Returns a message for each rejected variable.
    pub(crate) fn rejection_messages(&self) -> impl Iterator<Item = String> {
        let left_out = self.rejected.iter();
        left_out.map(|refusal| format!("{}; ignored", refusal.message()))
    }

    /// Returns the error for a command that has the flag of `variable`, if the value in an env file was rejected and
    /// nothing else sets the flag.
    pub(crate) fn rejected_value_failure(&self, variable: &str, command: &str) -> Option<Failure> {
        let is_set = self.process.contains_key(variable);
        if self.rejected.is_empty() || is_set || self.fallback_value(variable, command).is_some() {
            return None;
        }
        let mut names = self.equivalent_names(variable, command).into_iter();
        let refusal = names.find_map(|wanted| {
            let is_it = |refusal: &&RejectedVariable| refusal.name.as_deref() == Some(wanted);
            let refusal = self.rejected.iter().find(is_it);
            refusal.filter(|_| !self.process.contains_key(wanted))
        })?;
        Some(Failure::usage(
            refusal.message(),
            "fix the line, or give the flag that it stands for",
        ))
    }

    /// Returns the names of all variables that can set the flag of `variable`.
    fn equivalent_names(&self, variable: &str, command: &str) -> Vec<&str> {
        let aliases = known_aliases(variable, command).map(|alias| alias.name);
        let addresses: &[&str] = match (variable, command) {
            ("PLIMSOLL_LISTEN", "serve llm") => {
                &["DF_HOST", "DF_PORT", "FASTAPI_HOST", "FASTAPI_PORT"]
            }
            ("PLIMSOLL_LISTEN", "relay gateway") => &["DF_HOST", "DF_PORT", "HOST", "PORT"],
            ("PLIMSOLL_TARGET" | "PLIMSOLL_LISTEN", _) => &["DF_HOST", "DF_PORT"],
            _ => &[],
        };
        let own = self
            .rejected
            .iter()
            .filter_map(|refusal| refusal.name.as_deref());
        let own = own.filter(|name| *name == variable);
        own.chain(aliases)
            .chain(addresses.iter().copied())
            .collect()
    }

    /// Returns the names of all set variables, possibly repeated.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let all = self.process.keys().chain(self.file.keys());
        all.map(String::as_str)
    }

    #[cfg(test)]
    pub(crate) fn of(process: &[(&str, &str)]) -> Environment {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Environment {
            process: process.iter().map(pair).collect(),
            ..Environment::default()
        }
    }

    /// Returns a variable's value; empty counts as not set.
    pub(crate) fn value(&self, name: &str) -> Option<String> {
        self.value_with_origin(name).map(|found| found.value)
    }

    /// Returns a variable's value and origin; empty counts as not set.
    pub(crate) fn value_with_origin(&self, name: &str) -> Option<VariableValue> {
        let found = |from: &BTreeMap<String, String>, from_file| {
            let value = from.get(name).filter(|value| !value.is_empty())?;
            Some(VariableValue {
                value: value.clone(),
                variable: name.to_owned(),
                from_file,
            })
        };
        found(&self.process, false).or_else(|| found(&self.file, true))
    }

    /// Returns the value from an alias or an env file for `variable` (`PLIMSOLL_…`) in `command`; `None` if the
    /// process's environment sets the variable.
    pub(crate) fn fallback_value(&self, variable: &str, command: &str) -> Option<VariableValue> {
        let own = self.value_with_origin(variable);
        if own.as_ref().is_some_and(|found| !found.from_file) {
            return None;
        }
        let alias = self.alias_value(variable, command);
        match (alias, own) {
            (Some(alias), _) if !alias.from_file => Some(alias),
            (_, Some(own)) => Some(own),
            (alias, None) => alias,
        }
    }

    fn alias_value(&self, variable: &str, command: &str) -> Option<VariableValue> {
        let named = known_aliases(variable, command).find_map(|alias| match alias.conversion {
            AliasConversion::Plain { unit } => self.value_with_unit(alias.name, unit),
            AliasConversion::Url(schemes) => self.url_value(alias.name, schemes),
        });
        named.or_else(|| match (variable, command) {
            ("PLIMSOLL_TARGET", _) => self.df_address(true),
            // Variables with generic names such as HOST apply to one command only.
            ("PLIMSOLL_LISTEN", "serve llm") => {
                let own =
                    || self.host_and_port("FASTAPI_HOST", "FASTAPI_PORT", ["127.0.0.1", "8000"]);
                self.df_address(false).or_else(own)
            }
            ("PLIMSOLL_LISTEN", "relay gateway") => {
                let own = || self.host_and_port("HOST", "PORT", ["127.0.0.1", "4040"]);
                self.df_address(false).or_else(own)
            }
            ("PLIMSOLL_LISTEN", _) => self.df_address(false),
            _ => None,
        })
    }

    fn value_with_unit(&self, name: &str, unit: &str) -> Option<VariableValue> {
        let mut found = self.value_with_origin(name)?;
        let bare = found.value.trim().ends_with(|c: char| c.is_ascii_digit());
        if bare && !unit.is_empty() {
            found.value = format!("{}{unit}", found.value.trim());
        }
        Some(found)
    }

    /// Combines `DF_HOST` and `DF_PORT` into HOST:PORT, or into a URL if `target` is true. The URL has the TLS scheme
    /// if a CA is set.
    fn df_address(&self, target: bool) -> Option<VariableValue> {
        let mut found = self.host_and_port("DF_HOST", "DF_PORT", ["localhost", "50051"])?;
        let secured = self
            .value_with_origin("PLIMSOLL_CA")
            .or_else(|| self.value_with_origin("TLS_CA"))
            .is_some();
        let schemes = registry::default_schemes();
        let scheme = schemes.secured.filter(|_| secured);
        if target {
            found.value = format!("{}://{}", scheme.unwrap_or(schemes.plain), found.value);
        }
        Some(found)
    }

    /// Returns the URL in a variable, with `http` or `https` replaced by the protocol's scheme and with an explicit
    /// port.
    fn url_value(&self, name: &str, schemes: [SchemeMapping; 2]) -> Option<VariableValue> {
        let mut found = self.value_with_origin(name)?;
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
        found.value = if has_port || rest.contains('/') {
            format!("{ours}{rest}")
        } else {
            format!("{ours}{rest}:{port}")
        };
        Some(found)
    }

    /// Combines host and port from two variables, with a default for either of them.
    fn host_and_port(
        &self,
        host_name: &str,
        port_name: &str,
        or: [&str; 2],
    ) -> Option<VariableValue> {
        let host = self.value_with_origin(host_name);
        let port = self.value_with_origin(port_name);
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
        Some(VariableValue {
            value: format!("{host}:{port}"),
            variable: format!("{host_name} and {port_name}"),
            from_file,
        })
    }
}

impl RejectedVariable {
    fn message(&self) -> String {
        match &self.name {
            Some(name) => format!("{}: {name}: {}", self.place, self.problem),
            None => format!("{}: {}", self.place, self.problem),
        }
    }
}

/// Returns the aliases of a variable for this command.
fn known_aliases<'a>(
    variable: &'a str,
    command: &'a str,
) -> impl Iterator<Item = &'static VariableAlias> {
    let of_protocols = COMMAND_ENTRIES.iter().flat_map(|entry| entry.aliases);
    let is_steady = !NON_STEADY_COMMANDS.contains(&command);
    COMMON_ALIASES
        .iter()
        .chain(of_protocols)
        .filter(move |alias| {
            alias.variable == variable
                && (alias.commands.is_empty() || alias.commands.contains(&command))
                && (is_steady || !STEADY_RUN_ALIASES.contains(&alias.name))
        })
}

fn read_env_file(path: &Path) -> Result<String, String> {
    let size = path.metadata().map_err(|e| e.to_string())?.len();
    if size > MAX_ENV_FILE_BYTES {
        return Err(format!(
            "{size} bytes: a file with variables may have at most {MAX_ENV_FILE_BYTES}"
        ));
    }
    input::read_to_string(path).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests;
