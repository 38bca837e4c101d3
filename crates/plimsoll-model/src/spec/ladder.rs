//! `[ladder]`: the variants of a plan, one for each combination of its axes.

mod route;
mod rung;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{ArgAction, Args, value_parser};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::file_calls::{file_section_name, generated_file_size};
use super::problem::{find_by_name, reword_list_error};
use super::target::{has_tls_scheme, schemes_for_url, section_for_url, split_scheme};
use super::{Problem, Spec, suggest};
use crate::formats::units::{self, Period};
use crate::metrics::gate::Gate;

pub use route::{CustomProxy, RungRoute, UpstreamTls, register_proxies};
pub use rung::{RungNetwork, RungSecurity, TlsLibrary};

/// The variants of a plan. Every key besides those named here is an axis: a list of values.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[command(next_help_heading = "Rounds", next_display_order = 100)]
pub struct LadderSpec {
    /// How long a slice is measured [default: 2s].
    #[arg(long, value_name = "TIME", value_parser = units::parse_seconds)]
    pub slice: Option<Period>,
    /// How often each variant is measured [default: as often as it takes to see differences].
    // Help lists this flag before --slice.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000), display_order = 100)]
    pub rounds: Option<u32>,
    /// Calls of a batch, if the servers of all variants run at once and batches are in random order [default: 20].
    ///
    /// No default if `slice` or `rounds` is given, or the servers can't run at once.
    #[arg(
        long, alias = "turn", value_name = "CALLS", value_parser = value_parser!(u32).range(1..=100_000),
        conflicts_with_all = ["slice", "rounds"]
    )]
    #[serde(alias = "turn")]
    pub batch: Option<u32>,
    /// Calls at the start of a batch that do not count. Default 2.
    #[arg(skip)]
    #[serde(alias = "left_out")]
    pub warmup_calls: Option<u32>,
    /// Measure until differences of the p50 are resolved to ± this, such as `"1us"`. Default: for `load.duration`.
    #[arg(
        help = "Measure until differences at the p50 are resolved to ± this, such as 1us [default: for --duration]. `--resolve 1us` means the same",
        long,
        value_name = "TIME"
    )]
    pub resolution: Option<Period>,
    /// Keep this machine's cores from falling asleep between the calls of batches. Waking a core takes longer than TLS
    /// does, and the time varies. With cores awake, a ladder shows differences of some tenths of a microsecond, which
    /// even two processes of the same server may have.
    ///
    /// Default true where the ladder starts the servers, so that both ends are on this machine.
    #[arg(long, action = ArgAction::SetTrue)]
    pub keep_awake: Option<bool>,
    /// The longest time for `resolution` and `fail_if`. Default 2m.
    #[arg(
        help = "The longest time for --resolution and --fail-if [default: 2m]",
        long,
        value_name = "TIME",
        value_parser = units::parse_seconds
    )]
    pub budget: Option<Period>,
    /// Exit with 99 when a variant exceeds the first one by more than one of these, beyond doubt: each is a metric and
    /// the allowed increase, `["p99 +3%", "client_cpu +2us"]`. The ladder measures until that is decided.
    #[arg(
        help = "Exit with 99 when a variant exceeds the first one by more than this, beyond doubt: a metric and the allowed increase, such as 'p99 +3%' or 'client_cpu +2us'; repeatable. Measures until that is decided",
        long,
        value_name = "GATE"
    )]
    pub fail_if: Option<Vec<Gate>>,
    /// Additional measurements besides batches, a list: saturated, connections, resumed, memory; or none [default:
    /// connections, and all of them where the ladder starts the servers].
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub parts: Option<Vec<String>>,
    /// A folder with definitions of proxies, `NAME.toml` each, for `via`; they replace Plimsoll's own of the same name.
    #[arg(
        help = "A folder with definitions of proxies, NAME.toml each, for --via; they replace Plimsoll's own of the same name",
        long,
        value_name = "DIR"
    )]
    pub proxies: Option<PathBuf>,
    /// One of Plimsoll's servers, started and stopped for the ladder: the words after `plimsoll serve`. Default: the
    /// plan's target.
    #[arg(skip)]
    pub serve: Option<Vec<String>>,
    /// Individual rungs, each measured at every combination of the axes' values. Default: one, which is the plan
    /// itself.
    #[arg(skip)]
    pub rungs: Option<Vec<RungTable>>,
    /// `tls`, `connection`, `version`, `suite`, `group`, `certificate`, `library`, `size`, `network`, `via`,
    /// `upstream_tls`, `between_tls`, `proxy_workers`, or a plan's key with dots.
    #[arg(skip)]
    #[serde(flatten)]
    pub axes: BTreeMap<String, Vec<Value>>,
}

