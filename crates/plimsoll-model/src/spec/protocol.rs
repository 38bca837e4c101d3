//! The interface by which a protocol extends plans: its section, its URL schemes, and its calls.
//!
//! This crate contains no protocols: a program registers those that it supports before it reads the first plan. In this
//! module, a section is a table whose type only its protocol knows.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use toml::{Table, Value};

use super::context::ResolveContext;
use super::flag_overrides::NON_UTF8_HELP;
use super::problem::{Problem, Problems, reword_list_error};
use super::section_keys::struct_keys;
use super::wire::ProxiedCalls;
use super::{LoadSpec, MetadataSpec, Spec};
use crate::plan::{ArrivalModel, Call, CallPlan, LoadStage};

/// The URL schemes of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrlSchemes {
    /// The section of a plan that defines the call: `call.SECTION`. It is also the protocol's name.
    pub section: &'static str,
    /// The scheme of plaintext targets.
    pub plain: &'static str,
    /// The scheme over TLS; `None`: there is none.
    pub secured: Option<&'static str>,
    /// Alternative names for both schemes that describe the call better. URLs keep the name that the user wrote.
    pub aliases: Option<(&'static str, &'static str)>,
    /// The end of the help text about these schemes: `for SOFARPC`.
    pub purpose: &'static str,
    /// Equivalent schemes of other tools, each with the scheme to use here.
    pub foreign_schemes: &'static [(&'static str, &'static str)],
    /// Default ports, plaintext and over TLS.
    pub ports: Option<(u16, u16)>,
    /// Whether the URL may have a path, which is part of the call.
    pub with_path: bool,
}

/// Arrivals that a protocol schedules itself. The model is `None` if there was a problem, which has been reported.
pub type OwnArrivals = (Option<ArrivalModel>, Vec<LoadStage>);

/// A section of a plan, `[call.NAME]`, and its meaning.
pub trait CallSection: Clone + Default + Serialize + DeserializeOwned + 'static {
    /// The section's name, and the URL schemes of its targets.
    const SCHEMES: UrlSchemes;
    /// Whether the protocol schedules calls itself ([`CallSection::schedule_arrivals`]), so that rate and clients don't apply.
    const SCHEDULES_OWN_ARRIVALS: bool = false;
    /// Whether calls may use rows.
    const SUPPORTS_ROWS: bool = false;
    /// Whether requests have header fields that can differ from call to call: [`Problems::add_traceparent`] adds one.
    const SUPPORTS_TRACEPARENT: bool = false;
    /// Whether calls fetch files, by the keys `path` and `size`.
    const FETCHES_FILES: bool = false;
    /// The suffix of field names whose values servers decode as binary, and the problem with such a name in a section
    /// of another protocol.
    const BINARY_NAME_SUFFIX: Option<(&'static str, &'static str)> = None;
    /// The resolved call.
    type Call: Call;

    /// Returns the keys of the table at this path within the section; `None`: any key is allowed.
    fn nested_keys(path: &str) -> Option<&'static [&'static str]> {
        let _ = path;
        None
    }

    /// Returns the files that determine the calls, with the plan keys that name them.
    fn input_files(&self) -> Vec<(&'static str, PathBuf)> {
        Vec::new()
    }

    /// Returns the header fields or metadata, some of which may be secret.
    fn fields(&mut self) -> Option<&mut BTreeMap<String, MetadataSpec>> {
        None
    }

    /// Applies `change` to header fields in nested tables of the section. The names that `change` receives are unique
    /// in the section.
    fn change_nested_fields(&mut self, _change: &dyn Fn(&str, &mut MetadataSpec)) {}

    /// Sets defaults of the load that this section implies.
    fn apply_defaults(&self, _: &mut LoadSpec) {}

    /// Returns [`Call::calls_per_user`] as far as it is known before resolution.
    fn calls_per_user(&self) -> Option<u32> {
        None
    }

    /// Returns whether some calls use TLS, whatever the target's scheme.
    fn uses_tls(&self, spec: &Spec) -> bool {
        let _ = spec;
        false
    }

    /// Returns what a proxy must understand of the calls.
    fn proxied_calls(&self, spec: &Spec) -> ProxiedCalls {
        let _ = spec;
        ProxiedCalls::default()
    }

    /// Schedules the arrivals; called only if [`CallSection::SCHEDULES_OWN_ARRIVALS`].
    fn schedule_arrivals(&self, _: &LoadSpec, _: &mut Problems) -> OwnArrivals {
        (None, Vec::new())
    }

    /// Resolves the call; `None`: there was a problem.
    fn resolve(
        &self,
        spec: &Spec,
        problems: &mut Problems,
        surroundings: &dyn ResolveContext,
    ) -> Option<Self::Call>;

    /// Rewrites the section as this version writes it, so that plans of older versions, which used other words or left
    /// out defaults, can be compared.
    #[must_use]
    fn into_canonical(self) -> Self {
        self
    }

    /// Returns the section with every default of `call` written out.
    #[must_use]
    fn with_defaults(self, call: &Self::Call) -> Self;
}

