//! Resolves a spec to a plan: fills in every default and reports all problems and contradictions at once.

use std::iter;
use std::time::Duration;

use super::call::collect_body_secrets;
use super::context::ResolveContext;
use super::problem::{Problem, Problems};
use super::saved_plan::remember_secrets;
use super::steps::STEPS_KEY;
use super::target::{
    allows_path, call_path, is_bare_unix_socket, parse_target_for, schemes_for_section,
    section_for_url, section_matches_url, split_scheme, target_syntax_help,
};
use super::{Spec, WatchSpec, protocol, set_target_addresses};
use crate::formats::labels;
use crate::formats::redaction;
use crate::plan::{ArrivalModel, CallPlan, ConnectionReuse, LoadPlan, Plan, Target, TlsPlan};
use crate::records::record::MAX_SAMPLED_CALLS;

#[cfg(test)]
mod tests;

/// Default deadline of a call.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);
pub(super) const DEFAULT_SEED: u64 = 1;

/// Resolves `spec`.
///
/// # Errors
/// Returns all problems, each with its key. [`super::set_spans`] adds their positions in the file.
pub fn resolve(spec: &Spec, surroundings: &dyn ResolveContext) -> Result<Plan, Vec<Problem>> {
    let mut problems = Problems::default();
    let typed = spec;
    let mut spec = spec.clone();
    problems.fill_body_variables(&mut spec.call, surroundings);
    for (protocol, section) in spec.call.present_sections() {
        (protocol.apply_defaults)(section, &mut spec.load);
    }
    apply_user_defaults(&mut spec);
    let spec = &spec;
    let mut target = problems.resolve_target(spec);
    let mut sections = spec.call.present_sections();
    let call_secured = sections.any(|(protocol, section)| (protocol.uses_tls)(section, spec));
    let secured = target.as_ref();
    let secured = secured.map(|(_, secured)| *secured || call_secured);
    let tls = problems.resolve_tls(spec.tls.as_ref(), secured);
    let checksums = problems.resolve_checksums(spec, surroundings);
    let call = problems.resolve_call(spec, surroundings);
    let is_secured = target.as_ref().is_some_and(|(_, secured)| *secured);
    let call = call.map(|call| {
        let secrets = collect_body_secrets(&typed.call, &call, surroundings);
        call.with_target_security(is_secured)
            .with_body_secrets(secrets)
    });
    let mut call = call.map(|call| call.with_checksums(checksums));
    if let Some((target, _)) = &mut target {
        let others = call.as_mut().map(CallPlan::other_targets_mut);
        let others = others.into_iter().flatten();
        let mut targets: Vec<&mut Target> = iter::once(target).chain(others).collect();
        problems.set_addresses(spec, &mut targets);
        problems.set_proxy(spec, &mut targets, surroundings);
    }
    problems.check_server_name(tls.as_ref(), target.as_ref(), call.as_ref());
    let load = problems.resolve_load(spec, surroundings);
    let objectives = problems.resolve_objectives(spec, call.as_ref(), load.as_ref());
    let watch = WatchSpec::resolve(spec.watch.as_ref(), &mut problems);
    let profile = WatchSpec::resolve_profile(spec.watch.as_ref(), &mut problems);
    let socket = target
        .as_ref()
        .and_then(|(target, _)| target.socket.as_ref());
    let server_metrics =
        WatchSpec::resolve_metrics_source(spec.watch.as_ref(), socket, &mut problems);
    let seed = spec.seed.unwrap_or(DEFAULT_SEED);
    if i64::try_from(seed).is_err() {
        problems.add("seed", format!("{seed} is too large: at most {}", i64::MAX));
    }
    if let (Some(call), Some(load)) = (&call, &load) {
        problems.check_row_count(call, load, seed);
    }
    if let Err(problem) = labels::check(&spec.labels) {
        problems.add("labels", problem);
    }
    if !spec.lanes.is_empty() {
        problems.add("lanes", "only `plimsoll run` supports lanes");
    }
    match (target, call, load, problems.0.is_empty()) {
        (Some((target, _)), Some(call), Some(load), true) => Ok(remember_secrets(Plan {
            name: spec
                .name
                .clone()
                .unwrap_or_else(|| default_name(&call, &load)),
            target,
            tls,
            call,
            load,
            objectives,
            watch,
            profile,
            server_metrics,
            seed,
            labels: spec.labels.clone(),
            keep_requests: spec.requests.unwrap_or(false),
            span_sample: spec.span_sample.unwrap_or(0),
        })),
        _ => Err(problems.0),
    }
}

