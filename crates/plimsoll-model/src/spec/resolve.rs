//! Spec → plan: every default filled in, every contradiction reported, all problems at once.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::target::{
    goes_with, is_bare_socket, parse_target, path_of, scheme_for, scheme_of, section_of,
};
use super::{BoltSpec, GrpcSpec, Limit, PluginSpec, Problem, Spec, give_addresses};
use crate::plan::{
    Arrivals, CallPlan, Load, MethodKind, Plan, Reuse, Shapes, Target, TlsPlan, Watch,
};
use crate::template::{Render, Rows};

mod binary;
mod bolt;
mod fetch;
mod grpc;
mod http;
mod load;
mod metadata;
mod objectives;
mod plugin;
mod rows;
pub(super) use load::stage;
#[cfg(test)]
mod tests;
mod tls;

pub use binary::{BinaryMessage, delimited};
pub(super) use bolt::VERSIONS;
pub use metadata::metadata;
pub(super) use tls::{GROUPS, SUITES, VERSIONS as TLS_VERSIONS};
pub use tls::{group_named, suite_named, tls_version_named, trust};

pub(super) const DEADLINE: Duration = Duration::from_secs(10);
const SEED: u64 = 1;

/// What resolving needs of the world: kept behind a trait, so that it is pure itself.
pub trait Surroundings {
    /// An environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// A file's text.
    ///
    /// # Errors
    /// The file system's.
    fn read(&self, path: &Path) -> std::io::Result<String>;
    /// A file's bytes.
    ///
    /// # Errors
    /// The file system's.
    fn read_bytes(&self, path: &Path) -> std::io::Result<Vec<u8>>;
    /// Finds the method, and encodes or checks its messages. `metadata` are the call's, for a
    /// server that has to be asked.
    ///
    /// # Errors
    /// A problem that names its key below `call.grpc`.
    fn encode_grpc(
        &self,
        call: &GrpcSpec,
        method: &str,
        messages: Messages<'_>,
        rows: Option<&Rows>,
        metadata: &[(String, String)],
    ) -> Result<EncodedCall, Problem>;
    /// Encodes class, header map and content of a Bolt call.
    ///
    /// # Errors
    /// A problem that names its key below `call.bolt`.
    fn encode_bolt(&self, call: &BoltSpec) -> Result<EncodedBolt, Problem>;
    /// Loads a codec plugin, and makes or checks the request.
    ///
    /// # Errors
    /// A problem that names its key below `call.plugin`.
    fn encode_plugin(&self, call: &PluginSpec) -> Result<EncodedPlugin, Problem>;
}

/// What a gRPC call is to send.
#[derive(Clone, Copy, Debug)]
pub enum Messages<'a> {
    /// JSON text, which may have the fields of a [`crate::template::Template`].
    Json(&'a str),
    Binary(&'a [BinaryMessage]),
}

/// What a codec plugin made of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedPlugin {
    /// What the plugin calls its protocol.
    pub protocol: String,
    /// A whole request.
    pub frame: Vec<u8>,
}

/// A Bolt call's variable parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedBolt {
    /// `service/method`, or the class of a raw call.
    pub method: String,
    pub class: Vec<u8>,
    pub header: Vec<u8>,
    pub content: Vec<u8>,
}

/// A method that exists and a message that fits it.
#[derive(Clone, Debug)]
pub struct EncodedCall {
    /// `package.Service/Method`.
    pub method: String,
    pub kind: MethodKind,
    /// One; or several for a stream, where the JSON was a list. Where they vary: as the
    /// first call has them.
    pub messages: Vec<Vec<u8>>,
    /// What makes each call's own of them; empty: every call sends the same.
    pub varying: Vec<Arc<dyn Render>>,
    /// What an answer has to be; `None`: anything.
    pub answer: Option<Arc<Shapes>>,
}

