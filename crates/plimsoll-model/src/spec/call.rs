//! `[call]`: the sections that say what one call is.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use toml::Table;

use super::protocol::{self, Protocol, Section};
use super::wire::Wire;
use super::{Limit, Problem, Spec, target};

/// What one call is: one section, named after its protocol ([`super::register`]), and as typed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct CallSpec {
    /// By their names; a plan that can be resolved has one.
    pub sections: BTreeMap<&'static str, Table>,
}

impl<'de> Deserialize<'de> for CallSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CallSpec, D::Error> {
        struct Sections;
        impl<'de> Visitor<'de> for Sections {
            type Value = CallSpec;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "sections, such as [call.{}]", protocol::first().section)
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<CallSpec, M::Error> {
                let mut call = CallSpec::default();
                while let Some(section) = map.next_key::<String>()? {
                    let unknown = || de::Error::custom(format!("unknown section `{section}`"));
                    let protocol = protocol::named(&section).ok_or_else(unknown)?;
                    let name = protocol.schemes.section;
                    call.sections.insert(name, map.next_value()?);
                }
                Ok(call)
            }
        }
        deserializer.deserialize_map(Sections)
    }
}

impl CallSpec {
    /// A call of `section` alone.
    ///
    /// # Errors
    /// Where a plan can't hold it, as a path that is not UTF-8.
    pub fn of<S: Section>(section: &S) -> Result<CallSpec, Problem> {
        let sections = [(S::SCHEMES.section, protocol::table_of(section)?)];
        Ok(CallSpec {
            sections: sections.into(),
        })
    }

    /// The section of this type, where it is given.
    pub fn get<S: Section>(&self) -> Option<S> {
        protocol::typed(self.sections.get(S::SCHEMES.section)?).ok()
    }

    /// The names of all sections that there are.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        protocol::all().map(|protocol| protocol.schemes.section)
    }

    /// The names of the sections that are given, in the order of all.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        let is_given = |name: &&str| self.sections.contains_key(name);
        CallSpec::names().filter(is_given).collect()
    }

    /// The sections that are given, each with its protocol.
    pub(crate) fn protocols(&self) -> impl Iterator<Item = (&'static Protocol, &Table)> {
        let sections = self.sections.iter();
        sections.filter_map(|(name, section)| Some((protocol::named(name)?, section)))
    }

    /// Changes every section by `change`.
    pub(crate) fn change<E>(
        &mut self,
        change: impl Fn(&'static Protocol, &Table) -> Result<Table, E>,
    ) -> Result<(), E> {
        for (name, section) in &mut self.sections {
            if let Some(protocol) = protocol::named(name) {
                *section = change(protocol, section)?;
            }
        }
        Ok(())
    }

    /// Calls can run before those that count.
    pub fn has_warmup(&self) -> bool {
        let mut given = self.protocols();
        !given.any(|(protocol, _)| protocol.schedules_itself)
    }

    /// A warm-up is sure to end. Where a user makes several calls, all are of the stage in which it began:
    /// of one who begins in the warm-up none might ever count.
    pub fn leaves_warmup(&self) -> bool {
        self.has_warmup() && self.calls_in_a_row().is_none_or(|calls| calls <= 1)
    }

    /// Its calls are due as the protocol has it, not as the load has it: no rate and no clients of a plan
    /// deal them out.
    pub fn schedules_itself(&self) -> bool {
        self.calls_in_a_row().is_some() || !self.has_warmup()
    }

    /// As [`crate::plan::Call::calls_in_a_row`]: as far as that is known before it is resolved.
    pub fn calls_in_a_row(&self) -> Option<u32> {
        let mut given = self.protocols();
        given.find_map(|(protocol, section)| (protocol.calls_in_a_row)(section))
    }

    /// The section's name, and the deadline that it gives itself.
    pub fn deadline(&self) -> (&'static str, Option<Limit>) {
        let name = self.section();
        let typed = self.sections.get(name).and_then(|s| s.get("deadline"));
        let own = typed.and_then(|typed| typed.clone().try_into().ok());
        (name, own)
    }

    /// What a proxy has to understand of the connections of `spec`, whose call this is.
    pub fn wire(&self, spec: &Spec) -> Wire {
        let mut given = self.protocols();
        let first = given.next();
        first.map_or_else(Wire::default, |(protocol, section)| {
            (protocol.wire)(section, spec)
        })
    }

    /// Takes the deadline out that a section gives itself.
    pub fn forget_deadline(&mut self) {
        for section in self.sections.values_mut() {
            section.remove("deadline");
        }
    }

    /// The section that says what to call; the first of all protocols where there is none yet.
    fn section(&self) -> &'static str {
        let given = self.sections.keys().copied().next();
        given.unwrap_or(protocol::first().section)
    }

    /// The scheme of a target for this call, plaintext or secured.
    pub fn scheme(&self, secured: bool) -> &'static str {
        target::schemes_for(self.section()).scheme(secured)
    }
}