/// A function that changes a field of a section, given the field's name and value.
pub(super) type ChangeField<'a> = dyn Fn(&str, &mut MetadataSpec) + 'a;

/// A protocol's [`CallSection`] with its type erased. A section that can't be parsed counts as absent, except in
/// `check` and `resolve`, which report its problem.
#[derive(Debug)]
pub struct CallProtocol {
    /// [`CallSection::SCHEMES`].
    pub schemes: &'static UrlSchemes,
    /// The keys of the section.
    pub keys: fn() -> &'static [&'static str],
    /// [`CallSection::nested_keys`].
    pub(super) nested_keys: fn(&str) -> Option<&'static [&'static str]>,
    /// [`CallSection::SCHEDULES_OWN_ARRIVALS`].
    pub(super) schedules_own_arrivals: bool,
    /// [`CallSection::SUPPORTS_ROWS`].
    pub(super) supports_rows: bool,
    /// [`CallSection::SUPPORTS_TRACEPARENT`].
    pub(super) supports_traceparent: bool,
    /// [`CallSection::FETCHES_FILES`].
    pub(super) fetches_files: bool,
    /// [`CallSection::BINARY_NAME_SUFFIX`].
    pub(super) binary_name_suffix: Option<(&'static str, &'static str)>,
    /// Parses the section and serialises it again; an error names the key of a value of the wrong type.
    pub(super) check: fn(&Table) -> Result<Table, Problem>,
    /// Returns the section after changing its header fields, if it has any.
    pub(super) with_fields: fn(&Table, &ChangeField) -> Table,
    /// [`CallSection::calls_per_user`].
    pub(super) calls_per_user: fn(&Table) -> Option<u32>,
    /// [`CallSection::uses_tls`].
    pub(super) uses_tls: fn(&Table, &Spec) -> bool,
    /// [`CallSection::proxied_calls`].
    pub(super) proxied_calls: fn(&Table, &Spec) -> ProxiedCalls,
    /// [`CallSection::input_files`].
    pub(super) files: fn(&Table) -> Vec<(&'static str, PathBuf)>,
    /// [`CallSection::apply_defaults`].
    pub(super) apply_defaults: fn(&Table, &mut LoadSpec),
    /// [`CallSection::schedule_arrivals`].
    pub(super) arrivals: fn(&Table, &LoadSpec, &mut Problems) -> OwnArrivals,
    /// [`CallSection::resolve`].
    pub(super) resolve: fn(&Table, &Spec, &mut Problems, &dyn ResolveContext) -> Option<CallPlan>,
    /// [`CallSection::into_canonical`].
    pub(crate) canonical: fn(&Table) -> Table,
    /// [`CallSection::with_defaults`].
    pub(super) with_defaults: fn(&Table, &CallPlan) -> Table,
}