/// Makes the plan that `spec` means.
///
/// # Errors
/// Everything that is wrong with it, each with its key; see [`super::locate`] for places.
pub fn resolve(spec: &Spec, surroundings: &dyn Surroundings) -> Result<Plan, Vec<Problem>> {
    let mut problems = Problems(Vec::new());
    let with_defaults =
        super::session::with_defaults(spec).or_else(|| super::hold::with_defaults(spec));
    let spec = with_defaults.as_ref().unwrap_or(spec);
    let mut target = problems.target(spec);
    let tls = problems.tls(
        spec.tls.as_ref(),
        target
            .as_ref()
            .map(|(_, secured)| *secured || super::session::has_secured_socket(spec)),
    );
    let mut call = problems.call(spec, surroundings);
    problems.addresses(
        spec,
        target.as_mut().map(|(target, _)| target),
        call.as_mut(),
    );
    problems.server_name(tls.as_ref(), target.as_ref(), call.as_ref());
    let load = problems.load(spec);
    let objectives = problems.objectives(spec, load.as_ref());
    let watch = problems.watch(spec);
    let seed = spec.seed.unwrap_or(SEED);
    if i64::try_from(seed).is_err() {
        problems.add("seed", format!("{seed} is too large: at most {}", i64::MAX));
    }
    if let (Some(call), Some(load)) = (&call, &load) {
        problems.enough_rows(call, load, seed);
    }
    if !spec.lanes.is_empty() {
        problems.add("lanes", "only `plimsoll run` carries lanes out");
    }
    match (target, call, load, problems.0.is_empty()) {
        (Some((target, _)), Some(call), Some(load), true) => Ok(Plan {
            name: spec.name.clone().unwrap_or_else(|| name_for(&call, &load)),
            target,
            tls,
            call,
            load,
            objectives,
            watch,
            seed,
            keep_requests: spec.requests.unwrap_or(false),
        }),
        _ => Err(problems.0),
    }
}

/// `GetScore, steady`
fn name_for(call: &CallPlan, load: &Load) -> String {
    let names = call.names();
    let method = match call {
        CallPlan::Hold(_) => return "connections, held".to_owned(),
        CallPlan::Session(_) => "sessions",
        CallPlan::Http(_) => names.1.split(['?', '#']).next().unwrap_or(&names.1),
        CallPlan::Grpc(_) | CallPlan::Bolt(_) | CallPlan::Fetch(_) | CallPlan::Plugin(_) => names
            .1
            .rsplit('/')
            .find(|part| !part.is_empty())
            .unwrap_or(&names.1),
    };
    let kind = match (load.reuse, load.arrivals) {
        (Reuse::Never, _) => "cold",
        (_, Arrivals::Closed { .. }) => "fleet",
        _ if load.stages.iter().filter(|s| !s.warmup).count() > 1 => "steps",
        _ => "steady",
    };
    format!("{method}, {kind}")
}

pub(super) struct Problems(pub(super) Vec<Problem>);

impl Problems {
    pub(super) fn add(&mut self, key: impl Into<String>, message: impl Into<String>) {
        self.0.push(Problem::new(key, message));
    }

    pub(super) fn keep<T>(&mut self, key: &str, result: Result<T, String>) -> Option<T> {
        result.map_err(|message| self.add(key, message)).ok()
    }

    fn target(&mut self, spec: &Spec) -> Option<(Target, bool)> {
        match &spec.target {
            Some(url) => {
                let (target, secured) = self.keep("target", target_of(url, spec))?;
                if target.socket.is_some()
                    && spec.call.fetch.is_none()
                    && spec.call.http.is_none()
                    && let Some(path) = path_of(url)
                {
                    self.add(
                        "target",
                        format!(
                            "`:{path}` after the socket is what to fetch, and nothing is fetched"
                        ),
                    );
                }
                Some((target, secured))
            }
            None => {
                self.add(
                    "target",
                    "missing: write grpc://HOST:PORT, or grpcs://HOST:PORT for TLS; sofa:// or sofas:// for SOFARPC; http:// or https://HOST:PORT/PATH for HTTP; session:// or sessions:// for sessions; plugin:// or plugins:// for a codec plugin's protocol; tcp:// or tls:// to hold connections",
                );
                None
            }
        }
    }

    /// A certificate is checked against a name.
    fn server_name(
        &mut self,
        tls: Option<&TlsPlan>,
        target: Option<&(Target, bool)>,
        call: Option<&CallPlan>,
    ) {
        let (Some(tls), Some((target, secured))) = (tls, target) else {
            return;
        };
        let second = match call {
            Some(CallPlan::Session(call)) => call.socket_secured && tls.lacks_name(&call.socket),
            _ => false,
        };
        if second || *secured && tls.lacks_name(target) {
            self.0.push(
                Problem::new(
                    "tls.server_name",
                    "missing: a Unix socket has no name for the server's certificate to be checked against",
                )
                .help("give the name that the certificate is for, such as localhost"),
            );
        }
    }

