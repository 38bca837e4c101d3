//! What a protocol brings to plans: its section, its schemes, and what its calls are.
//!
//! The model knows no protocol of its own accord: a program registers those that it has, before it reads
//! the first plan. A section is a table here, whose type only its protocol knows.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use toml::{Table, Value};

use super::apply::NOT_TEXT;
use super::keys::keys_of;
use super::problem::{Problem, Problems};
use super::surroundings::Surroundings;
use super::wire::Wire;
use super::{LoadSpec, MetadataSpec, Spec};
use crate::plan::{Arrivals, Call, CallPlan, Stage};

/// A protocol's schemes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schemes {
    /// The section of a plan that says what to call: `call.SECTION`. It names the protocol.
    pub section: &'static str,
    /// The scheme of plaintext targets.
    pub plain: &'static str,
    /// `None`: there is none over TLS.
    pub secured: Option<&'static str>,
    /// Other names of the two, which say more about the call: they stay as they were typed.
    pub aliases: Option<(&'static str, &'static str)>,
    /// What they are for: `for SOFARPC`.
    pub purpose: &'static str,
    /// Schemes that mean the same elsewhere, and what to write here.
    pub elsewhere: &'static [(&'static str, &'static str)],
    /// The ports that may be left out, plaintext and over TLS.
    pub ports: Option<(u16, u16)>,
    /// The URL may go on with a path, which says what to call.
    pub with_path: bool,
}

/// Arrivals that a protocol makes itself; `None`: there was a problem.
pub type OwnArrivals = (Option<Arrivals>, Vec<Stage>);

/// A section of a plan, `[call.NAME]`, and what it means.
pub trait Section: Clone + Default + Serialize + DeserializeOwned + 'static {
    /// Its name, and the URLs of its targets.
    const SCHEMES: Schemes;
    /// Its calls are not due at a rate, nor have they clients: [`Section::arrivals`] makes both.
    const SCHEDULES_ITSELF: bool = false;
    /// Calls may have the rows of a plan, each its own.
    const SUPPORTS_ROWS: bool = false;
    /// Requests have header fields, of which each call may have its own: [`Problems::traceparent`] adds one.
    const SUPPORTS_TRACEPARENT: bool = false;
    /// Its calls fetch files, by the keys `path` and `size`.
    const FETCHES_FILES: bool = false;
    /// The end of names of fields whose values are binary wherever its servers read them, and what is wrong with such
    /// a name in a section of another protocol.
    const BINARY_NAMES: Option<(&'static str, &'static str)> = None;
    /// What a plan makes of it.
    type Call: Call;

    /// The keys of a table in it, by its path from here; `None`: any.
    fn keys_within(path: &str) -> Option<&'static [&'static str]> {
        let _ = path;
        None
    }

    /// The files that decide what a call is, by their keys.
    fn files(&self) -> Vec<(&'static str, PathBuf)> {
        Vec::new()
    }

    /// Header fields or metadata, some of which may be secret.
    fn fields(&mut self) -> Option<&mut BTreeMap<String, MetadataSpec>> {
        None
    }

    /// What it means for a load that leaves it out.
    fn apply_defaults(&self, _: &mut LoadSpec) {}

    /// As [`Call::calls_in_a_row`], as far as that is known before it is resolved.
    fn calls_in_a_row(&self) -> Option<u32> {
        None
    }

    /// Calls go somewhere over TLS, whatever the target's scheme.
    fn is_secured(&self, spec: &Spec) -> bool {
        let _ = spec;
        false
    }

    /// What a proxy has to understand of its connections.
    fn wire(&self, spec: &Spec) -> Wire {
        let _ = spec;
        Wire::Bytes
    }

    /// Asked only of those who schedule themselves.
    fn arrivals(&self, _: &LoadSpec, _: &mut Problems) -> OwnArrivals {
        (None, Vec::new())
    }

    /// What a call is; `None`: there was a problem.
    fn resolve(
        &self,
        spec: &Spec,
        problems: &mut Problems,
        surroundings: &dyn Surroundings,
    ) -> Option<Self::Call>;

    /// With every default written out that `call` has.
    #[must_use]
    fn filled_in(self, call: &Self::Call) -> Self;
}

/// What changes the fields of a section: a field's name and its value.
pub(super) type ChangeField<'a> = dyn Fn(&str, &mut MetadataSpec) + 'a;