/// Keys of `[ladder]` that have been renamed: the former name, which is still accepted, and the present name.
const RENAMED_KEYS: [(&str, &str); 2] = [("turn", "batch"), ("left_out", "warmup_calls")];

/// Returns the former keys in a plan's text, each with its present name, such as (`ladder.turn`, `ladder.batch`).
pub fn renamed_keys(text: &str) -> Vec<(String, String)> {
    let plan: Table = text.parse().unwrap_or_default();
    let Some(ladder) = plan.get("ladder").and_then(Value::as_table) else {
        return Vec::new();
    };
    (RENAMED_KEYS.iter())
        .filter(|(old, _)| ladder.contains_key(*old))
        .map(|(old, new)| (format!("ladder.{old}"), format!("ladder.{new}")))
        .collect()
}

/// One listed rung: the settings in which it differs from the plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RungTable {
    /// The name in reports. Default: the rung's settings.
    pub name: Option<String>,
    /// The words after `plimsoll serve` for this rung, in a ladder with `serve`. Default: the ladder's.
    pub serve: Option<Vec<String>>,
    /// The rung's target. Default: the plan's. A plaintext target leaves out the plan's `[tls]`.
    pub target: Option<String>,
    /// One value of an axis, such as `tls = "mutual"` or `"load.connections" = 4`; `tls` may also be a table of keys of
    /// `[tls]`.
    #[serde(flatten)]
    pub settings: BTreeMap<String, Value>,
}

/// One variant, ready to be resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct RungSpec {
    /// The rung's name in the plan, or one composed of its settings.
    pub name: String,
    /// The settings that distinguish the rung: axis and value, as the user wrote them.
    pub settings: BTreeMap<String, String>,
    /// The security of the rung's connections, from its target and TLS settings.
    pub security: RungSecurity,
    /// The network of the server that the ladder starts.
    pub network: RungNetwork,
    /// The sidecars or proxy between load and server.
    pub route: RungRoute,
    /// The security of the proxy's connections to the server; `None`: the same as the load's.
    pub upstream_tls: Option<UpstreamTls>,
    /// The security of connections between the proxies of a chain.
    pub between_tls: RungSecurity,
    /// Workers of each proxy.
    pub proxy_workers: u32,
    /// The type of both ends' certificates where the ladder creates them, by its name in `certs --algorithm`. `None`:
    /// the default.
    pub certificate: Option<String>,
    /// The TLS implementation of the server that the ladder starts.
    pub library: TlsLibrary,
    /// The words after `plimsoll serve`, where they differ from the ladder's.
    pub serve: Option<Vec<String>>,
    /// The plan with the rung's changes.
    pub spec: Spec,
}