/// Applies the defaults of a load that is given as a number of users: each client is one user with one connection. They
/// do not apply if the plan has a duration or a number of calls.
fn apply_user_defaults(spec: &mut Spec) {
    let Some(calls) = spec.call.calls_per_user() else {
        return;
    };
    let load = &mut spec.load;
    if let Some(clients) = load.clients {
        if load.duration.is_none() && load.calls.is_none() {
            load.calls = Some(u64::from(clients) * u64::from(calls));
        }
        if load.connections.is_none() && load.reuse.is_none() {
            load.connections = Some(clients);
        }
    }
}

impl Problems {
    /// Reports keys that don't apply to a load that is given as a number of users.
    pub fn report_user_load_conflicts(&mut self, spec: &Spec) {
        let Some(calls) = spec.call.calls_per_user().filter(|calls| *calls > 0) else {
            return;
        };
        if spec.load.reuse.is_some() {
            self.add(
                "load.reuse",
                "not used where each user makes several calls: each has a connection of its own",
            );
        }
        if spec.tls.as_ref().is_some_and(|tls| tls.resume.is_some()) {
            self.add(
                "tls.resume",
                "not used where each user makes several calls: every connection makes a full handshake",
            );
        }
        if let (Some(all), Some(_)) = (spec.load.calls, spec.load.clients)
            && !all.is_multiple_of(u64::from(calls))
        {
            self.add(
                "load.calls",
                format!("{all} calls are not a multiple of the {calls} calls of each user"),
            );
        }
        if spec.load.clients.is_none() && spec.load.think.is_some() && calls == 1 {
            self.add(
                "load.think",
                "a pause between a user's calls, but each user makes only one",
            );
        }
    }
}

/// Returns a default name such as `GetScore, open loop`.
fn default_name(call: &CallPlan, load: &LoadPlan) -> String {
    if let Some(name) = call.fixed_run_name() {
        return name.to_owned();
    }
    let kind = match (load.reuse, load.arrivals) {
        (ConnectionReuse::Never, _) => "new connection per call",
        (_, ArrivalModel::Closed { .. }) => "closed loop",
        _ if load.stages.iter().filter(|s| !s.warmup).count() > 1 => "steps",
        _ => "open loop",
    };
    format!("{}, {kind}", call.short_name())
}

impl Problems {
    fn resolve_target(&mut self, spec: &Spec) -> Option<(Target, bool)> {
        match &spec.target {
            Some(url) => {
                let (target, secured) =
                    self.ok_or_report("target", resolve_target_url(url, spec))?;
                if target.socket.is_some()
                    && !spec
                        .call
                        .present_section_names()
                        .into_iter()
                        .any(allows_path)
                    && let Some(path) = call_path(url)
                {
                    self.add(
                        "target",
                        format!(
                            "`:{path}` after the socket is a path to fetch, but this call fetches nothing"
                        ),
                    );
                }
                Some((target, secured))
            }
            None => {
                self.add("target", format!("missing: write {}", target_syntax_help()));
                None
            }
        }
    }

    /// Reports that there is no name against which the server's certificate could be checked.
    fn check_server_name(
        &mut self,
        tls: Option<&TlsPlan>,
        target: Option<&(Target, bool)>,
        call: Option<&CallPlan>,
    ) {
        let (Some(tls), Some((target, secured))) = (tls, target) else {
            return;
        };
        let others = call.map(|call| call.other_targets());
        let mut others = others.into_iter().flatten();
        let other_lacks = others.any(|(other, secured)| secured && tls.lacks_server_name(other));
        if other_lacks || *secured && tls.lacks_server_name(target) {
            self.0.push(
                Problem::new(
                    "tls.server_name",
                    "missing: a Unix socket has no name for the server's certificate to be checked against",
                )
                .help("give the name that the certificate is for, such as localhost"),
            );
        }
    }

    /// Sets the targets' addresses from `load.resolve`.
    fn set_addresses(&mut self, spec: &Spec, targets: &mut [&mut Target]) {
        let entries = spec.load.resolve.as_deref().unwrap_or_default();
        if let Err((number, problem)) = set_target_addresses(entries, targets) {
            self.add(format!("load.resolve.{number}"), problem);
        }
    }