impl CallProtocol {
    /// Returns the protocol of a section.
    pub const fn new<S: CallSection>() -> CallProtocol {
        CallProtocol {
            schemes: const { &S::SCHEMES },
            keys: struct_keys::<S>,
            nested_keys: S::nested_keys,
            schedules_own_arrivals: S::SCHEDULES_OWN_ARRIVALS,
            supports_rows: S::SUPPORTS_ROWS,
            supports_traceparent: S::SUPPORTS_TRACEPARENT,
            fetches_files: S::FETCHES_FILES,
            binary_name_suffix: S::BINARY_NAME_SUFFIX,
            check: |section| to_table(&parse_section::<S>(section)?),
            with_fields: |section, change| {
                let Ok(mut typed) = parse_section::<S>(section) else {
                    return section.clone();
                };
                for (name, value) in typed.fields().into_iter().flatten() {
                    change(name, value);
                }
                typed.change_nested_fields(change);
                to_table(&typed).unwrap_or_else(|_| section.clone())
            },
            calls_per_user: |section| parse_section::<S>(section).ok()?.calls_per_user(),
            uses_tls: |section, spec| {
                parse_section::<S>(section).is_ok_and(|own| own.uses_tls(spec))
            },
            proxied_calls: |section, spec| {
                parse_section::<S>(section)
                    .map_or_else(|_| ProxiedCalls::default(), |own| own.proxied_calls(spec))
            },
            files: |section| {
                parse_section::<S>(section).map_or_else(|_| Vec::new(), |own| own.input_files())
            },
            apply_defaults: |section, load| {
                if let Ok(own) = parse_section::<S>(section) {
                    own.apply_defaults(load);
                }
            },
            arrivals: |section, load, problems| {
                let own = parse_section::<S>(section).unwrap_or_default();
                own.schedule_arrivals(load, problems)
            },
            resolve: |section, spec, problems, surroundings| {
                let own = parse_section::<S>(section).map_err(|problem| problems.0.push(problem));
                let call = own.ok()?.resolve(spec, problems, surroundings)?;
                Some(CallPlan::new(call))
            },
            canonical: |section| {
                let own = parse_section::<S>(section).map(S::into_canonical);
                let canonical = own.and_then(|own| to_table(&own));
                canonical.unwrap_or_else(|_| section.clone())
            },
            with_defaults: |section, call| {
                let filled_in = match (parse_section::<S>(section), call.downcast_ref()) {
                    (Ok(own), Some(call)) => to_table(&own.with_defaults(call)).ok(),
                    _ => None,
                };
                filled_in.unwrap_or_else(|| section.clone())
            },
        }
    }
}

/// Parses the section.
///
/// # Errors
/// Returns the errors of [`CallProtocol::check`].
pub(super) fn parse_section<S: CallSection>(section: &Table) -> Result<S, Problem> {
    let read = serde_path_to_error::deserialize(Value::Table(section.clone()));
    read.map_err(|e| {
        let mut key = format!("call.{}", S::SCHEMES.section);
        for part in e.path() {
            match part {
                Segment::Seq { index } => key += &format!(".{index}"),
                Segment::Unknown => {}
                part => key += &format!(".{part}"),
            }
        }
        Problem::new(key, reword_list_error(e.inner().message()))
    })
}

/// Serialises a section as the table of a plan.
///
/// # Errors
/// When a plan can't contain the section, such as a path that is not UTF-8.
pub(super) fn to_table<S: CallSection>(section: &S) -> Result<Table, Problem> {
    let key = || format!("call.{}", S::SCHEMES.section);
    Table::try_from(section).map_err(|e| Problem::new(key(), e.to_string()).help(NON_UTF8_HELP))
}

static REGISTERED_PROTOCOLS: OnceLock<Vec<&'static CallProtocol>> = OnceLock::new();

/// Registers the protocols that plans may use. Takes effect once in a process; later calls are ignored.
pub fn register(protocols: impl IntoIterator<Item = &'static CallProtocol>) {
    REGISTERED_PROTOCOLS.get_or_init(|| protocols.into_iter().collect());
}

/// Returns all registered protocols.
pub(super) fn all() -> impl Iterator<Item = &'static CallProtocol> {
    #[cfg(test)]
    register(tests::ALL);
    REGISTERED_PROTOCOLS.get().into_iter().flatten().copied()
}

/// Returns the sections that define calls, each with its keys.
pub fn sections() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    all().map(|protocol| (protocol.schemes.section, (protocol.keys)()))
}

/// Returns the schemes of the default protocol.
pub(super) fn default_url_schemes() -> &'static UrlSchemes {
    const PLACEHOLDER_SCHEMES: UrlSchemes = UrlSchemes {
        section: "PROTOCOL",
        plain: "SCHEME",
        secured: None,
        aliases: None,
        purpose: "",
        foreign_schemes: &[],
        ports: None,
        with_path: false,
    };
    all()
        .next()
        .map_or(&PLACEHOLDER_SCHEMES, |protocol| protocol.schemes)
}

/// Returns the protocol whose section has this name.
pub(super) fn find_by_section(section: &str) -> Option<&'static CallProtocol> {
    all().find(|protocol| protocol.schemes.section == section)
}

#[cfg(test)]
pub(super) mod tests;
