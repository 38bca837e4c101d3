//! Converts a plan to the TOML in the run directory, with every default and without secrets.

use std::cell::RefCell;
use std::convert::Infallible;

use toml::{Table, Value};

use super::call::replace_body_secrets;
use super::lanes::{SharedSecrets, replace_lane_secrets};
use super::protocol::CallProtocol;
use super::steps;
use super::{ArrivalsSpec, MetadataSpec, Spec, TlsSpec, WatchSpec};
use crate::formats::redaction::{
    self, BodySecrets, QuerySecrets, is_secret_field_name, is_secret_field_value,
};
use crate::formats::units::{ByteSize, Period};
use crate::plan::{
    ArrivalModel, ArrivalSpacing, ConnectionReuse, KeyExchangeGroup, Plan, ServerTrust, TlsPlan,
    TlsSuite, TlsVersion,
};
use crate::rows::recording::Recording;
use crate::rows::template::has_fields;

/// Returns the values that must not be written to the run directory, each with the environment variable from which the
/// plan there reads it.
pub fn plan_secrets(plan: &Plan) -> Vec<(String, String)> {
    let (constant, varying) = plan.call.header_fields();
    // Escape braces again, since template fields are parsed again when the plan is read.
    let constant = constant.iter();
    let constant = constant.map(|(name, value)| (name, value.replace("{{", "{{{{")));
    // The value of a command has no constant text, because the command runs again.
    let varying = varying.iter();
    let all: Vec<(&String, String)> = constant
        .chain(varying.map(|field| (&field.name, field.typed.clone())))
        .collect();
    let secret = all.iter().enumerate();
    let secret = secret.filter(|(_, (name, value))| {
        !value.is_empty() && (is_secret_field_name(name) || is_secret_field_value(value))
    });
    secret
        .map(|(place, (name, value))| {
            let named_alike = |field: &&(&String, String)| field.0 == *name;
            let variable = match all.iter().filter(named_alike).count() {
                1 => secret_variable_name(name),
                _ => numbered_variable_name(name, all[..=place].iter().filter(named_alike).count()),
            };
            (variable, value.clone())
        })
        .chain(plan.call.query_string_secrets())
        .chain(plan.call.setting_secrets())
        .chain(plan.call.body_secrets().iter().cloned())
        .collect()
}

/// Has messages and records hide the secrets of `plan`, should a server repeat them.
pub(super) fn remember_secrets(plan: Plan) -> Plan {
    for (_, value) in plan_secrets(&plan) {
        redaction::remember_secret(&value);
    }
    plan
}

/// Returns the variable for value number `nth` (from 1) of several values with the same name.
fn numbered_variable_name(name: &str, nth: usize) -> String {
    format!("{}_{nth}", secret_variable_name(name))
}

impl Spec {
    /// Returns this spec with every default of `plan`, which was resolved from it, and with environment variables in
    /// place of secrets. A version with other defaults can then repeat the same run.
    #[must_use]
    pub fn with_defaults(&self, plan: &Plan) -> Spec {
        let mut spec = self.without_secret_fields();
        spec.name = Some(plan.name.clone());
        spec.target = Some(plan.target.url.clone());
        spec.seed = Some(plan.seed);
        spec.call.checksums.clone_from(plan.call.checksums());
        spec.requests = Some(plan.keep_requests);
        spec.span_sample = Some(plan.span_sample).filter(|&calls| calls > 0);
        spec.tls = plan
            .tls
            .as_ref()
            .map(|tls| tls_with_defaults(self.tls.as_ref(), tls));
        spec.set_call_defaults(plan);
        spec.set_load_defaults(plan);
        spec.watch = Some(WatchSpec::from_plan(plan));
        spec.replace_text_secrets();
        spec
    }

    fn set_call_defaults(&mut self, plan: &Plan) {
        let call = &plan.call;
        let filled_in = |protocol: &CallProtocol, section: &Table| -> Result<_, Infallible> {
            Ok((protocol.with_defaults)(section, call))
        };
        let Ok(()) = self.call.try_change_sections(filled_in);
        if let (Some(variation), Some(rows)) = (call.variation_settings(), &mut self.rows) {
            rows.order = Some(variation.row_order().name().to_owned());
        }
    }