/// Maximum number of rungs: a ladder with more would take hours, and its report would be too long to read.
const MAX_RUNGS: usize = 64;
const NAMED_AXES: [&str; 13] = [
    "tls",
    "connection",
    "version",
    "suite",
    "group",
    "certificate",
    "library",
    "size",
    "network",
    "via",
    "upstream_tls",
    "between_tls",
    "proxy_workers",
];
impl Spec {
    /// Returns the rungs of the plan's ladder, with the last axis varying fastest.
    ///
    /// # Errors
    /// When an axis is unknown, or its key does not accept a value.
    pub fn rungs(&self) -> Result<Vec<RungSpec>, Problem> {
        let ladder = self.ladder.clone().unwrap_or_default();
        let mut plain = self.clone();
        (plain.ladder, plain.find) = (None, None);
        let bare = RungSpec {
            name: String::new(),
            settings: BTreeMap::new(),
            security: connection_security(self),
            network: RungNetwork::Localhost,
            route: RungRoute::Direct,
            upstream_tls: None,
            between_tls: RungSecurity::Mutual,
            proxy_workers: 1,
            certificate: None,
            library: TlsLibrary::default(),
            serve: None,
            spec: plain,
        };
        let mut rungs = match &ladder.rungs {
            None => vec![bare],
            Some(listed) => listed
                .iter()
                .map(|settings| bare.resolve_rung_table(settings))
                .collect::<Result<_, _>>()?,
        };
        for (axis, values) in &ladder.axes {
            if values.is_empty() {
                return Err(Problem::new(
                    format!("ladder.{axis}"),
                    "an axis without values: list two or more",
                ));
            }
            let mut next = Vec::new();
            for rung in &rungs {
                for value in values {
                    next.push(rung.with_axis_value(axis, value)?);
                }
            }
            rungs = next;
        }
        remove_resumption_objectives(&mut rungs);
        if !(2..=MAX_RUNGS).contains(&rungs.len()) {
            return Err(Problem::new(
                "ladder",
                format!(
                    "the axes make {} rungs: a ladder has 2 to {MAX_RUNGS}",
                    rungs.len()
                ),
            )
            .help("for example: [ladder] tls = [\"off\", \"server\", \"mutual\"]"));
        }
        route::check_proxy_names(rungs.iter(), ladder.proxies.as_deref())
            .map_err(|message| Problem::new("ladder.via", message))?;
        let unserved = |rung: &RungSpec| ladder.serve.is_none() && rung.serve.is_some();
        if rungs.iter().any(unserved) {
            return Err(Problem::new(
                "ladder.rungs",
                "a rung has `serve`, but the ladder has none: the other rungs need a server of Plimsoll, too",
            )
            .help("write serve = [\"score\"] or the like in [ladder], for the rungs without `serve`"));
        }
        if let Some(rung) = rungs.iter().find(|r| {
            r.certificate.is_some() && (ladder.serve.is_none() || r.security == RungSecurity::Off)
        }) {
            let problem = match rung.security {
                RungSecurity::Off => Problem::new(
                    "ladder.certificate",
                    format!(
                        "rung \"{}\" is plaintext and uses no certificate",
                        rung.name
                    ),
                )
                .help("write tls = \"server\" or \"mutual\", or a target with a secured scheme"),
                _ => Problem::new(
                    "ladder.certificate",
                    "certificates are made for a server that the ladder starts: write serve = [\"score\"] or the like",
                ),
            };
            return Err(problem);
        }
        if ladder.serve.is_none() && rungs.iter().any(|r| r.network == RungNetwork::Namespaces) {
            return Err(Problem::new(
                "ladder.network",
                "a namespace is for a server that the ladder starts: write serve = [\"score\"] or the like",
            ));
        }
        if let Some(rung) = rungs.iter().find(|r| r.library != TlsLibrary::Rustls) {
            rung.check_openssl_support(&ladder)
                .map_err(|problem| Problem::new("ladder.library", problem))?;
        }
        Ok(rungs)
    }
}

/// Removes objectives on resumption from rungs that resume no sessions, if other rungs resume them.
fn remove_resumption_objectives(rungs: &mut [RungSpec]) {
    if !rungs.iter().any(|rung| rung.spec.resumes_tls()) {
        return;
    }
    for rung in rungs {
        if !rung.spec.resumes_tls() {
            let objective = &mut rung.spec.objective;
            objective.retain(|metric, _| !metric.trim_start().starts_with("resumed"));
        }
    }
}

