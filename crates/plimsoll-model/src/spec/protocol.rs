//! What a protocol brings to plans: its section, its schemes, and what its calls are.
//!
//! The model knows no protocol of its own accord: a program registers those that it has, before it reads
//! the first plan. A section is a table here, whose type only its protocol knows.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use toml::{Table, Value};

use super::keys::keys_of;
use super::problem::{Problem, Problems};
use super::surroundings::Surroundings;
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
    const VARIES: bool = false;
    /// Requests have header fields, of which each call may have its own: [`Problems::traceparent`] adds one.
    const TRACES: bool = false;
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

/// A protocol, as plans know it: a [`Section`] whose type is forgotten.
pub trait Protocol: fmt::Debug + Send + Sync {
    /// [`Section::SCHEMES`].
    fn schemes(&self) -> &'static Schemes;
    /// The keys of the section.
    fn keys(&self) -> &'static [&'static str];
    /// [`Section::keys_within`].
    fn keys_within(&self, path: &str) -> Option<&'static [&'static str]>;
    /// [`Section::SCHEDULES_ITSELF`].
    fn schedules_itself(&self) -> bool;
    /// [`Section::VARIES`].
    fn varies(&self) -> bool;
    /// [`Section::TRACES`].
    fn traces(&self) -> bool;
    /// [`Section::FETCHES_FILES`].
    fn fetches_files(&self) -> bool;
    /// [`Section::BINARY_NAMES`].
    fn binary_names(&self) -> Option<(&'static str, &'static str)>;

    /// The section as its protocol writes it.
    ///
    /// # Errors
    /// A value that is of the wrong kind, by its key.
    fn check(&self, section: &Table) -> Result<Table, Problem>;
    /// The section with its fields changed by `change`, where it has some.
    fn with_fields(&self, section: &Table, change: &dyn Fn(&str, &mut MetadataSpec)) -> Table;
    /// [`Section::calls_in_a_row`].
    fn calls_in_a_row(&self, section: &Table) -> Option<u32>;
    /// [`Section::is_secured`].
    fn is_secured(&self, section: &Table, spec: &Spec) -> bool;
    /// [`Section::files`].
    fn files(&self, section: &Table) -> Vec<(&'static str, PathBuf)>;
    /// [`Section::apply_defaults`].
    fn apply_defaults(&self, section: &Table, load: &mut LoadSpec);
    /// [`Section::arrivals`].
    fn arrivals(&self, section: &Table, load: &LoadSpec, problems: &mut Problems) -> OwnArrivals;
    /// [`Section::resolve`].
    fn resolve(
        &self,
        section: &Table,
        spec: &Spec,
        problems: &mut Problems,
        surroundings: &dyn Surroundings,
    ) -> Option<CallPlan>;
    /// [`Section::filled_in`].
    fn filled_in(&self, section: &Table, call: &CallPlan) -> Table;
}

/// The protocol of a section.
pub struct Of<S>(PhantomData<fn() -> S>);

impl<S> Of<S> {
    /// To register.
    pub const NEW: Of<S> = Of(PhantomData);
}

impl<S: Section> fmt::Debug for Of<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(S::SCHEMES.section)
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