    fn set_load_defaults(&mut self, plan: &Plan) {
        let load = &mut self.load;
        match plan.load.arrivals {
            ArrivalModel::Open(spacing) => {
                load.arrivals = match spacing {
                    ArrivalSpacing::Gamma(shape) => Some(ArrivalsSpec::gamma(shape)),
                    // Keep the path as the user wrote it.
                    ArrivalSpacing::Recorded => load.arrivals.take(),
                    named => Some(ArrivalsSpec::Named(named.name().to_owned())),
                };
                load.checksum = plan.load.recording.as_ref().map(Recording::checksum);
                // Arriving users may have a think time as well; the plan stores it with the calls.
                load.think = load.think.filter(|think| !think.0.is_zero());
            }
            ArrivalModel::Closed { clients, think } => {
                load.clients = Some(clients);
                load.think = Some(Period(think));
            }
        }
        match plan.load.reuse {
            // No number of connections is saved for arriving users, each of whom opens the connections that are needed.
            ConnectionReuse::Always if plan.call.calls_per_user().is_some() => {
                load.calls = plan.load.calls;
            }
            ConnectionReuse::Always => {
                load.reuse = Some("always".into());
                load.connections = Some(plan.load.connections);
            }
            ConnectionReuse::Never => load.reuse = Some("never".into()),
        }
        load.warmup = Some(Period(plan.load.warmup()));
        // A stall timeout takes the place of a deadline, which is then not written.
        if plan.load.stall_timeout.is_none() {
            load.deadline = Some(plan.load.deadline.into());
        }
        load.connect_timeout = Some(Period(plan.load.connect_timeout));
        load.resolve_interval = Some(Period(plan.load.resolve_interval));
        load.no_retry = (!plan.load.retry).then_some(true);
        load.drain = plan.load.drain.map(Period);
        load.spin = Some(Period(plan.load.spin));
        load.read_buffer = Some(ByteSize(plan.load.read_buffer as u64));
    }

    /// Returns this spec with secrets replaced by environment variables.
    #[must_use]
    pub fn without_secrets(&self) -> Spec {
        let mut spec = self.without_secret_fields();
        spec.replace_text_secrets();
        spec
    }

    /// Returns this spec with the secrets in header fields replaced by environment variables.
    fn without_secret_fields(&self) -> Spec {
        let mut spec = self.clone();
        let hide = |name: &str, value: &mut MetadataSpec| hide_field(name, name, value);
        let hidden = |protocol: &CallProtocol, section: &Table| -> Result<_, Infallible> {
            Ok((protocol.with_fields)(section, &hide))
        };
        let Ok(()) = spec.call.try_change_sections(hidden);
        spec
    }

    /// Returns where this spec contains a secret as text, rather than where to read it from: the names of header
    /// fields, `target` or `path` for a query, and `body`. A value with template fields is not a literal secret.
    pub fn literal_secret_names(&self) -> Vec<String> {
        let names = RefCell::new(Vec::new());
        self.call.visit_fields(&|name, value| {
            let is_literal = |value: &MetadataSpec| match value {
                MetadataSpec::Text(text) if has_fields(text) => false,
                value => is_literal_secret(name, value),
            };
            if value.values().iter().any(is_literal) {
                names.borrow_mut().push(name.to_owned());
            }
        });
        let mut names = names.into_inner();
        let target = self.target.as_deref().unwrap_or_default();
        if redaction::has_secret_text(target) {
            names.push("target".to_owned());
        }
        let sections = self.call.sections.values();
        let steps = steps::all_steps(self).map(|(_, step)| step);
        let mut urls = sections.chain(steps).flat_map(|table| {
            let urls = steps::URL_KEYS
                .iter()
                .filter_map(move |key| table.get(*key)?.as_str());
            urls.collect::<Vec<&str>>()
        });
        if urls.any(redaction::has_secret_text) {
            names.push("path".to_owned());
        }
        let mut secrets = BodySecrets::default();
        for section in self.call.sections.values() {
            replace_body_secrets(&mut section.clone(), &mut secrets);
        }
        if !secrets.into_variables().is_empty() {
            names.push("body".to_owned());
        }
        names
    }