    fn resolve_call(&mut self, spec: &Spec, surroundings: &dyn ResolveContext) -> Option<CallPlan> {
        let given = spec.call.present_section_names();
        let wanted = spec.target.as_deref().and_then(section_for_url);
        match given.as_slice() {
            [] => {
                let section = wanted.unwrap_or(protocol::default_url_schemes().section);
                self.add(
                    "call",
                    format!("missing: a [call.{section}] section says what to call"),
                );
                return None;
            }
            [_, second, ..] => {
                self.add(
                    format!("call.{second}"),
                    format!(
                        "can't be combined with call.{}: a plan calls one thing",
                        given[0]
                    ),
                );
                return None;
            }
            [section] => {
                if let (Some(wanted), Some(url)) = (wanted, &spec.target)
                    && !section_matches_url(section, url)
                    && let Some((scheme, rest)) = split_scheme(url)
                {
                    let secured = scheme.ends_with(['s', 'S']);
                    self.add(
                        "target",
                        format!(
                            "scheme `{scheme}` is for {wanted} calls, not for {section} calls: write {}{rest}",
                            schemes_for_section(section).scheme(secured)
                        ),
                    );
                }
            }
        }
        let (protocol, section) = spec.call.present_sections().next()?;
        // The steps of a journey use rows in every protocol.
        let is_journey = section.contains_key(STEPS_KEY);
        if spec.rows.is_some() && !protocol.supports_rows && !is_journey {
            let others = list_sections(|protocol| protocol.supports_rows);
            self.add(
                "rows",
                format!(
                    "only for {others}: [call.{}] sends the same with every call",
                    given[0]
                ),
            );
        }
        if spec.traceparent == Some(true) && !protocol.supports_traceparent {
            let others = list_sections(|protocol| protocol.supports_traceparent);
            self.add(
                "traceparent",
                format!(
                    "only for {others}: requests of [call.{}] have no header field of each call's own",
                    given[0]
                ),
            );
        }
        self.check_span_sample(spec);
        (protocol.resolve)(section, spec, self, surroundings)
    }
}

impl Problems {
    /// Reports an invalid `span_sample`.
    fn check_span_sample(&mut self, spec: &Spec) {
        let Some(calls) = spec.span_sample.filter(|calls| *calls > 0) else {
            return;
        };
        if calls as usize > MAX_SAMPLED_CALLS {
            self.add(
                "span_sample",
                format!("{calls} calls, and a sample has at most {MAX_SAMPLED_CALLS}"),
            );
        }
        if spec.traceparent != Some(true) {
            self.add(
                "span_sample",
                "needs traceparent = true: only calls that carry trace ids have spans",
            );
        }
    }
}

/// Formats a list of the sections of those protocols for which `wanted` is true: `[call.a], [call.b] and [call.c]`.
fn list_sections(wanted: impl Fn(&protocol::CallProtocol) -> bool) -> String {
    let all = protocol::all().filter(|protocol| wanted(protocol));
    let names: Vec<String> = all
        .map(|protocol| format!("[call.{}]", protocol.schemes.section))
        .collect();
    match names.split_last() {
        Some((last, names)) => format!("{} and {last}", names.join(", ")),
        None => String::new(),
    }
}

/// Returns whether a text is a valid header field value: printable ASCII without blanks at its ends.
pub fn is_valid_field_value(text: &str) -> bool {
    text.bytes().all(|b| (0x20..=0x7e).contains(&b)) && text.trim() == text
}

/// Returns the target of `url` and whether it uses TLS. The URL of a Unix socket may leave that open; then the spec
/// decides.
pub fn resolve_target_url(url: &str, spec: &Spec) -> Result<(Target, bool), String> {
    let section = spec.call.present_section_names().into_iter().next();
    let (mut target, secured) = parse_target_for(section, url)?;
    // The URL is only shown in reports, so its secrets can be replaced by the names of variables.
    target.url = redaction::replace_secrets_with_variables(url);
    Ok((
        target,
        secured || spec.tls.is_some() && is_bare_unix_socket(url),
    ))
}

/// Returns whether a text has no blanks and can be part of a URL or a header field.
pub fn is_visible_ascii(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| (0x21..=0x7e).contains(&b))
}