impl RungSpec {
    /// Resolves one of the listed rungs. Its target is applied first, because it determines the security: with a
    /// plaintext target, the plan's `[tls]` is ignored.
    fn resolve_rung_table(&self, table: &RungTable) -> Result<RungSpec, Problem> {
        let mut rung = self.clone();
        if let Some(target) = &table.target {
            rung = rung.with_axis_value("target", &Value::String(target.clone()))?;
            if !rung.spec.target.as_deref().is_some_and(has_tls_scheme) {
                rung.spec.tls = None;
            }
            rung.security = connection_security(&rung.spec);
        }
        for (axis, value) in &table.settings {
            rung = match (axis.as_str(), value) {
                ("tls", Value::Table(own)) => rung.with_tls(own)?,
                _ => rung.with_axis_value(axis, value)?,
            };
        }
        rung.serve.clone_from(&table.serve);
        if let Some(name) = &table.name {
            rung.name.clone_from(name);
        } else if let Some(words) = &rung.serve {
            let words = words.join(" ");
            rung.name = match rung.name.as_str() {
                "" => words,
                name => format!("{name}, {words}"),
            };
        }
        Ok(rung)
    }

    /// Returns the rung with the keys `own` merged into the plan's `[tls]`.
    fn with_tls(&self, own: &Table) -> Result<RungSpec, Problem> {
        let mut rung = self.clone();
        for (key, value) in own {
            rung.spec = with_key(&rung.spec, &format!("tls.{key}"), value)
                .map_err(|message| Problem::new(format!("ladder.rungs.tls.{key}"), message))?;
        }
        rung.security = connection_security(&rung.spec).max(RungSecurity::Server);
        Ok(rung)
    }