impl<S: Section> Protocol for Of<S> {
    fn schemes(&self) -> &'static Schemes {
        const { &S::SCHEMES }
    }

    fn keys(&self) -> &'static [&'static str] {
        keys_of::<S>()
    }

    fn keys_within(&self, path: &str) -> Option<&'static [&'static str]> {
        S::keys_within(path)
    }

    fn schedules_itself(&self) -> bool {
        S::SCHEDULES_ITSELF
    }

    fn varies(&self) -> bool {
        S::VARIES
    }

    fn traces(&self) -> bool {
        S::TRACES
    }

    fn fetches_files(&self) -> bool {
        S::FETCHES_FILES
    }

    fn binary_names(&self) -> Option<(&'static str, &'static str)> {
        S::BINARY_NAMES
    }

    fn check(&self, section: &Table) -> Result<Table, Problem> {
        table_of(&typed::<S>(section)?)
    }

    fn with_fields(&self, section: &Table, change: &dyn Fn(&str, &mut MetadataSpec)) -> Table {
        let Ok(mut typed) = typed::<S>(section) else {
            return section.clone();
        };
        for (name, value) in typed.fields().into_iter().flatten() {
            change(name, value);
        }
        table_of(&typed).unwrap_or_else(|_| section.clone())
    }

    fn calls_in_a_row(&self, section: &Table) -> Option<u32> {
        typed::<S>(section).ok()?.calls_in_a_row()
    }

    fn is_secured(&self, section: &Table, spec: &Spec) -> bool {
        typed::<S>(section).is_ok_and(|section| section.is_secured(spec))
    }

    fn files(&self, section: &Table) -> Vec<(&'static str, PathBuf)> {
        typed::<S>(section).map_or_else(|_| Vec::new(), |section| section.files())
    }

    fn apply_defaults(&self, section: &Table, load: &mut LoadSpec) {
        if let Ok(section) = typed::<S>(section) {
            section.apply_defaults(load);
        }
    }

    fn arrivals(&self, section: &Table, load: &LoadSpec, problems: &mut Problems) -> OwnArrivals {
        typed::<S>(section)
            .unwrap_or_default()
            .arrivals(load, problems)
    }

    fn resolve(
        &self,
        section: &Table,
        spec: &Spec,
        problems: &mut Problems,
        surroundings: &dyn Surroundings,
    ) -> Option<CallPlan> {
        let section = typed::<S>(section).map_err(|problem| problems.0.push(problem));
        let call = section.ok()?.resolve(spec, problems, surroundings)?;
        Some(CallPlan::new(call))
    }

    fn filled_in(&self, section: &Table, call: &CallPlan) -> Table {
        match (typed::<S>(section), call.of_type()) {
            (Ok(typed), Some(call)) => table_of(&typed.filled_in(call)).ok(),
            _ => None,
        }
        .unwrap_or_else(|| section.clone())
    }
}

/// A section as the table that a plan has.
///
/// # Errors
/// Where a plan can't hold it, as a path that is not UTF-8.
pub(super) fn table_of<S: Section>(section: &S) -> Result<Table, Problem> {
    let key = || format!("call.{}", S::SCHEMES.section);
    Table::try_from(section).map_err(|e| Problem::new(key(), e.to_string()))
}

static REGISTERED: OnceLock<Vec<&'static dyn Protocol>> = OnceLock::new();

/// Adds protocols to those that plans may call; once a process, whatever else asks for it later.
pub fn register(protocols: impl IntoIterator<Item = &'static dyn Protocol>) {
    REGISTERED.get_or_init(|| protocols.into_iter().collect());
}

/// All that there are.
pub(super) fn all() -> impl Iterator<Item = &'static dyn Protocol> {
    #[cfg(test)]
    register(tests::ALL);
    REGISTERED.get().into_iter().flatten().copied()
}

/// The sections that say what to call, each with its keys.
pub fn sections() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    all().map(|protocol| (protocol.schemes().section, protocol.keys()))
}

/// The schemes of the protocol that is meant where nothing says which.
pub(super) fn first() -> &'static Schemes {
    const NONE: Schemes = Schemes {
        section: "PROTOCOL",
        plain: "SCHEME",
        secured: None,
        purpose: "",
        elsewhere: &[],
        ports: None,
        with_path: false,
    };
    all().next().map_or(&NONE, |protocol| protocol.schemes())
}

/// The protocol whose section has this name.
pub(super) fn named(section: &str) -> Option<&'static dyn Protocol> {
    all().find(|protocol| protocol.schemes().section == section)
}

#[cfg(test)]
pub(super) mod tests;
