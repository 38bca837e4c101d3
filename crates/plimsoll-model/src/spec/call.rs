//! `[call]`: the sections that define one call.

mod body_secrets;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use toml::Table;

use super::protocol::{self, CallProtocol, CallSection};
use super::wire::ProxiedCalls;
use super::{MetadataSpec, OptionalPeriod, Problem, Spec, target};

pub(super) use body_secrets::{collect_body_secrets, replace_body_secrets};

/// One call as the plan defines it: a section named after its protocol ([`super::register`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CallSpec {
    /// The sections by name; a plan that can be resolved has exactly one.
    #[serde(flatten)]
    pub sections: BTreeMap<&'static str, Table>,
    /// The checksums of files that the plan names, by path, written by saved plans: the load is refused if a file has
    /// changed. Default: not checked.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub checksums: BTreeMap<String, String>,
}

/// The key of [`CallSpec::checksums`].
pub(super) const CHECKSUMS_KEY: &str = "checksums";

impl<'de> Deserialize<'de> for CallSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CallSpec, D::Error> {
        struct SectionsVisitor;
        impl<'de> Visitor<'de> for SectionsVisitor {
            type Value = CallSpec;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(
                    f,
                    "sections, such as [call.{}]",
                    protocol::default_url_schemes().section
                )
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<CallSpec, M::Error> {
                let mut call = CallSpec::default();
                while let Some(section) = map.next_key::<String>()? {
                    if section == CHECKSUMS_KEY {
                        call.checksums = map.next_value()?;
                        continue;
                    }
                    let unknown = || de::Error::custom(format!("unknown section `{section}`"));
                    let protocol = protocol::find_by_section(&section).ok_or_else(unknown)?;
                    let name = protocol.schemes.section;
                    call.sections.insert(name, map.next_value()?);
                }
                Ok(call)
            }
        }
        deserializer.deserialize_map(SectionsVisitor)
    }
}

impl CallSpec {
    /// Returns a call that consists of `section`.
    ///
    /// # Errors
    /// When a plan can't contain the section, such as a path that is not UTF-8.
    pub fn from_section<S: CallSection>(section: &S) -> Result<CallSpec, Problem> {
        let sections = [(S::SCHEMES.section, protocol::to_table(section)?)];
        Ok(CallSpec {
            sections: sections.into(),
            ..CallSpec::default()
        })
    }

    /// Returns the section of this type, if present.
    pub fn get<S: CallSection>(&self) -> Option<S> {
        protocol::parse_section(self.sections.get(S::SCHEMES.section)?).ok()
    }

    /// Returns the names of all known sections.
    pub(crate) fn known_section_names() -> impl Iterator<Item = &'static str> {
        protocol::all().map(|protocol| protocol.schemes.section)
    }

    /// Returns the names of the sections that are present, in the order of registration.
    pub(crate) fn present_section_names(&self) -> Vec<&'static str> {
        let is_given = |name: &&str| self.sections.contains_key(name);
        CallSpec::known_section_names().filter(is_given).collect()
    }

    /// Returns the sections that are present, each with its protocol.
    pub(crate) fn present_sections(&self) -> impl Iterator<Item = (&'static CallProtocol, &Table)> {
        let sections = self.sections.iter();
        sections.filter_map(|(name, section)| Some((protocol::find_by_section(name)?, section)))
    }

    /// Calls `visit` with the name and the value of each header field or metadata entry.
    pub(crate) fn visit_fields(&self, visit: &dyn Fn(&str, &MetadataSpec)) {
        for (protocol, section) in self.present_sections() {
            let visit_field = |name: &str, value: &mut MetadataSpec| visit(name, value);
            (protocol.with_fields)(section, &visit_field);
        }
    }

    /// Returns whether a header field or metadata entry is the output of a shell command.
    pub fn runs_commands(&self) -> bool {
        let runs_any = Cell::new(false);
        self.visit_fields(&|_, value| {
            let is_command = |value: &MetadataSpec| matches!(value, MetadataSpec::Command { .. });
            runs_any.set(runs_any.get() || value.values().iter().any(is_command));
        });
        runs_any.get()
    }

    /// Applies `change` to every section.
    pub(crate) fn try_change_sections<E>(
        &mut self,
        change: impl Fn(&'static CallProtocol, &Table) -> Result<Table, E>,
    ) -> Result<(), E> {
        for (name, section) in &mut self.sections {
            if let Some(protocol) = protocol::find_by_section(name) {
                *section = change(protocol, section)?;
            }
        }
        Ok(())
    }

    /// Returns whether the load may have a warm-up: protocols that schedule calls themselves have none.
    pub fn supports_warmup(&self) -> bool {
        let mut given = self.present_sections();
        !given.any(|(protocol, _)| protocol.schedules_own_arrivals)
    }

    /// Returns whether a warm-up is certain to end. That is not certain if a user makes several calls: all of these
    /// belong to the stage in which the user started, so a user from the warm-up might never make a measured call.
    pub fn is_warmup_certain_to_end(&self) -> bool {
        self.supports_warmup() && self.calls_per_user().is_none_or(|calls| calls <= 1)
    }

    /// Returns whether the protocol schedules calls itself, so that rate and clients of the load don't apply.
    pub fn schedules_own_arrivals(&self) -> bool {
        self.calls_per_user().is_some() || !self.supports_warmup()
    }

    /// Returns [`crate::plan::Call::calls_per_user`] as far as it is known before resolution.
    pub fn calls_per_user(&self) -> Option<u32> {
        let mut given = self.present_sections();
        given.find_map(|(protocol, section)| (protocol.calls_per_user)(section))
    }

    /// Returns the section's name, and the deadline that the section sets.
    pub fn deadline(&self) -> (&'static str, Option<OptionalPeriod>) {
        let name = self.section_name();
        let typed = self.sections.get(name).and_then(|s| s.get("deadline"));
        let own = typed.and_then(|typed| typed.clone().try_into().ok());
        (name, own)
    }

    /// Returns what a proxy must understand of this call. `spec`: the spec to which the call belongs.
    pub fn proxied_calls(&self, spec: &Spec) -> ProxiedCalls {
        let mut given = self.present_sections();
        let first = given.next();
        first.map_or_else(ProxiedCalls::default, |(protocol, section)| {
            (protocol.proxied_calls)(section, spec)
        })
    }

    /// Removes the deadline that the section sets.
    pub fn remove_deadline(&mut self) {
        for section in self.sections.values_mut() {
            section.remove("deadline");
        }
    }

    /// Returns the name of the present section; the first registered one if there is none yet.
    fn section_name(&self) -> &'static str {
        let given = self.sections.keys().copied().next();
        given.unwrap_or(protocol::default_url_schemes().section)
    }

    /// Returns the scheme of a target for this call, plaintext or over TLS.
    pub fn scheme(&self, secured: bool) -> &'static str {
        target::schemes_for_section(self.section_name()).scheme(secured)
    }
}