    /// Gives the targets the addresses of `load.resolve`.
    fn addresses(&mut self, spec: &Spec, target: Option<&mut Target>, call: Option<&mut CallPlan>) {
        let (Some(entries), Some(target)) = (&spec.load.resolve, target) else {
            return;
        };
        let given = match call {
            Some(CallPlan::Session(call)) => {
                give_addresses(entries, &mut [target, &mut call.socket])
            }
            _ => give_addresses(entries, &mut [target]),
        };
        if let Err((number, problem)) = given {
            self.add(format!("load.resolve.{number}"), problem);
        }
    }

    fn call(&mut self, spec: &Spec, surroundings: &dyn Surroundings) -> Option<CallPlan> {
        let given: Vec<&str> = [
            ("grpc", spec.call.grpc.is_some()),
            ("bolt", spec.call.bolt.is_some()),
            ("fetch", spec.call.fetch.is_some()),
            ("http", spec.call.http.is_some()),
            ("session", spec.call.session.is_some()),
            ("plugin", spec.call.plugin.is_some()),
            ("hold", spec.call.hold.is_some()),
        ]
        .into_iter()
        .filter_map(|(section, given)| given.then_some(section))
        .collect();
        let wanted = spec.target.as_deref().and_then(section_of);
        match given.as_slice() {
            [] => {
                let section = wanted.unwrap_or("grpc");
                self.add(
                    "call",
                    format!("missing: a [call.{section}] section says what to call"),
                );
                return None;
            }
            [_, second, ..] => {
                self.add(
                    format!("call.{second}"),
                    format!("given beside call.{}: a plan calls one thing", given[0]),
                );
                return None;
            }
            [section] => {
                if let (Some(wanted), Some(url)) = (wanted, &spec.target)
                    && !goes_with(section, url)
                    && let Some((scheme, rest)) = scheme_of(url)
                {
                    let secured = scheme.ends_with(['s', 'S']);
                    self.add(
                        "target",
                        format!(
                            "scheme `{scheme}` goes with [call.{wanted}], and [call.{section}] is given: write {}{rest}",
                            scheme_for(section, secured)
                        ),
                    );
                }
            }
        }
        let varies = matches!(given[0], "grpc" | "http" | "session");
        if spec.rows.is_some() && !varies {
            self.add(
                "rows",
                format!(
                    "only for [call.grpc], [call.http] and [call.session]: [call.{}] sends the same with every call",
                    given[0]
                ),
            );
        }
        if let Some(call) = &spec.call.bolt {
            return self.bolt_call(spec, call, surroundings);
        }
        if let Some(call) = &spec.call.fetch {
            return self.fetch_call(spec, call);
        }
        if let Some(call) = &spec.call.http {
            return self.http_call(spec, call, surroundings);
        }
        if let Some(call) = &spec.call.session {
            return self.session(spec, call, surroundings);
        }
        if let Some(call) = &spec.call.hold {
            return self.hold(call);
        }
        if let Some(call) = &spec.call.plugin {
            return self.plugin_call(call, surroundings);
        }
        self.grpc_call(spec, spec.call.grpc.as_ref()?, surroundings)
    }

    fn watch(&mut self, spec: &Spec) -> Watch {
        let Some(watch) = &spec.watch else {
            return Watch::default();
        };
        match (watch.pid, watch.port, watch.off.unwrap_or(false)) {
            (None, None, false) => Watch::default(),
            (Some(0), None, false) => {
                self.add("watch.pid", "0 is not a process: use its id, or off = true");
                Watch::Nothing
            }
            (Some(pid), None, false) => Watch::Pid(pid),
            (None, Some(port), false) => Watch::Port(port),
            (None, None, true) => Watch::Nothing,
            _ => {
                self.add("watch", "more than one of `pid`, `port` and `off`: use one");
                Watch::Nothing
            }
        }
    }
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|b| (0x20..=0x7e).contains(&b)) && text.trim() == text
}

/// A target and whether it is secured: a socket whose URL does not say so is where the spec
/// says how.
pub(super) fn target_of(url: &str, spec: &Spec) -> Result<(Target, bool), String> {
    let (target, secured) = parse_target(url)?;
    Ok((target, secured || spec.tls.is_some() && is_bare_socket(url)))
}

fn is_visible(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| (0x21..=0x7e).contains(&b))
}