    fn with_axis_value(&self, axis: &str, value: &Value) -> Result<RungSpec, Problem> {
        let key = format!("ladder.{axis}");
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Table(own) if axis == "via" => route::custom_proxy_name(own),
            other => other.to_string(),
        };
        let mut rung = self.clone();
        let wrong = |message: String| Problem::new(key.clone(), message);
        let spec = &mut rung.spec;
        match axis {
            "tls" => {
                rung.security =
                    find_by_name(&text, &RungSecurity::ALL, RungSecurity::name).map_err(wrong)?;
                match rung.security {
                    RungSecurity::Off => spec.tls = None,
                    RungSecurity::Server => {
                        let tls = spec.tls.get_or_insert_default();
                        (tls.cert, tls.key) = (None, None);
                    }
                    RungSecurity::Mutual => {
                        spec.tls.get_or_insert_default();
                    }
                }
                if let Some(target) = &mut spec.target {
                    *target = with_url_security(target, rung.security != RungSecurity::Off);
                }
            }
            "connection" => {
                let all = ["new", "resumed", "reused"];
                let load = &mut spec.load;
                match find_by_name(&text, &all, |name| name).map_err(wrong)? {
                    "reused" => load.reuse = Some("always".into()),
                    asked => {
                        (load.reuse, load.connections) = (Some("never".into()), None);
                        if rung.security != RungSecurity::Off || asked == "resumed" {
                            spec.tls.get_or_insert_default().resume = Some(asked == "resumed");
                        }
                    }
                }
            }
            "via" => rung.route = route::parse_route(value, &text).map_err(wrong)?,
            "upstream_tls" => {
                let all = &UpstreamTls::ALL;
                let found = find_by_name(&text, all, UpstreamTls::name).map_err(wrong)?;
                rung.upstream_tls = Some(found);
            }
            "between_tls" => {
                rung.between_tls =
                    find_by_name(&text, &RungSecurity::ALL, RungSecurity::name).map_err(wrong)?;
            }
            "proxy_workers" => {
                let workers = text.parse().ok();
                let workers = workers.filter(|n| (1..=route::MAX_PROXY_WORKERS).contains(n));
                rung.proxy_workers = workers.ok_or_else(|| {
                    wrong(format!(
                        "`{text}` is not a number of workers: write 1 to {}",
                        route::MAX_PROXY_WORKERS
                    ))
                })?;
            }
            "network" => {
                rung.network =
                    find_by_name(&text, &RungNetwork::ALL, RungNetwork::name).map_err(wrong)?;
            }
            "version" => spec.tls.get_or_insert_default().versions = Some(vec![text.clone()]),
            "suite" => spec.tls.get_or_insert_default().suites = Some(vec![text.clone()]),
            "group" => spec.tls.get_or_insert_default().groups = Some(vec![text.clone()]),
            "certificate" => rung.certificate = Some(text.clone()),
            "library" => {
                rung.library =
                    find_by_name(&text, &TlsLibrary::ALL, TlsLibrary::name).map_err(wrong)?;
            }
            "size" => spec.set_file_size(&text).map_err(|message| {
                Problem::new(key.clone(), message).help("for example: size = [\"1KiB\", \"1MiB\"]")
            })?,
            path => {
                *spec = with_key(spec, path, value).map_err(|message| {
                    let problem = Problem::new(key.clone(), message);
                    match suggest(path, &NAMED_AXES) {
                        Some(nearest) => problem.help(format!("did you mean `{nearest}`?")),
                        None => problem.help(
                            "an axis is tls, connection, version, suite, group, certificate, library, size, network, via, upstream_tls, between_tls, proxy_workers, or a key of the plan, such as \"load.connections\"",
                        ),
                    }
                })?;
            }
        }
        // The last part of a key such as `load.connections`, or the whole name of an axis.
        let axis_name = axis.rsplit('.').next().unwrap_or(axis);
        let word = format!("{axis_name} {text}");
        rung.name = if rung.name.is_empty() {
            word
        } else {
            format!("{}, {word}", rung.name)
        };
        rung.settings.insert(axis.to_owned(), text);
        Ok(rung)
    }
}

/// Returns the security of a plan's connections, from its target and TLS settings.
fn connection_security(spec: &Spec) -> RungSecurity {
    match (&spec.tls, spec.target.as_deref()) {
        (Some(tls), _) if tls.cert.is_some() => RungSecurity::Mutual,
        (Some(_), _) => RungSecurity::Server,
        (None, Some(url)) if has_tls_scheme(url) => RungSecurity::Server,
        _ => RungSecurity::Off,
    }
}

/// Returns `spec` with the key at `path` set to `value`.
fn with_key(spec: &Spec, path: &str, value: &Value) -> Result<Spec, String> {
    let mut whole = Table::try_from(spec).map_err(|e| e.to_string())?;
    let mut table = &mut whole;
    let mut parts = path.split('.').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            table.insert(part.to_owned(), value.clone());
            break;
        }
        table = table
            .entry(part)
            .or_insert_with(|| Value::Table(Table::new()))
            .as_table_mut()
            .ok_or_else(|| format!("`{path}`: {part} is not a section"))?;
    }
    let mut spec = Spec::deserialize(whole).map_err(|e| reword_list_error(e.message()))?;
    let checked = spec
        .call
        .try_change_sections(|protocol, section| (protocol.check)(section));
    checked.map_err(|problem| problem.message)?;
    Ok(spec)
}

/// Returns the URL with the scheme of a TLS target or a plaintext one.
fn with_url_security(url: &str, secure: bool) -> String {
    match (section_for_url(url), split_scheme(url)) {
        (Some(_), Some((_, rest))) => {
            let (plain, secured) = schemes_for_url(url);
            format!("{}{rest}", if secure { secured } else { plain })
        }
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests;