    /// Replaces the secrets in the queries of the target, the path, the paths of steps and the targets of rungs, those in
    /// bodies, and all those of lanes.
    fn replace_text_secrets(&mut self) {
        let queries = RefCell::new(QuerySecrets::default());
        if let Some(target) = &mut self.target {
            *target = queries.borrow_mut().replace_secrets(target);
        }
        let bodies = RefCell::new(BodySecrets::default());
        let hidden = |_: &CallProtocol, section: &Table| -> Result<_, Infallible> {
            let mut section = section.clone();
            // A call numbers its own variables. Those of rungs and lanes differ from them where the values do.
            let mut queries = queries.borrow_mut();
            steps::replace_query_secrets(&mut section.clone(), &mut queries);
            if let Some(Value::String(path)) = section.get_mut("path") {
                queries.replace_secrets(path);
                *path = redaction::replace_secrets_with_variables(path);
            }
            steps::replace_query_secrets(&mut section, &mut QuerySecrets::default());
            replace_body_secrets(&mut section, &mut bodies.borrow_mut());
            Ok(section)
        };
        let Ok(()) = self.call.try_change_sections(hidden);
        let mut shared = SharedSecrets {
            queries: queries.into_inner(),
            bodies: bodies.into_inner(),
        };
        let rungs = self.ladder.iter_mut().flat_map(|ladder| &mut ladder.rungs);
        for target in rungs.flatten().filter_map(|rung| rung.target.as_mut()) {
            *target = shared.queries.replace_secrets(target);
        }
        for (name, lane) in &mut self.lanes {
            replace_lane_secrets(name, lane, &mut shared, hide_field);
        }
    }

    /// Formats the spec as TOML.
    ///
    /// # Errors
    /// When a path is not UTF-8.
    pub fn to_toml(&self) -> Result<String, String> {
        super::steps::to_toml(self)
    }
}

/// Replaces the value of the field `name` by the variable for the name `shown` if it is a secret.
fn hide_field(name: &str, shown: &str, value: &mut MetadataSpec) {
    match value {
        MetadataSpec::Several(values) => {
            let typed = (1..).zip(values);
            for (nth, value) in typed.filter(|(_, value)| is_literal_secret(name, value)) {
                *value = MetadataSpec::Env(numbered_variable_name(shown, nth));
            }
        }
        one if is_literal_secret(name, one) => {
            *one = MetadataSpec::Env(secret_variable_name(shown));
        }
        _ => {}
    }
}

/// Returns whether a value of this field is a secret, and the spec contains it as text.
fn is_literal_secret(name: &str, value: &MetadataSpec) -> bool {
    value.contains_secret_text() && (is_secret_field_name(name) || has_secret_form(value))
}

/// Returns whether a value is a secret whatever its field's name is. User and password become `Basic …`.
fn has_secret_form(value: &MetadataSpec) -> bool {
    match value {
        MetadataSpec::Text(text) => is_secret_field_value(text),
        value => matches!(value, MetadataSpec::Basic(_)),
    }
}

/// Returns the user's settings with the defaults of `plan`, in the syntax of plan files.
fn tls_with_defaults(typed: Option<&TlsSpec>, plan: &TlsPlan) -> TlsSpec {
    TlsSpec {
        pin: match &plan.trust {
            ServerTrust::Pinned(known) => Some(known.iter().map(ToString::to_string).collect()),
            _ => None,
        },
        insecure: (plan.trust == ServerTrust::Unchecked).then_some(true),
        versions: Some(value_names(&plan.versions, TlsVersion::name)),
        compressed: Some(plan.compress_certificates),
        suites: Some(value_names(&plan.suites, TlsSuite::name)),
        groups: Some(value_names(&plan.groups, KeyExchangeGroup::name)),
        resume: Some(plan.resume),
        full: plan.full_share.map(|share| format!("{}%", share * 100.0)),
        early_data: Some(plan.early_data),
        records: Some(plan.record_layer.name().into()),
        chain: Some(plan.chain_check.name().into()),
        ..typed.cloned().unwrap_or_default()
    }
}

/// Returns `PLIMSOLL_METADATA_AUTHORIZATION` for `authorization`.
fn secret_variable_name(name: &str) -> String {
    let name: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    format!("PLIMSOLL_METADATA_{name}")
}

fn value_names<T: Copy>(values: &[T], name: fn(T) -> &'static str) -> Vec<String> {
    values.iter().map(|value| name(*value).to_owned()).collect()
}