/// A protocol, as plans know it: a [`Section`] whose type is erased. A section that can't be read counts as absent,
/// except in `check` and `resolve`, which report its problem.
#[derive(Debug)]
pub struct Protocol {
    /// [`Section::SCHEMES`].
    pub schemes: &'static Schemes,
    /// The keys of the section.
    pub keys: fn() -> &'static [&'static str],
    /// [`Section::keys_within`].
    pub(super) keys_within: fn(&str) -> Option<&'static [&'static str]>,
    /// [`Section::SCHEDULES_ITSELF`].
    pub(super) schedules_itself: bool,
    /// [`Section::SUPPORTS_ROWS`].
    pub(super) varies: bool,
    /// [`Section::SUPPORTS_TRACEPARENT`].
    pub(super) traces: bool,
    /// [`Section::FETCHES_FILES`].
    pub(super) fetches_files: bool,
    /// [`Section::BINARY_NAMES`].
    pub(super) binary_names: Option<(&'static str, &'static str)>,
    /// The section as its protocol writes it; an error names the key of a value that is of the wrong kind.
    pub(super) check: fn(&Table) -> Result<Table, Problem>,
    /// The section with its fields changed, where it has some.
    pub(super) with_fields: fn(&Table, &ChangeField) -> Table,
    /// [`Section::calls_in_a_row`].
    pub(super) calls_in_a_row: fn(&Table) -> Option<u32>,
    /// [`Section::is_secured`].
    pub(super) is_secured: fn(&Table, &Spec) -> bool,
    /// [`Section::wire`].
    pub(super) wire: fn(&Table, &Spec) -> Wire,
    /// [`Section::files`].
    pub(super) files: fn(&Table) -> Vec<(&'static str, PathBuf)>,
    /// [`Section::apply_defaults`].
    pub(super) apply_defaults: fn(&Table, &mut LoadSpec),
    /// [`Section::arrivals`].
    pub(super) arrivals: fn(&Table, &LoadSpec, &mut Problems) -> OwnArrivals,
    /// [`Section::resolve`].
    pub(super) resolve: fn(&Table, &Spec, &mut Problems, &dyn Surroundings) -> Option<CallPlan>,
    /// [`Section::filled_in`].
    pub(super) filled_in: fn(&Table, &CallPlan) -> Table,
}

impl Protocol {
    /// The protocol of a section.
    pub const fn of<S: Section>() -> Protocol {
        Protocol {
            schemes: const { &S::SCHEMES },
            keys: keys_of::<S>,
            keys_within: S::keys_within,
            schedules_itself: S::SCHEDULES_ITSELF,
            varies: S::SUPPORTS_ROWS,
            traces: S::SUPPORTS_TRACEPARENT,
            fetches_files: S::FETCHES_FILES,
            binary_names: S::BINARY_NAMES,
            check: |section| table_of(&typed::<S>(section)?),
            with_fields: |section, change| {
                let Ok(mut typed) = typed::<S>(section) else {
                    return section.clone();
                };
                for (name, value) in typed.fields().into_iter().flatten() {
                    change(name, value);
                }
                table_of(&typed).unwrap_or_else(|_| section.clone())
            },
            calls_in_a_row: |section| typed::<S>(section).ok()?.calls_in_a_row(),
            is_secured: |section, spec| typed::<S>(section).is_ok_and(|own| own.is_secured(spec)),
            wire: |section, spec| {
                typed::<S>(section).map_or_else(|_| Wire::default(), |own| own.wire(spec))
            },
            files: |section| typed::<S>(section).map_or_else(|_| Vec::new(), |own| own.files()),
            apply_defaults: |section, load| {
                if let Ok(own) = typed::<S>(section) {
                    own.apply_defaults(load);
                }
            },
            arrivals: |section, load, problems| {
                let own = typed::<S>(section).unwrap_or_default();
                own.arrivals(load, problems)
            },
            resolve: |section, spec, problems, surroundings| {
                let own = typed::<S>(section).map_err(|problem| problems.0.push(problem));
                let call = own.ok()?.resolve(spec, problems, surroundings)?;
                Some(CallPlan::new(call))
            },
            filled_in: |section, call| {
                let filled_in = match (typed::<S>(section), call.of_type()) {
                    (Ok(own), Some(call)) => table_of(&own.filled_in(call)).ok(),
                    _ => None,
                };
                filled_in.unwrap_or_else(|| section.clone())
            },
        }
    }
}

/// # Errors
/// As [`Protocol::check`].
pub(super) fn typed<S: Section>(section: &Table) -> Result<S, Problem> {
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
        Problem::new(key, e.inner().message())
    })
}

/// A section as the table that a plan has.
///
/// # Errors
/// Where a plan can't hold it, as a path that is not UTF-8.
pub(super) fn table_of<S: Section>(section: &S) -> Result<Table, Problem> {
    let key = || format!("call.{}", S::SCHEMES.section);
    Table::try_from(section).map_err(|e| Problem::new(key(), e.to_string()).help(NOT_TEXT))
}

static REGISTERED_PROTOCOLS: OnceLock<Vec<&'static Protocol>> = OnceLock::new();

/// Adds protocols to those that plans may call; once a process, whatever else asks for it later.
pub fn register(protocols: impl IntoIterator<Item = &'static Protocol>) {
    REGISTERED_PROTOCOLS.get_or_init(|| protocols.into_iter().collect());
}

/// All that there are.
pub(super) fn all() -> impl Iterator<Item = &'static Protocol> {
    #[cfg(test)]
    register(tests::ALL);
    REGISTERED_PROTOCOLS.get().into_iter().flatten().copied()
}

/// The sections that say what to call, each with its keys.
pub fn sections() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    all().map(|protocol| (protocol.schemes.section, (protocol.keys)()))
}

/// The schemes of the protocol that is meant where nothing says which.
pub(super) fn first() -> &'static Schemes {
    const PLACEHOLDER_SCHEMES: Schemes = Schemes {
        section: "PROTOCOL",
        plain: "SCHEME",
        secured: None,
        aliases: None,
        purpose: "",
        elsewhere: &[],
        ports: None,
        with_path: false,
    };
    all()
        .next()
        .map_or(&PLACEHOLDER_SCHEMES, |protocol| protocol.schemes)
}

/// The protocol whose section has this name.
pub(super) fn named(section: &str) -> Option<&'static Protocol> {
    all().find(|protocol| protocol.schemes.section == section)
}

#[cfg(test)]
pub(super) mod tests;
